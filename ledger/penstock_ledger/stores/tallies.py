"""Figures of a job, kept in the transaction that writes or replays its outcomes: counting must not read a million rows.

A tally is the sum of its shards. On PostgreSQL each process adds to one shard, so that group commits of several processes
do not wait for one another's row lock; a shard may be negative, their sum is not. ``OutcomeStore.recount`` counts rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite

from penstock_ledger.model import Counts
from penstock_ledger.sql.tables import outcomes, tallies
from penstock_ledger.stores.outcome_rows import COLUMNS, DEAD, OutcomeRow

SHARDS: Final = 16  # more than the processes that commit at the same moment, few enough to add up

_FIGURES: Final = ("number", "after_retry", "calls", "prompt_tokens", "completion_tokens", "cost_microusd")
_WHICH_OF_ROW: Final = itemgetter(*map(COLUMNS.index, ("job_id", "kind", "reason")))
_ATTEMPTS: Final = COLUMNS.index("attempts")
_SUMMED: Final = tuple(map(COLUMNS.index, _FIGURES[2:]))

Which = tuple[str, str, str]  # job, kind, reason ("" for results that were asked for)
Query = Select[*tuple[Any, ...]]


def add_rows(connection: Connection, rows: Iterable[OutcomeRow]) -> None:
    """Count rows that were just inserted."""
    alike: dict[Which, list[OutcomeRow]] = {}
    for row in rows:
        alike.setdefault(_WHICH_OF_ROW(row), []).append(row)
    _add(connection, {(job_id, kind, reason or ""): _sums(same) for (job_id, kind, reason), same in alike.items()})


def subtract(connection: Connection, job_id: str, counted: Sequence[Row[Any]]) -> None:
    """Take back what ``grouped`` counted: those outcomes are no longer visible."""
    sums = {(job_id, row.kind, row.reason or ""): [-int(getattr(row, name)) for name in _FIGURES] for row in counted}
    _add(connection, sums)


def grouped(*conditions: Any) -> Query:
    """Counts outcomes themselves, by kind and reason."""
    return (
        select(
            outcomes.c.kind,
            outcomes.c.reason,
            func.count().label("number"),
            func.count().filter(outcomes.c.attempts > 1).label("after_retry"),
            *(_total(outcomes.c[name]) for name in _FIGURES[2:]),
        )
        .where(*conditions)
        .group_by(outcomes.c.kind, outcomes.c.reason)
    )


@cache
def tallied() -> Query:
    """The same of one ``job``, from the tallies. Built once: building it costs more than running it."""
    return (
        select(tallies.c.kind, tallies.c.reason, *(_total(tallies.c[name]) for name in _FIGURES))
        .where(tallies.c.job_id == bindparam("job"))
        .group_by(tallies.c.kind, tallies.c.reason)
    )


def counts_from(rows: Sequence[Row[Any]]) -> Counts:
    dead = {row.reason: int(row.number) for row in rows if row.kind == DEAD and row.number}
    results = [row for row in rows if row.kind != DEAD]
    asked = [row for row in rows if row.kind == DEAD or not row.reason]  # the others show the tokens of another's call
    return Counts(
        succeeded=sum(int(row.number) for row in results),
        succeeded_after_retry=sum(int(row.after_retry) for row in results),
        dead=sum(dead.values()),
        dead_by_reason=dead,
        calls=sum(int(row.calls) for row in rows),
        prompt_tokens=sum(int(row.prompt_tokens) for row in asked),
        completion_tokens=sum(int(row.completion_tokens) for row in asked),
        cost_microusd=sum(int(row.cost_microusd) for row in rows),
        reused={row.reason: int(row.number) for row in results if row.reason and row.number},
    )


def _add(connection: Connection, sums: dict[Which, list[int]]) -> None:
    if not sums:
        return
    on_sqlite = connection.dialect.name == "sqlite"
    shard = 0 if on_sqlite else os.getpid() % SHARDS
    rows = [
        {"job_id": job_id, "shard": shard, "kind": kind, "reason": reason, **dict(zip(_FIGURES, figures, strict=True))}
        for (job_id, kind, reason), figures in sorted(sums.items())
    ]
    connection.execute(_grow(on_sqlite), rows)


@cache
def _grow(on_sqlite: bool) -> Any:
    """The statement, built once: building it costs more than running it."""
    new = (sqlite if on_sqlite else postgresql).insert(tallies)
    return new.on_conflict_do_update(
        index_elements=["job_id", "shard", "kind", "reason"],
        set_={name: tallies.c[name] + new.excluded[name] for name in _FIGURES},
    )


def _sums(rows: Sequence[OutcomeRow]) -> list[int]:
    columns = list(zip(*rows, strict=True))
    after_retry = len([attempts for attempts in columns[_ATTEMPTS] if attempts > 1])
    return [len(rows), after_retry, *(sum(filter(None, columns[place])) for place in _SUMMED)]


def _total(column: Any) -> Any:
    return func.coalesce(func.sum(column), 0).label(column.name)
