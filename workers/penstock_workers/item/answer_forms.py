"""A good answer is read, whatever API gave it, and its tokens are counted.

The forms are OpenAI's chat and completions, Anthropic's Messages, Gemini's, and Bedrock's Converse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock_producer.dialects.answers import bedrocks_usage, geminis_usage, in_openais_words
from penstock_producer.prices import TokensUsed
from penstock_ratelimit.for_penstock import MAX_TOKENS_BELIEVED

_READ: Final = "cache_read_input_tokens"  # as Anthropic has them: beside `input_tokens`
_WRITTEN: Final = "cache_creation_input_tokens"
_TIER: Final = "service_tier"
_SECONDS: Final = "duration"  # of a transcript, beside it
MOST_SECONDS: Final = 1_000_000.0  # of one recording: a figure above is a mistake


def tokens_used(
    usage: Mapping[str, Any] | None, prompt: int | None, completion: int | None
) -> TokensUsed:
    """Return the tokens of an answer, from ``usage`` as the provider reported it.

    It is OpenAI's (both APIs) or Anthropic's. OpenAI counts cached tokens among those of the prompt
    and names them in ``…_details``; Anthropic counts them beside it.
    """
    if usage is None:
        return TokensUsed(prompt or 0, completion or 0)
    if counts_cache_beside(usage):
        read, written = believed(usage.get(_READ)) or 0, believed(usage.get(_WRITTEN)) or 0
        fresh = believed(usage.get("input_tokens")) or 0
        return TokensUsed(
            fresh + read + written,
            completion or 0,
            read,
            written,
            cache_written_hour=_written_for_an_hour(usage),
        )
    cached = _detail(usage, "prompt_tokens_details", "input_tokens_details", "cached_tokens")
    reasoning = _detail(
        usage, "completion_tokens_details", "output_tokens_details", "reasoning_tokens"
    )
    written = _detail(usage, "prompt_tokens_details", "input_tokens_details", "cache_write_tokens")
    media = _detail(usage, "input_token_details", "input_tokens_details", "audio_tokens")
    media += _detail(usage, "input_token_details", "input_tokens_details", "image_tokens")
    used = TokensUsed(prompt or 0, completion or 0, cached, written, reasoning, media=media)
    return used._replace(seconds=seconds_of(usage))


def seconds_of(usage: Mapping[str, Any] | None) -> float:
    """Return the length of a recording that is paid by the minute; 0 of anything else."""
    seconds = None if usage is None else usage.get("seconds")
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        return float(seconds) if 0 <= seconds <= MOST_SECONDS else 0.0
    return 0.0


def counts_cache_beside(usage: Mapping[str, Any]) -> bool:
    """Return whether it is in Anthropic's form.

    Gateways such as LiteLLM put Anthropic's figures of the cache beside OpenAI's names, whose
    prompt has them in it already."""
    return "prompt_tokens" not in usage and (_READ in usage or _WRITTEN in usage)


def _written_for_an_hour(usage: Mapping[str, Any]) -> int:
    """Return how many tokens were written to Anthropic's cache for an hour.

    Writes have two prices."""
    kinds = usage.get("cache_creation")
    return (
        believed(kinds.get("ephemeral_1h_input_tokens")) or 0 if isinstance(kinds, Mapping) else 0
    )


def believed(value: object) -> int | None:
    """Return a number of tokens; None for what is missing, negative or no integer."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS_BELIEVED:
        return value
    return None


def _detail(usage: Mapping[str, Any], of_chat: str, of_responses: str, name: str) -> int:
    details = usage.get(of_chat, usage.get(of_responses))
    return believed(details.get(name)) or 0 if isinstance(details, Mapping) else 0


Usage = Mapping[str, Any] | None


class Said(NamedTuple):
    """The content of the first answer, if there are several."""

    finish_reason: str | None = None  # in the words of OpenAI
    content: str | None = None  # its text
    is_empty: bool = False  # nothing in it can be used; calls of tools and refusals can


def read_form(parsed: dict[str, Any]) -> Said:
    """Read a body; one of no form that is known here has neither a reason nor a text.

    Embeddings, say."""
    if "choices" in parsed:
        choice = _first(parsed["choices"])
        return Said(is_empty=True) if choice is None else _of_choice(choice)
    if parsed.get("type") == "message":
        return _of_message(parsed)
    if "candidates" in parsed or "promptFeedback" in parsed:
        return _of_candidates(parsed)
    if "stopReason" in parsed:
        return _of_converse(parsed)
    return Said(content=_text(parsed.get("text")))  # of a transcript


