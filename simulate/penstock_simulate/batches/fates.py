"""What each request of a batch gets, drawn at intake: the same luck as a call in real time."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from penstock_simulate.answers import refusals
from penstock_simulate.answers.calls import Call, misshapen
from penstock_simulate.answers.faults import Fates, Fault, Poison
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.answers.replies import declines, poison_of


class Fate(IntEnum):
    """One byte per request: its outcome is known beforehand, and shown as the clock allows."""

    GOOD = 0
    REFUSED = 1  # its body cannot be used
    THROTTLED = 2
    FAILED = 3
    OVERLOADED = 4
    TIMED_OUT = 5
    INVALID = 6
    CONTEXT = 7
    FILTERED = 8
    DECLINED = 9  # answered, with a polite no


_BY_FAULT: Mapping[Fault, Fate] = {
    Fault.THROTTLE: Fate.THROTTLED,
    Fault.ERROR: Fate.FAILED,
    Fault.OVERLOAD: Fate.OVERLOADED,
    Fault.HANG: Fate.TIMED_OUT,
}  # the other faults are those of a connection, which a request of a batch does not have
_BY_POISON: Mapping[Poison, Fate] = {
    Poison.INVALID: Fate.INVALID,
    Poison.CONTEXT: Fate.CONTEXT,
    Poison.FILTER: Fate.FILTERED,
}
_POISONS: Mapping[Fate, Poison] = {fate: poison for poison, fate in _BY_POISON.items()}


def lasting_fate(call: Call, fates: Fates, *, usable: bool) -> Fate:
    """Return what the request gets each time that it is submitted; GOOD where that is open."""
    if not usable:
        return Fate.REFUSED
    poison = poison_of(call, fates)
    if declines(call, poison):
        return Fate.DECLINED
    return Fate.GOOD if poison is None else _BY_POISON[poison]


def passing_fate(document: str, number: int, fates: Fates) -> Fate:
    """Return what it gets this time.

    ``number`` is how often batches were given the document, this one included."""
    fault = fates.draw(document, number).fault
    return Fate.GOOD if fault is None else _BY_FAULT.get(fault, Fate.GOOD)


def refusal_of(fate: Fate, call: Call) -> Refusal | None:
    """Return why the model refused the request; None where it answered, or did not get to it."""
    match fate:
        case Fate.REFUSED:
            return misshapen(call, call.body)
        case Fate.THROTTLED:
            return refusals.throttled(None)
        case Fate.FAILED:
            return refusals.failed()
        case Fate.OVERLOADED:
            return refusals.overloaded(None)
        case Fate.INVALID | Fate.CONTEXT | Fate.FILTERED:
            return refusals.poisoned(_POISONS[fate], call.prompt_tokens)
        case Fate.GOOD | Fate.DECLINED | Fate.TIMED_OUT:
            return None
