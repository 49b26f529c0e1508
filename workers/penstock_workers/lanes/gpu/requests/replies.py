"""From vLLM's output to the body of an OpenAI answer."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Any

import orjson

from penstock_workers.lanes.gpu.children.parsers import Said
from penstock_workers.lanes.gpu.engine.engines import EngineCall
from penstock_workers.lanes.gpu.requests.calls import Facts
from penstock_workers.lanes.gpu.requests.outcomes import Unanswered, unanswered, unpooled
from penstock_workers.lanes.gpu.requests.scoring import scored


def why_unanswered(call: EngineCall, output: Any) -> Unanswered | None:
    """Why the engine's output is no answer; None where it is one.

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
    """The body of a good answer, JSON.

    ``said``: its choices, where vLLM's parsers have taken them apart."""
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
    """Generated sequences; a pooled output has one vector instead."""
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
    """With the names that vLLM's server gives its fields."""
    message: dict[str, Any] = {"role": "assistant", "content": said.content}
    if said.reasoning is not None:
        message["reasoning"] = said.reasoning
    if said.tool_calls:
        message["tool_calls"] = said.tool_calls
    return message


def _ends_with_calls(facts: Facts, reason: str) -> bool:
    """As vLLM's server has it: not where the request named the tool."""
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
