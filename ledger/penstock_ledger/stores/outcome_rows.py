"""Outcomes as rows: one flat tuple per item, in the order of the table's columns."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, func

from penstock_ledger.model import DeadLetter, ItemKey, Result
from penstock_ledger.sql.tables import outcomes
from penstock_ledger.stored_values import bounded_count, bounded_figure, storable
from penstock_ledger.vectors import as_json

OutcomeRow = tuple[Any, ...]
COLUMNS: Final = tuple(column.name for column in outcomes.columns)
# What a result is read from: its key, then its fields in their order.
RESULT_COLUMNS: Final = (
    outcomes.c.job_id,
    outcomes.c.generation,
    outcomes.c.doc_id,
    *(outcomes.c[name] for name in Result.__struct_fields__[1:]),
)
_result_values: Final = itemgetter(*(COLUMNS.index(column.name) for column in RESULT_COLUMNS))
KEY_COLUMNS: Final = 3  # the first columns are the key: job_id, generation, doc_id
RESULT: Final = "result"
DEAD: Final = "dead"
# ``DeadLetter.replayable`` in SQL: replays take these, and pages offer them.
REPLAYABLE: Final[ColumnElement[bool]] = func.length(outcomes.c.request) > 0


def key_of(row: OutcomeRow) -> ItemKey:
    return ItemKey(*row[:KEY_COLUMNS])


def result_row(result: Result, now: float, lane: str | None = None) -> OutcomeRow:
    return (
        *result.key,
        RESULT,
        None,
        result.reason,
        bounded_count(result.attempts),
        bounded_count(result.calls),
        bounded_figure(result.prompt_tokens),
        bounded_figure(result.completion_tokens),
        bounded_figure(result.cost_microusd),
        bounded_figure(result.latency_ms),
        result.status_code,
        storable(result.request_id),
        storable(result.model),
        storable(result.finish_reason),
        None,
        None,
        now,
        None,
        result.body,
        lane,
        storable(result.endpoint),
        bounded_count(result.unpriced or 0),
    )


def dead_letter_row(letter: DeadLetter, now: float, lane: str | None = None) -> OutcomeRow:
    return (
        *letter.key,
        DEAD,
        None,
        storable(letter.reason),
        bounded_count(letter.attempts),
        bounded_count(letter.calls),
        bounded_figure(letter.prompt_tokens),
        bounded_figure(letter.completion_tokens),
        bounded_figure(letter.cost_microusd),
        bounded_figure(letter.latency_ms),
        letter.status_code,
        None,
        None,
        None,
        storable(letter.last_error),
        letter.line,
        now,
        letter.request,
        letter.response,
        lane,
        storable(letter.endpoint),
        bounded_count(letter.unpriced or 0),
    )


def outcome_from(row: Row[Any]) -> Result | DeadLetter:
    """Return the outcome of a row with all columns."""
    return result_from(_result_values(row)) if row.kind == RESULT else dead_letter_from(row)


def result_from(values: Sequence[Any]) -> Result:
    """Read ``RESULT_COLUMNS`` by place.

    Looking each up by its name costs more than reading the row did."""
    job_id, generation, doc_id, status_code, body, *rest = values
    return Result(ItemKey(job_id, generation, doc_id), status_code, as_json(body), *rest)


def stored_result_from(row: Row[Any]) -> Result:
    """Return the result of a row with all columns, embeddings as they are stored."""
    fields = [getattr(row, name) for name in Result.__struct_fields__[1:]]
    return Result(ItemKey(row.job_id, row.generation, row.doc_id), *fields)


def stored_from(row: Row[Any]) -> Result | DeadLetter:
    """Return the outcome of a row with all columns, embeddings as they are stored."""
    return stored_result_from(row) if row.kind == RESULT else dead_letter_from(row)


def dead_letter_from(row: Row[Any]) -> DeadLetter:
    return DeadLetter(
        key=ItemKey(row.job_id, row.generation, row.doc_id),
        reason=row.reason,
        attempts=row.attempts,
        calls=row.calls,
        last_error=row.last_error,
        status_code=row.status_code,
        request=row.request,
        response=row.body,
        line=row.line,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        cost_microusd=row.cost_microusd,
        latency_ms=row.latency_ms,
        created_at=row.created_at,
        endpoint=row.endpoint,
        unpriced=row.unpriced,
    )
