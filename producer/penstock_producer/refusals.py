"""Documents that end without a call: refused rows and written-off documents, as dead letters."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Final

from penstock_ledger import Remainder
from penstock_ledger.model import DeadLetter, ItemKey
from penstock_producer.errors import SourceChanged, SourceError, SourceUnavailable
from penstock_producer.rows import BadRow, Document

__all__ = ["changed_since", "lost", "lost_of", "refused"]

CANCELLED = "cancelled"
SOURCE_LOST = "source_lost"
DUPLICATE = "duplicate_custom_id"  # the one refusal that cannot be seen from the row alone
# codes of rows that are refused for what lies outside of their file begin so
OUTSIDE: Final = "media_"
_COMES_BACK: Final = frozenset({"media_unavailable", "media_forbidden"})


def no_longer(code: str, words: str) -> SourceError | None:
    """Return what it means that a row which was a document at submit is refused now.

    None where only the row itself decides.
    """
    if not code.startswith(OUTSIDE):
        return None
    return SourceUnavailable(words) if code in _COMES_BACK else SourceChanged(words)


def changed_since(rows: Iterable[BadRow], lines: Container[int]) -> list[BadRow]:
    """Return rows of a table that the survey took and that can no longer be used.

    ``lines`` are those that it refused.

    Raises SourceUnavailable or SourceChanged for a row that it took and whose image has gone: the
    job waits or fails.
    """
    rows = list(rows)
    for row in rows:
        if row.is_new:
            continue
        # without lines it is not known what was refused
        gone = no_longer(row.code, str(row)) if row.line else None
        if gone is not None and row.line not in lines:
            raise gone
    return [row for row in rows if row.is_new]


def refused(row: BadRow, key: ItemKey) -> DeadLetter:
    return _letter(key, row.code, str(row), row.request, row.line or None, row.endpoint)


def written_off(document: Document, key: ItemKey) -> DeadLetter:
    why = "the job was cancelled before this document was tried"
    return _letter(key, CANCELLED, why, document.body, None, document.endpoint)


def lost(key: ItemKey, why: str) -> DeadLetter:
    """Return the dead letter of a table's row that was fed and is gone, or is no document now."""
    return _letter(key, SOURCE_LOST, why, b"", None)


def lost_of(waiting: Remainder, why: str) -> DeadLetter:
    """Return the dead letter of a waiting document that was lost.

    What earlier attempts used up on it was paid for.
    """
    return replace(
        lost(waiting.key, why),
        attempts=waiting.attempts,
        calls=waiting.calls,
        prompt_tokens=waiting.prompt_tokens,
        completion_tokens=waiting.completion_tokens,
        cost_microusd=waiting.cost_microusd,
    )


def _letter(
    key: ItemKey,
    reason: str,
    error: str,
    request: bytes,
    line: int | None,
    endpoint: str | None = None,
) -> DeadLetter:
    return DeadLetter(
        key=key,
        reason=reason,
        attempts=0,
        calls=0,
        last_error=error,
        status_code=None,
        request=request,
        response=None,
        line=line,
        endpoint=endpoint,
    )
