"""What Celery's request gets for an outcome, in the form of its own pools: (failed, report or None,
runtime in s).

A report has the shape of an ExceptionInfo, without a traceback to format.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery.exceptions import Retry as CeleryRetry

from penstock_workers.item.outcome import Dead, Done, Outcome, Retry

ERROR_MAX_CHARS = 300  # a provider's message may quote the request; the ledger has all of it


class ItemFailed(Exception):
    """The item is a dead letter."""


class ItemWillRetry(Exception):
    """The item waits for its next attempt."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Read by celery.worker.request.Request: an exception for the event, and the text under it."""

    exception: Exception
    traceback: str


def celery_result(outcome: Outcome) -> tuple[int, ErrorReport | None, float]:
    """Of an outcome whose message is acknowledged."""
    match outcome:
        case Done(result):
            return 0, None, result.latency_ms / 1000
        case Dead(letter):
            return (
                1,
                ErrorReport(ItemFailed(_cut(f"{letter.reason}: {letter.last_error}")), ""),
                0.0,
            )
        case Retry(after_s, error):
            words = _cut(error)
            return (
                1,
                ErrorReport(CeleryRetry(words, exc=ItemWillRetry(words), when=after_s), ""),
                0.0,
            )
        case _:  # nothing was run: it was finished before, or is parked
            return 0, None, 0.0


def _cut(text: str) -> str:
    return text if len(text) <= ERROR_MAX_CHARS else text[: ERROR_MAX_CHARS - 1] + "…"
