"""Several prompts in one call: `POST /v1/batch/sync`.

Outputs come in the order of the prompts, each a text or an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from penstock_gateway.direct.calls import Told
from penstock_gateway.direct.fields import CHAT, checked_body, invalid, with_messages
from penstock_gateway.direct.told import refused_for_letter
from penstock_gateway.refused import Refused
from penstock_gateway.settings import DirectFields
from penstock_ledger.lone_surrogates import parse_json
from penstock_ledger.model import Result

__all__ = ["batch_answer", "bodies_of"]

SHARED_BYTES: Final = (
    64 * 1024 * 1024
)  # of what all prompts of a call have alike, once for each of them
_OWN: Final = frozenset({"prompts", "system", "timeout_s"})
_USAGE: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


def bodies_of(given: Mapping[str, Any], limits: DirectFields) -> list[dict[str, Any]]:
    """The body of each prompt's request. Raises Refused."""
    prompts, system = given.get("prompts"), given.get("system")
    if prompts is None:
        raise Refused(
            400,
            "Missing required parameter: 'prompts'.",
            code="missing_required_parameter",
            param="prompts",
        )
    if not isinstance(prompts, list) or not 0 < len(prompts) <= limits.batch_prompts:
        raise invalid("prompts", f"give a list of 1 to {limits.batch_prompts} prompts")
    if system is not None and not isinstance(system, str):
        raise invalid("system", "give text", "invalid_type")
    if "messages" in given:
        raise invalid("messages", "give `prompts`: each may be a list of messages")
    shared = {name: value for name, value in given.items() if name not in _OWN}
    first = [] if system is None else [{"role": "system", "content": system}]
    _check_shared(len(orjson.dumps([shared, first])), len(prompts))
    bodies = list[dict[str, Any]]()
    for at, prompt in enumerate(prompts):
        bodies.append(_body(at, prompt, bodies[0] if bodies else shared, first, limits))
    return bodies


def _check_shared(size: int, prompts: int) -> None:
    if size * prompts > SHARED_BYTES:
        told = (
            f"What all {prompts} prompts share has {size:,} bytes and would be sent with each: "
            f"more than {SHARED_BYTES:,} "
        )
        raise Refused(413, f"{told}in all. Send fewer prompts at once.", code="request_too_large")


def _body(
    at: int,
    prompt: object,
    shared: Mapping[str, Any],
    first: list[dict[str, Any]],
    limits: DirectFields,
) -> dict[str, Any]:
    """``shared`` is what was checked with the first prompt, or what is to be."""
    if isinstance(prompt, str) and prompt:
        messages = [*first, {"role": "user", "content": prompt}]
    elif isinstance(prompt, list):
        messages = [*first, *prompt]
    else:
        raise invalid(
            f"prompts[{at}]", "give text that is not empty, or a list of messages", "invalid_type"
        )
    try:
        if at:
            return with_messages(shared, messages, limits)
        return checked_body({**shared, "messages": messages}, CHAT, limits)
    except Refused as refused:
        if refused.param is None or not refused.param.startswith("messages"):
            raise
        param = f"prompts[{at}]{refused.param.removeprefix('messages')}"
        raise Refused(
            400, refused.message.replace(refused.param, param), code=refused.code, param=param
        ) from None


def batch_answer(told: Told, model: str) -> dict[str, Any]:
    """Its JSON. ``tokens_per_second`` are completion tokens by the time that the caller waited."""
    outputs = [_output(at, told) for at in range(len(told.outcomes))]
    usage = {name: sum((one["usage"] or {}).get(name, 0) for one in outputs) for name in _USAGE}
    succeeded = sum(one["error"] is None for one in outputs)
    return {
        "id": told.name,
        "object": "batch.sync",
        "model": model,
        "outputs": outputs,
        "usage": usage,
        "counts": {
            "total": len(outputs),
            "succeeded": succeeded,
            "failed": len(outputs) - succeeded,
        },
        "took_s": round(told.took_s, 3),
        "tokens_per_second": round(usage["completion_tokens"] / told.took_s, 1)
        if told.took_s
        else None,
    }


def _output(at: int, told: Told) -> dict[str, Any]:
    outcome = told.outcomes[at]
    empty: dict[str, Any] = {
        "index": at,
        "text": None,
        "finish_reason": None,
        "message": None,
        "usage": None,
    }
    if isinstance(outcome, Result):
        return {**empty, **_read(outcome.body), "error": None}
    refused = told.late if outcome is None else refused_for_letter(outcome)
    assert refused is not None, "an outcome is missing, and a reason for it"
    return {
        **empty,
        "error": {"message": refused.message, "code": refused.code, "status": refused.status},
    }


def _read(body: bytes) -> dict[str, Any]:
    """Of the first choice: where the provider's answer has another form, its text is missing and no
    error is made of that."""
    found = parse_json(body)
    choices = found.get("choices")
    choice = (
        choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    )
    message = choice.get("message")
    usage = found.get("usage")
    return {
        "text": message.get("content") if isinstance(message, dict) else None,
        "finish_reason": choice.get("finish_reason"),
        "message": message if isinstance(message, dict) else None,
        "usage": _counted(usage) if isinstance(usage, dict) else None,
    }


def _counted(usage: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: usage[name] for name in _USAGE if type(usage.get(name)) is int and usage[name] >= 0
    }
