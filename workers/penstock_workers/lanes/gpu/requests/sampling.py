"""Makes vLLM's sampling parameters from the fields of an OpenAI request body.

A field that would change nothing is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_producer.errors import seen
from penstock_workers.lanes.gpu.engine.engines import RequestRefused, upstream

# Passed to SamplingParams under the same name.
_SAME = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "min_tokens",
        "n",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "ignore_eos",
        "logit_bias",
        "bad_words",
        "skip_special_tokens",
        "include_stop_str_in_output",
        "allowed_token_ids",
    }
)
# Read elsewhere, or of no consequence for a batch.
_READ_ELSEWHERE = frozenset(
    {
        "model",
        "messages",
        "prompt",
        "max_tokens",
        "max_completion_tokens",
        "logprobs",
        "top_logprobs",
        "response_format",
        "structured_outputs",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "stream",
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "reasoning_effort",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
    }
)
KNOWN = _SAME | _READ_ELSEWHERE
_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def sampling_params(
    body: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any],
    max_tokens: int,
    schema: Mapping[str, Any] | None,
) -> Any:
    """Make a ``SamplingParams``.

    ``defaults`` are the model's own, ``schema`` is the job's. Raises RequestRefused."""
    unknown = body.keys() - KNOWN
    named = sorted(name for name in unknown if body[name] not in (None, [], {}))
    if named:
        raise RequestRefused(
            f"the gpu lane does not know {', '.join(map(repr, named))}: leave it out"
        )
    fields = dict(defaults) | {name: body[name] for name in _SAME if body.get(name) is not None}
    if "logit_bias" in fields:
        fields["logit_bias"] = {
            int(token): float(bias) for token, bias in fields["logit_bias"].items()
        }
    constraint = _constraint(body, schema)
    if constraint is not None and fields.get("allowed_token_ids") is not None:
        raise RequestRefused(
            "allowed_token_ids: a schema or pattern says already which tokens may come, and both "
            "together may leave none; leave one of them out"
        )
    try:
        return upstream("vllm", "SamplingParams")(
            **fields | {"max_tokens": max_tokens},
            logprobs=_logprobs(body),
            structured_outputs=None
            if constraint is None
            else upstream("vllm.sampling_params", "StructuredOutputsParams")(**constraint),
            # see arguments.FIRST_TOKEN_ONLY
            output_kind=upstream("vllm.sampling_params", "RequestOutputKind").DELTA,
        )
    except (TypeError, ValueError) as error:
        raise RequestRefused(str(error)) from error
    except Exception as error:  # newer versions have classes of their own for this
        raise RequestRefused(f"{type(error).__name__}: {error}") from error


def asked_tokens(body: Mapping[str, Any]) -> int | None:
    """Return the longest answer that the request asks for, in tokens.

    Raises RequestRefused."""
    name = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    asked = body.get(name)
    if asked is None:
        return None
    if type(asked) is not int or asked < 1:
        raise RequestRefused(f"{name} is {seen(asked)}: give an integer of at least 1")
    return asked


def _logprobs(body: Mapping[str, Any]) -> int | None:
    """Read how many logprobs are wanted.

    Chat says ``logprobs: true, top_logprobs: 5``, completions ``logprobs: 5``."""
    asked = body.get("logprobs")
    if isinstance(asked, bool):
        return int(body.get("top_logprobs") or 0) if asked else None
    return asked if isinstance(asked, int) else None


def _constraint(body: Mapping[str, Any], schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what the answer must look like, as the request asks, else by the job's schema."""
    direct = body.get("structured_outputs")
    if direct is not None:
        if not isinstance(direct, dict) or len(direct.keys() & set(_CONSTRAINTS)) != 1:
            raise RequestRefused(
                f"structured_outputs takes exactly one of {', '.join(_CONSTRAINTS)}"
            )
        return direct
    wanted = body.get("response_format")
    if wanted is not None and not isinstance(wanted, dict):
        raise RequestRefused(f"response_format is {seen(wanted)}: give an object with a type")
    kind = None if wanted is None else wanted.get("type")
    match kind:
        case None if not wanted:
            return None if schema is None else {"json": dict(schema)}
        case "text":
            return None
        case "json_object":
            return {"json_object": True}
        case "json_schema":
            described = (wanted or {}).get("json_schema")
            given = described.get("schema") if isinstance(described, dict) else None
            if isinstance(given, dict):
                return {"json": given}
            what = "missing" if given is None else seen(given)
            raise RequestRefused(
                f"response_format.json_schema.schema is {what}: give a JSON schema, an object"
            )
    raise RequestRefused(
        f"response_format {seen(kind)} is not one of text, json_object, json_schema"
    )
