"""What Celery wants to see of an item that did not succeed: the shape of an ExceptionInfo, without a traceback to format."""

from __future__ import annotations

from dataclasses import dataclass

from celery.exceptions import Retry

from penstock_workers.celery_app.bridge import Acked, Retried

ERROR_MAX_CHARS = 300  # a provider's words may quote the request; whole they are in the ledger


class ItemFailed(Exception):
    """The item is a dead letter."""


class ItemWillRetry(Exception):
    """The item waits for its next try."""


@dataclass(frozen=True, slots=True)
class Report:
    """Read by celery.worker.request.Request: an exception for the event, and the text under it."""

    exception: Exception
    traceback: str


def failure_report(verdict: Acked) -> Report:
    return Report(ItemFailed(_cut(verdict.error or "failed")), "")


def retry_report(verdict: Retried) -> Report:
    error = _cut(verdict.error)
    return Report(Retry(error, exc=ItemWillRetry(error), when=verdict.after_s), "")


def _cut(text: str) -> str:
    return text if len(text) <= ERROR_MAX_CHARS else text[: ERROR_MAX_CHARS - 1] + "…"
