"""One reply of the provider: what to send, when, and how it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple


class Usage(NamedTuple):
    """Tokens of one call."""

    prompt: int
    completion: int
    cached: int = 0  # of the prompt, read from the cache
    written: int = 0  # of the prompt, written to it, as far as that is charged for
    extra: float = 0.0  # what writing costs beyond ordinary tokens, in those

    def plus(self, other: Usage) -> Usage:
        return Usage(
            self.prompt + other.prompt,
            self.completion + other.completion,
            self.cached + other.cached,
            self.written + other.written,
            self.extra + other.extra,
        )


NO_USAGE = Usage(0, 0)
STANDARD_TIER: Final = "default"  # the service tier of a call that asks for none, as OpenAI says it


class Manner(Enum):
    """The manner in which an answer leaves."""

    WHOLE = "whole"
    DROPPED = "dropped"  # the connection ends before the first byte
    CUT = "cut"  # the connection ends in the middle of the body
    HUNG = "hung"  # nothing at all, until the client gives up
    DRIPPED = "dripped"  # a byte at a time
    MEASURED = "measured"  # the body many times over, with its length sent first
    CHUNKED = "chunked"  # the body many times over, without a length
    RAW = "raw"  # the body is all that is sent, status line included; then the connection ends


@dataclass(slots=True, order=True)
class Turn:
    """The turn of one call, whose time is not known before it comes: others may pass it."""

    priority: int
    number: int
    arrived: float = field(compare=False)
    service_s: float = field(compare=False)
    start: float | None = field(default=None, compare=False)


class Reply(NamedTuple):
    """An answer to send, when, and how.

    ``outcome`` is its name in the statistics: a status, or how it failed to leave."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    delay_s: float = 0.0
    manner: Manner = Manner.WHOLE
    usage: Usage = NO_USAGE
    price: float = 1.0  # what its tokens cost, as a part of the ordinary price
    good: bool = False
    outcome: str = "200"
    code: str | None = None  # of the error, where it has one
    times: int = 1  # how often the body is sent, where it is sent many times over
    turn: Turn | None = None  # in a queue by priority, which its delay begins with

    @property
    def worked(self) -> bool:
        """Return whether the model did the work, even if the result did not arrive."""
        return self.usage is not NO_USAGE or self.manner is Manner.HUNG
