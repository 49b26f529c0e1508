"""What the answers of a batch have used up, as OpenAI's batch object has it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock_ledger.model import Counts

__all__ = ["Details"]


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Reasoned(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    """Chat has the first two, responses the last two."""

    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Reasoned | None = None
    input_tokens_details: _Cached | None = None
    output_tokens_details: _Reasoned | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


_READ: Final = msgspec.json.Decoder(_Body).decode


class Details:
    """Adds up what only the answers themselves say.

    The other figures are the ledger's: they count what was paid for, answers to requests that
    failed in the end too."""

    def __init__(self) -> None:
        self._cached = self._reasoning = 0

    def add(self, body: bytes) -> None:
        """One that is no such answer adds nothing, and takes nothing from the others."""
        try:
            usage = _READ(body).usage
        except msgspec.DecodeError:
            return
        if usage is not None:
            cached = usage.prompt_tokens_details or usage.input_tokens_details
            reasoned = usage.completion_tokens_details or usage.output_tokens_details
            self._cached += (cached and cached.cached_tokens) or 0
            self._reasoning += (reasoned and reasoned.reasoning_tokens) or 0

    def usage(self, counts: Counts) -> dict[str, Any]:
        return {
            "input_tokens": counts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self._cached},
            "output_tokens": counts.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning},
            "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        }
