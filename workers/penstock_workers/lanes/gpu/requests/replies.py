"""Makes the body of an OpenAI answer from vLLM's output.

What each finish reason of vLLM means is one table, held to the engine's own list by a test."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from penstock_workers.lanes.gpu.children.parsers import Said
from penstock_workers.lanes.gpu.engine.engines import EngineCall
from penstock_workers.lanes.gpu.requests.calls import Facts
from penstock_workers.lanes.gpu.requests.scoring import scored


class Unanswered(NamedTuple):
    """The reason why an output is no answer.

    The name of the failure is one of item/run/fates.py; the detail is for a person."""

    failure: str
    detail: str


ANSWERED: Final = None
REASONS: Final[Mapping[str, Unanswered | None]] = {
    "stop": ANSWERED,
    # as long as it was allowed to be: the answer says so in its own finish_reason
    "length": ANSWERED,
    "abort": Unanswered("engine_aborted", "the engine ended the request before its end"),
    "error": Unanswered(
        "engine_failed", "the engine gave the request up (finish_reason error); its log says why"
    ),
    "repetition": Unanswered(
        "invalid_answer", "the engine stopped an answer that only repeated itself"
    ),
}

ENGINES_FAULT: Final = ("engine_failed", "engine_aborted")  # and not that of the answer


def unanswered(completions: list[Any], *, wants_text: bool = True) -> Unanswered | None:
    """Return why these generated sequences are no answer; None where they are one.

    A request with `ignore_eos` wants a number of tokens, and gets them though they have no text.
    """
    for one in completions:
        found = _of_reason(one.finish_reason)
        if found is not None:
            return found
    if not wants_text or any(one.text for one in completions):
        return None
    return _empty(completions)


def nothing_said(
    completions: list[Any], said: Sequence[Said], *, must_call: bool = False
) -> Unanswered | None:
    """Say why answers that were taken apart are no answer; None where they are.

    What a model only thought is no answer, nor is half of a call. ``must_call``: the request wants
    a call of a tool, whatever else is said.
    """
    if must_call and not all(one.tool_calls for one in said):
        return _empty(completions, "had a whole call of a tool")
    if not all(one.is_empty for one in said):
        return None
    return _empty(
        completions,
        "had thought its way to any text" if any(one.reasoning for one in said) else "had any text",
    )


def _empty(completions: list[Any], missing: str = "had any text") -> Unanswered:
    if any(one.finish_reason == "length" for one in completions):
        return Unanswered(
            "empty_answer",
            f"the answer was cut at max_tokens before it {missing}: raise max_tokens",
        )
    return Unanswered("empty_answer", f"the model ended its answer before it {missing}")


def unpooled(output: Any) -> Unanswered | None:
    """Return why an output without text is no answer; None where it is one.

    It has no finish reason: an aborted one is empty."""
    error = getattr(output, "error", None)  # vLLM has it since 0.32
    if error is not None:
        return Unanswered("engine_failed", f"the engine gave the request up: {error.message}")
    numbers = output.outputs.data
    if not numbers.numel():
        return REASONS["abort"]
    if not numbers.isfinite().all():
        words = (
            "a number of the answer is not finite; another dtype may do where this one overflows "
            "(gpu.engine.dtype)"
        )
        return Unanswered("invalid_answer", words)
    return None


def _of_reason(reason: str | None) -> Unanswered | None:
    if reason is None:
        return Unanswered("engine_aborted", "the engine ended the request without a finish reason")
    return REASONS.get(
        reason, Unanswered("engine_failed", f"the engine ended the request with {reason!r:.40}")
    )


def why_unanswered(call: EngineCall, output: Any) -> Unanswered | None:
    """Return why the engine's output is no answer; None where it is one.

    Of a call in parts it is the list of theirs."""
    if call.parts:
        return next((missing for missing in map(unpooled, output) if missing is not None), None)
    completions = _completions(output)
    return (
        unanswered(completions, wants_text=not call.params.ignore_eos)
        if completions
        else unpooled(output)
    )


def reply(call: EngineCall, output: Any, said: Sequence[Said] | None = None) -> bytes:
    """Make the body of a good answer, JSON.

    ``said`` are its choices, where vLLM's parsers have taken them apart."""
    if call.parts:
        return scored(call, output)
    facts: Facts = call.facts
    if not _completions(output):
        return _embedding(call, output, facts)
    prompt_tokens = len(output.prompt_token_ids or call.token_ids)
    completion_tokens = sum(len(one.token_ids) for one in output.outputs)
    return orjson.dumps(
        {
            "id": f"{'chatcmpl' if facts.chat else 'cmpl'}-{call.request_id}",
            "object": "chat.completion" if facts.chat else "text_completion",
            "created": int(time.time()),
            "model": facts.model,
            "choices": _choices(output.outputs, facts, said),
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
                "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens or 0},
            }
            | _thinking(said),
        },
        option=orjson.OPT_NON_STR_KEYS,
    )


