"""How many tokens of which kind an answer took, for its price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock_producer.prices.token_prices import TokensUsed
from penstock_ratelimit.for_penstock import MAX_TOKENS_BELIEVED

_READ: Final = "cache_read_input_tokens"  # as Anthropic has them: beside `input_tokens`
_WRITTEN: Final = "cache_creation_input_tokens"


def tokens_used(
    usage: Mapping[str, Any] | None, prompt: int | None, completion: int | None
) -> TokensUsed:
    """``usage`` as the provider reported it, OpenAI's (both APIs) or Anthropic's.

    OpenAI counts cached tokens among those of the prompt and names them in ``…_details``; Anthropic
    counts them beside it.
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
    return TokensUsed(prompt or 0, completion or 0, cached, 0, reasoning)


def counts_cache_beside(usage: Mapping[str, Any]) -> bool:
    """Whether it is in Anthropic's form.

    Gateways such as LiteLLM put Anthropic's figures of the cache beside OpenAI's names, whose
    prompt has them in it already."""
    return "prompt_tokens" not in usage and (_READ in usage or _WRITTEN in usage)


def _written_for_an_hour(usage: Mapping[str, Any]) -> int:
    """Of what was written to Anthropic's cache: its writes have two prices."""
    kinds = usage.get("cache_creation")
    return (
        believed(kinds.get("ephemeral_1h_input_tokens")) or 0 if isinstance(kinds, Mapping) else 0
    )


def believed(value: object) -> int | None:
    """A number of tokens; what is missing, negative or no integer counts as unknown and never as
    money."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS_BELIEVED:
        return value
    return None


def _detail(usage: Mapping[str, Any], of_chat: str, of_responses: str, name: str) -> int:
    details = usage.get(of_chat, usage.get(of_responses))
    return believed(details.get(name)) or 0 if isinstance(details, Mapping) else 0
