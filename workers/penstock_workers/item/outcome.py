"""An attempt ends in an outcome. ``fates.py`` chooses it, ``settle.py`` makes it durable."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from penstock_ledger.model import DeadLetter, Result
from penstock_ledger.reasons import Reason


class Done(Struct, frozen=True):  # as Result: one per item
    """The item has its result."""

    result: Result


@dataclass(frozen=True, slots=True)
class Dead:
    """The item has failed for good."""

    letter: DeadLetter


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again, not before ``after_s`` seconds from now."""

    after_s: float
    name: str  # of the failure, as in the table of fates
    detail: str = ""  # what was said of it
    # False where the item is not at fault (a rate limit, a busy server): it costs no attempt
    counted: bool = True
    rate_limited: bool = False
    # another queue than it came from: that of the next model of its job's `fallback`
    to: str | None = None

    @property
    def error(self) -> str:
        """The failure in words, for people."""
        return f"{self.name}: {self.detail}" if self.detail else self.name


@dataclass(frozen=True, slots=True)
class Released:
    """The outcome of an item that was not tried, or that this worker stopped.

    It is given back at once, and no attempt counts."""

    why: str
    # the name of the failure, where it was in flight as its engine died: its start stays counted,
    # as after the death of a worker
    crashed: str | None = None
    to: str | None = None  # another queue than it came from: that of the model which it names


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing to do: the item is finished, or its job is cancelled or in another lane."""

    why: str
    left_lane: bool = False  # the document goes on there: what was used up on it here is noted


@dataclass(frozen=True, slots=True)
class Parked:
    """The item waits outside the queue until its job is resumed."""

    why: str = ""  # where that is no pause of its own
    pauses: Reason | None = None  # the job itself is paused for this
    # the job goes on by itself after so many seconds; None = when a person says so
    ends_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The message names no item that this worker knows.

    It is set aside for a person, never dropped."""

    why: str


Outcome = Done | Dead | Retry | Released | Skipped | Parked | Unreadable
