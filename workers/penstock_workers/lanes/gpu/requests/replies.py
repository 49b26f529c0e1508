"""From vLLM's output to the body of an OpenAI answer."""

from __future__ import annotations

import base64
import time
from typing import Any

import orjson

from penstock_workers.lanes.gpu.engine.engines import EngineCall
from penstock_workers.lanes.gpu.requests.calls import Facts
from penstock_workers.lanes.gpu.requests.outcomes import Unanswered, unanswered, unpooled
from penstock_workers.lanes.gpu.requests.scoring import scored


def why_unanswered(call: EngineCall, output: Any) -> Unanswered | None:
    """Why the engine's output is no answer; None where it is one. Of a call in parts it is the list of theirs."""
    if call.parts:
        return next((missing for missing in map(unpooled, output) if missing is not None), None)
    completions = _completions(output)
    return unanswered(completions, wants_text=not call.params.ignore_eos) if completions else unpooled(output)


def reply(call: EngineCall, output: Any) -> bytes:
    """The body of a good answer, JSON."""
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
            "choices": [_choice(one, facts.chat) for one in sorted(output.outputs, key=lambda one: one.index)],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
                "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens or 0},
            },
        },
        option=orjson.OPT_NON_STR_KEYS,
    )


def _completions(output: Any) -> list[Any]:
    """Generated sequences; a pooled output has one vector instead."""
    return output.outputs if isinstance(output.outputs, list) else []


def _choice(one: Any, chat: bool) -> dict[str, Any]:
    content = {"message": {"role": "assistant", "content": one.text}} if chat else {"text": one.text}
    return {
        "index": one.index,
        **content,
        "logprobs": _logprobs(one, chat),
        "finish_reason": one.finish_reason,
        "stop_reason": one.stop_reason,
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
            "content": [_entry(taken) | {"top_logprobs": [_entry(other) for other in all_]} for taken, all_ in steps]
        }
    return {
        "tokens": [taken.decoded_token for taken, _ in steps],
        "token_logprobs": [taken.logprob for taken, _ in steps],
        "top_logprobs": [{other.decoded_token: other.logprob for other in all_} for _, all_ in steps],
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
