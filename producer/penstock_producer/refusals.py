"""Documents that end without a call: refused rows and written-off documents, as dead letters."""

from __future__ import annotations

from penstock_ledger.model import DeadLetter, ItemKey
from penstock_producer.rows import BadRow, Document

CANCELLED = "cancelled"
SOURCE_LOST = "source_lost"
DUPLICATE = "duplicate_custom_id"  # the one refusal that cannot be seen from the row alone


def refused(row: BadRow, key: ItemKey) -> DeadLetter:
    return _letter(key, row.code, str(row), row.request, row.line or None)


def written_off(document: Document, key: ItemKey) -> DeadLetter:
    return _letter(key, CANCELLED, "the job was cancelled before this document was tried", document.body, None)


def lost(key: ItemKey, why: str) -> DeadLetter:
    """Of a row of a table that was fed and is gone, or is no document any more."""
    return _letter(key, SOURCE_LOST, why, b"", None)


def _letter(key: ItemKey, reason: str, error: str, request: bytes, line: int | None) -> DeadLetter:
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
    )
