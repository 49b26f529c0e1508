"""What can become of an item in one try. Deciding is in ``judge.py``, doing is in ``settle.py``; this is the value between."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_ledger.model import DeadLetter, Result


@dataclass(frozen=True, slots=True)
class Done:
    """The item has its result."""

    result: Result


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again, not before ``after_s`` seconds from now.

    ``counted`` is False when the try was no fault of the item (a rate limit, an overloaded server): it then costs no attempt.
    """

    after_s: float
    error: str
    counted: bool = True
    rate_limited: bool = False


@dataclass(frozen=True, slots=True)
class Dead:
    """The item has failed for good."""

    letter: DeadLetter


@dataclass(frozen=True, slots=True)
class Released:
    """Not tried, or given up by us: the message goes back to the queue at once and no attempt is counted."""

    why: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing to do: the item is already finished (or its job is). The message is acknowledged and forgotten."""

    why: str


Outcome = Done | Retry | Dead | Released | Skipped
