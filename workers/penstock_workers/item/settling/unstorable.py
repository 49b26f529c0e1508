"""What becomes of an outcome that a store will never take: never lost, and never tried for ever."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from penstock_ledger import in_words, storable
from penstock_ledger.model import DeadLetter
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.answer import excerpt
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.outcome import Dead, Done, Parked, Retry, Unreadable

UNSTORABLE = "unstorable_outcome"  # the reason of the dead letter
EXCERPT_BYTES = 4_096  # of the answer that could not be stored whole


class Instead(NamedTuple):
    """What takes the place of a refused outcome."""

    settled: Settled
    is_to_be_written: bool  # to the store that refused the first one


Choice = Callable[[Settled, Exception], Instead]


class Unstorable:
    """Chooses, and logs a line per cause, with the first item that it came with."""

    def __init__(self, log: logging.Logger) -> None:
        self._failure_log = FailureLog(log)

    def by_sql(self, settled: Settled, error: Exception) -> Instead:
        """A result or a dead letter that SQL refuses becomes a plain dead letter; anything else is
        set aside."""
        attempt, outcome = settled
        if not isinstance(attempt, Attempt) or not isinstance(outcome, Done | Dead):
            return self.set_aside(settled, error)
        self._log("SQL", settled, error, f"becomes the dead letter `{UNSTORABLE}`")
        said = outcome.result.body if isinstance(outcome, Done) else outcome.letter.response
        was = (
            "its result"
            if isinstance(outcome, Done)
            else f"its dead letter `{storable(outcome.letter.reason)}`"
        )
        spent = attempt.spent_in_all
        letter = DeadLetter(
            key=attempt.key,
            reason=UNSTORABLE,
            attempts=attempt.number,
            calls=attempt.calls_in_all,
            last_error=f"the database will never take {was}: {in_words(error)}",
            status_code=None,
            request=attempt.given,
            response=excerpt(said, EXCERPT_BYTES),
            prompt_tokens=spent.prompt_tokens,
            completion_tokens=spent.completion_tokens,
            cost_microusd=spent.cost_microusd,
            endpoint=attempt.message.endpoint,
            unpriced=spent.unpriced,
        )
        return Instead(Settled(attempt, Dead(letter)), is_to_be_written=True)

    def by_redis(self, settled: Settled, error: Exception) -> Instead:
        """What SQL holds needs no Redis: reconciling tells it later.

        Where the message of a retry or a parked item lies, does."""
        if isinstance(settled.outcome, Retry | Parked):
            return self.set_aside(settled, error)
        self._log("Redis", settled, error, "is what SQL says; reconciling tells Redis later")
        return Instead(settled, is_to_be_written=False)

    def set_aside(self, settled: Settled, error: Exception) -> Instead:
        """The message is kept whole, for a person."""
        self._log("a store", settled, error, "is set aside for a person (penstock:parked:unknown)")
        outcome = Unreadable(f"its outcome cannot be stored: {in_words(error)}")
        return Instead(Settled(settled.item, outcome), is_to_be_written=False)

    def _log(self, store: str, settled: Settled, error: Exception, then: str) -> None:
        kind, name = type(settled.outcome).__name__.lower(), settled.delivery.task_id[:200]
        self._failure_log.tell(
            f"{store} will never take an outcome ({kind})",
            error,
            f"item {name!r} {then}",
            level=logging.ERROR,
        )
