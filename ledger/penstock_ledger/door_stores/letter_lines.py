"""Dead letters as a list shows them: without the bodies that they keep."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, func, literal_column, select, tuple_

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import outcomes

__all__ = ["LetterLine", "letter_lines"]

ERROR_CHARS: Final = 600  # of what went wrong: more than a line of a table has room for
_IS_DEAD: Final[ColumnElement[bool]] = literal_column(
    "kind = 'dead'"
)  # literal, so that the partial index is used


class LetterLine(NamedTuple):
    """One dead letter."""

    generation: int
    doc_id: str
    reason: str
    attempts: int
    status_code: int | None
    last_error: str  # cut
    created_at: float
    replayable: bool  # a row that never parsed has no request to send again


def letter_lines(
    db: Database,
    job_id: str,
    *,
    reason: str | None = None,
    after: tuple[int, str] | None = None,
    limit: int,
) -> list[LetterLine]:
    """Visible dead letters by generation and document id, those behind ``after``."""
    place = tuple_(outcomes.c.generation, outcomes.c.doc_id)
    query: Any = (
        select(
            outcomes.c.generation,
            outcomes.c.doc_id,
            outcomes.c.reason,
            outcomes.c.attempts,
            outcomes.c.status_code,
            func.substr(outcomes.c.last_error, 1, ERROR_CHARS).label("last_error"),
            outcomes.c.created_at,
            (func.length(outcomes.c.request) > 0).label("replayable"),
        )
        .where(outcomes.c.job_id == job_id, _IS_DEAD, outcomes.c.superseded_by.is_(None))
        .order_by(outcomes.c.generation, outcomes.c.doc_id)
        .limit(limit)
    )
    if reason is not None:
        query = query.where(outcomes.c.reason == reason)
    if after is not None:
        query = query.where(place > after)
    rows = db.read(lambda connection: connection.execute(query).all())
    return [
        LetterLine(
            row.generation,
            row.doc_id,
            row.reason or "",
            row.attempts,
            row.status_code,
            row.last_error or "",
            row.created_at,
            bool(row.replayable),
        )
        for row in rows
    ]