def usage_of(parsed: Mapping[str, Any]) -> Usage:
    """Return the usage as the provider reported it; Gemini's in the names of OpenAI.

    The service tier stands in it, as with Anthropic and Gemini: OpenAI has it beside."""
    usage = parsed.get("usage")
    if isinstance(usage, dict) and "stopReason" in parsed:
        tier = parsed.get("serviceTier")
        return bedrocks_usage(usage) | {_TIER: tier.get("type") if isinstance(tier, dict) else None}
    if usage is None and _SECONDS in parsed and "text" in parsed:  # of a transcript by Whisper
        usage = {"type": "duration", "seconds": parsed[_SECONDS]}
    if isinstance(usage, dict):
        tier, written = parsed.get(_TIER), _with_thoughts(usage)
        return usage | written if tier is None else usage | written | {_TIER: tier}
    gemini = parsed.get("usageMetadata")
    if not isinstance(gemini, dict):
        return None
    tier = gemini.get("serviceTier", gemini.get("trafficType"))
    return geminis_usage(gemini) | {_TIER: tier}


def _with_thoughts(usage: Mapping[str, Any]) -> dict[str, int]:
    """Return the completion with its reasoning, where a provider counts that beside it, as xAI.

    The total says so."""
    prompt, written, total = (
        believed(usage.get(f"{name}_tokens")) for name in ("prompt", "completion", "total")
    )
    thought = _detail(usage, "completion_tokens_details", "", "reasoning_tokens")
    if prompt is None or written is None or not thought or total != prompt + written + thought:
        return {}
    return {"completion_tokens": written + thought}


def tier_of(usage: Usage) -> str | None:
    """Return the service tier in which an answer was made, as "flex"; None where it names none.

    Vertex AI writes ON_DEMAND_FLEX."""
    tier = None if usage is None else _text(usage.get(_TIER))
    return None if tier is None else tier.lower().removeprefix("on_demand_")


def counted(usage: Usage) -> tuple[int | None, int | None]:
    """Return prompt and completion tokens; None for what is missing or makes no sense."""
    if usage is None:
        return None, None
    if counts_cache_beside(usage):
        return _with_cache(usage), believed(usage.get("output_tokens"))
    return (
        believed(usage.get("prompt_tokens", usage.get("input_tokens"))),
        believed(usage.get("completion_tokens", usage.get("output_tokens"))),
    )


def model_of(parsed: Mapping[str, Any]) -> str | None:
    """Return the model that gave the answer."""
    return _text(parsed.get("model", parsed.get("modelVersion")))


def _of_choice(choice: dict[str, Any]) -> Said:
    reason = _text(choice.get("finish_reason"))
    message = choice.get("message")
    if not isinstance(message, dict):  # /v1/completions answers with `text`
        text = _text(choice.get("text"))
        return Said(reason, text, text is None)
    content = message.get("content")
    usable = content is not None or message.get("tool_calls") or message.get("refusal")
    return Said(reason, _text(content), not usable)


def _of_message(message: dict[str, Any]) -> Said:
    """Return what Anthropic's message says: its content is a list of blocks."""
    blocks = _rows(message.get("content"))
    texts = [
        text
        for block in blocks
        if block.get("type") == "text" and (text := _text(block.get("text"))) is not None
    ]
    usable = texts or any(block.get("type") == "tool_use" for block in blocks)
    return Said(_reason(message.get("stop_reason")), "".join(texts) if texts else None, not usable)


def _of_converse(answer: dict[str, Any]) -> Said:
    """Return what Bedrock's answer says: its message has a list of blocks, each of one field."""
    output = answer.get("output")
    message = output.get("message") if isinstance(output, dict) else None
    blocks = _rows(message.get("content") if isinstance(message, dict) else None)
    texts = [text for block in blocks if (text := _text(block.get("text"))) is not None]
    usable = texts or any("toolUse" in block for block in blocks)
    return Said(_reason(answer.get("stopReason")), "".join(texts) if texts else None, not usable)


def _of_candidates(answer: dict[str, Any]) -> Said:
    """Return what Gemini's answer says.

    A prompt that is refused has no candidate, only a reason."""
    feedback, candidate = answer.get("promptFeedback"), _first(answer.get("candidates"))
    if candidate is None:
        blocked = isinstance(feedback, dict) and feedback.get("blockReason") is not None
        return Said("content_filter" if blocked else None, is_empty=True)
    content = candidate.get("content")
    parts = [
        part
        for part in _rows(content.get("parts") if isinstance(content, dict) else None)
        if not part.get("thought")
    ]
    texts = [text for part in parts if (text := _text(part.get("text"))) is not None]
    usable = texts or any("functionCall" in part for part in parts)
    return Said(
        _reason(candidate.get("finishReason")), "".join(texts) if texts else None, not usable
    )


def _with_cache(usage: Mapping[str, Any]) -> int | None:
    """Add up a prompt that Anthropic counts in three parts.

    These are what was new, written to its cache, and read from it."""
    fresh = believed(usage.get("input_tokens"))
    if fresh is None:
        return None
    names = ("cache_creation_input_tokens", "cache_read_input_tokens")
    return believed(fresh + sum(believed(usage.get(name)) or 0 for name in names))


def _reason(value: object) -> str | None:
    reason = _text(value)
    return None if reason is None else in_openais_words(reason)


def _first(rows: object) -> dict[str, Any] | None:
    return rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else None


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