def _completions(output: Any) -> list[Any]:
    """Return the generated sequences; a pooled output has one vector instead."""
    return output.outputs if isinstance(output.outputs, list) else []


def _choice(one: Any, chat: bool) -> dict[str, Any]:
    content = (
        {"message": {"role": "assistant", "content": one.text}} if chat else {"text": one.text}
    )
    return {
        "index": one.index,
        **content,
        "logprobs": _logprobs(one, chat),
        "finish_reason": one.finish_reason,
        "stop_reason": one.stop_reason,
    }


def _choices(
    completions: list[Any], facts: Facts, said: Sequence[Said] | None
) -> list[dict[str, Any]]:
    choices = [_choice(one, facts.chat) for one in completions]
    for choice, each in zip(choices, said or (), strict=False):
        choice["message"] = _message(each)
        if each.tool_calls and _ends_with_calls(facts, choice["finish_reason"]):
            choice["finish_reason"] = "tool_calls"
    return sorted(choices, key=lambda choice: int(choice["index"]))


def _message(said: Said) -> dict[str, Any]:
    """Make a message, with the names that vLLM's server gives its fields."""
    message: dict[str, Any] = {"role": "assistant", "content": said.content}
    if said.reasoning is not None:
        message["reasoning"] = said.reasoning
    if said.tool_calls:
        message["tool_calls"] = said.tool_calls
    return message


def _ends_with_calls(facts: Facts, reason: str) -> bool:
    """Return whether an answer ends with calls of tools.

    As vLLM's server has it: not where the request named the tool."""
    choice = (facts.parsed or {}).get("tool_choice")
    return choice == "auto" or (choice == "required" and reason == "stop")


def _thinking(said: Sequence[Said] | None) -> dict[str, Any]:
    if not said or all(one.reasoning is None for one in said):
        return {}
    return {
        "completion_tokens_details": {"reasoning_tokens": sum(one.reasoning_tokens for one in said)}
    }


def _logprobs(one: Any, chat: bool) -> dict[str, Any] | None:
    if one.logprobs is None:
        return None
    steps = [
        (chosen[token], list(chosen.values()))
        for token, chosen in zip(one.token_ids, one.logprobs, strict=False)
        if token in chosen
    ]
    if chat:
        return {
            "content": [
                _entry(taken) | {"top_logprobs": [_entry(other) for other in all_]}
                for taken, all_ in steps
            ]
        }
    return {
        "tokens": [taken.decoded_token for taken, _ in steps],
        "token_logprobs": [taken.logprob for taken, _ in steps],
        "top_logprobs": [
            {other.decoded_token: other.logprob for other in all_} for _, all_ in steps
        ],
    }


def _entry(logprob: Any) -> dict[str, Any]:
    text = logprob.decoded_token or ""
    return {"token": text, "logprob": logprob.logprob, "bytes": list(text.encode())}


def _embedding(call: EngineCall, output: Any, facts: Facts) -> bytes:
    vector = output.outputs.data.float().numpy()
    encoded = base64.b64encode(vector.tobytes()).decode() if facts.base64 else vector.tolist()
    tokens = len(call.token_ids)
    return orjson.dumps(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": encoded}],
            "model": facts.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )
