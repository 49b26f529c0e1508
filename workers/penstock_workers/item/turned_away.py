"""The one way out of the runner's recipe: a step raises, and this says which outcome or failure
that is. Pure."""

from __future__ import annotations

from penstock_ledger import JobNotFound
from penstock_producer.errors import BadReference, ProducerError, SpecError, WireError
from penstock_ratelimit import NeverFits, QuotaHeld
from penstock_workers.errors import JobCannotRun
from penstock_workers.item.failures import Failure
from penstock_workers.item.outcome import Outcome, Parked, Released, Unreadable

STOPPED = Released("this worker has stopped working on it")


class TurnedAway(Exception):
    """A step does not go on with the item. The one way out of the runner's recipe.

    ``outcome`` says what the item ends in; without one it is a suspect, and the same steps are
    taken once more, apart from other items.
    """

    def __init__(self, outcome: Outcome | None) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def outcome_of(error: Exception) -> Outcome | None:
    """The outcome of an attempt that a step refused to go on with; None for an error that no step
    raises on purpose."""
    match error:
        case TurnedAway():
            return error.outcome
        case (
            WireError() | JobNotFound() | BadReference()
        ):  # only the message is wrong: its job must not stop for it
            return Unreadable(str(error))
        case JobCannotRun() | SpecError():
            return Parked(str(error), pauses=True)
        case QuotaHeld():
            return Parked(error.reason, pauses=True)
        case ProducerError():
            return Parked(f"source_unavailable: {error}", pauses=True)
    return None


def failure_of(error: Exception) -> Failure:
    """The failure that an exception stands for where it is no reason to turn the item away."""
    if isinstance(error, NeverFits):
        return Failure("request_too_large", str(error), None)
    return Failure("unexpected_error", f"{type(error).__name__}: {error}", None)
