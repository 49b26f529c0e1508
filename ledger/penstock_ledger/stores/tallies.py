"""Figures of a job, kept in the transaction that writes or replays its outcomes: counting must not read a million rows.

A tally is the sum of its shards. On PostgreSQL each process adds to one shard, so that group commits of several processes
do not wait for one another's row lock; a shard may be negative, their sum is not. ``OutcomeStore.recount`` counts rows.

What was paid for besides outcomes has a row for each payment, so that the same one is never added twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, Table, bindparam, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from penstock_ledger.model import Beside, Counts, ItemKey, LaneCounts, PaidBeside
from penstock_ledger.sql.tables import lane_tallies, outcomes, paid_beside, tallies
from penstock_ledger.stored_values import bounded_count, bounded_figure
from penstock_ledger.stores.outcome_rows import COLUMNS, DEAD, KEY_COLUMNS, OutcomeRow

SHARDS: Final = 16  # more than the processes that commit at the same moment, few enough to add up

_FIGURES: Final = ("number", "after_retry", "calls", "prompt_tokens", "completion_tokens", "cost_microusd")
_OF_LANE: Final = ("number", "dead", "calls", "prompt_tokens", "completion_tokens", "cost_microusd")
_WHICH_OF_ROW: Final = itemgetter(*map(COLUMNS.index, ("job_id", "kind", "reason")))
_KIND, _REASON = map(COLUMNS.index, ("kind", "reason"))
_LANE_OF_ROW: Final = itemgetter(*map(COLUMNS.index, ("job_id", "lane")))
_ATTEMPTS: Final = COLUMNS.index("attempts")
_SUMMED: Final = tuple(map(COLUMNS.index, _FIGURES[2:]))

_WHICH_BESIDE: Final = itemgetter("job_id", "generation", "doc_id", "answer")

SECOND_ANSWER: Final = "second_answer"
LANE_LEFT: Final = "lane_left"
_CALLS, _CREATED = COLUMNS.index("calls"), COLUMNS.index("created_at")
_STORED: Final = select(outcomes).where(
    *(outcomes.c[name] == bindparam(f"its_{name}") for name in ("job_id", "generation", "doc_id"))
)

Which = tuple[str, ...]  # job, kind, reason ("" for results that were asked for); or job, lane
Query = Select[*tuple[Any, ...]]


def add_rows(connection: Connection, rows: Iterable[OutcomeRow]) -> None:
    """Count rows that were just inserted."""
    alike: dict[Which, list[OutcomeRow]] = {}
    of_lane: dict[tuple[str, str], list[OutcomeRow]] = {}
    for row in rows:
        alike.setdefault(_WHICH_OF_ROW(row), []).append(row)
        job_id, lane = _LANE_OF_ROW(row)
        if lane is not None:
            of_lane.setdefault((job_id, lane), []).append(row)
    _add(connection, {(job_id, kind, reason or ""): _sums(same) for (job_id, kind, reason), same in alike.items()})
    _add_to_lanes(connection, {which: _lane_sums(same) for which, same in of_lane.items()})


def add_second_answers(connection: Connection, rows: Iterable[OutcomeRow]) -> None:
    """Note those of ``rows``, which lost to outcomes that were there before, that were paid for and say something else: the
    same outcome written again is no other answer."""
    found = list[dict[str, Any]]()
    for row in rows:
        if not row[_CALLS]:
            continue
        key = ItemKey(*row[:KEY_COLUMNS])
        stored = connection.execute(_STORED, {f"its_{name}": value for name, value in key._asdict().items()}).first()
        if stored is not None and _said(stored) != _said(row):
            spent = PaidBeside(key, *(row[place] or 0 for place in _SUMMED))
            found.append(_beside(spent, sha256(repr(_said(row)).encode()).hexdigest()[:32], SECOND_ANSWER))
    _insert_beside(connection, found)


def add_left(connection: Connection, spent: Iterable[PaidBeside]) -> None:
    """Note what attempts in a lane used up that its job has left before they came to an outcome."""
    _insert_beside(connection, [_beside(one, f"lane-left-{one.calls}", LANE_LEFT) for one in spent])


def add_beside(connection: Connection, spent: Iterable[PaidBeside], answer: str) -> None:
    """The same of provider batches. ``answer`` names it among all that was paid for its document."""
    _insert_beside(connection, [_beside(one, answer, LANE_LEFT) for one in spent])


def _said(row: Sequence[Any]) -> tuple[Any, ...]:
    """All that makes an answer this one: not when it was stored, and not what came of the document later."""
    return tuple(
        bytes(value) if isinstance(value, bytes | memoryview) else value
        for place, value in enumerate(row)
        if place != _CREATED and COLUMNS[place] != "superseded_by"
    )


def _beside(spent: PaidBeside, answer: str, why: str) -> dict[str, Any]:
    return {
        **spent.key._asdict(), "answer": answer, "why": why, "calls": bounded_count(spent.calls),
        "prompt_tokens": bounded_figure(spent.prompt_tokens), "completion_tokens": bounded_figure(spent.completion_tokens),
        "cost_microusd": bounded_figure(spent.cost_microusd), "at": time.time(),
    }  # fmt: skip


def _insert_beside(connection: Connection, rows: list[dict[str, Any]]) -> None:
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    if rows:
        rows.sort(key=_WHICH_BESIDE)  # two processes that note the same wait for one another in the same order
        connection.execute(dialect.insert(paid_beside).on_conflict_do_nothing(), rows)


def subtract(connection: Connection, job_id: str, *conditions: Any) -> int:
    """Take the job's outcomes that fulfil ``conditions`` out of the tallies, as they are no longer visible; returns how many
    they are."""
    counted = connection.execute(grouped(outcomes.c.job_id == job_id, *conditions)).all()
    sums: dict[Which, list[int]] = {
        (job_id, row.kind, row.reason or ""): [-int(getattr(row, name)) for name in _FIGURES] for row in counted
    }
    _add(connection, sums)
    in_lanes = connection.execute(_grouped_by_lane(outcomes.c.job_id == job_id, *conditions)).all()
    _add_to_lanes(connection, {(job_id, row.lane): [-int(getattr(row, name)) for name in _OF_LANE] for row in in_lanes})
    return sum(int(row.number) for row in counted)


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


def tallied_of(job_ids: Sequence[str]) -> Query:
    """The same of several jobs, with `job_id`."""
    return (
        select(tallies.c.job_id, tallies.c.kind, tallies.c.reason, *(_total(tallies.c[name]) for name in _FIGURES))
        .where(tallies.c.job_id.in_(job_ids))
        .group_by(tallies.c.job_id, tallies.c.kind, tallies.c.reason)
    )


def beside_of(job_ids: Sequence[str]) -> Query:
    """What was paid besides outcomes of several jobs, with `job_id`."""
    of_jobs = beside(paid_beside.c.job_id.in_(job_ids))
    return of_jobs.add_columns(paid_beside.c.job_id).group_by(paid_beside.c.job_id)


@cache
def tallied_by_lane() -> Query:
    """Of one ``job``."""
    return (
        select(lane_tallies.c.lane, *(_total(lane_tallies.c[name]) for name in _OF_LANE))
        .where(lane_tallies.c.job_id == bindparam("job"))
        .group_by(lane_tallies.c.lane)
        .order_by(lane_tallies.c.lane)
    )


def lane_counts_from(rows: Sequence[Row[Any]]) -> list[LaneCounts]:
    """Lanes all of whose outcomes were replayed since are left out."""
    found = [[int(getattr(row, name)) for name in _OF_LANE] for row in rows]
    return [
        LaneCounts(row.lane, number - dead, dead, *others)
        for row, (number, dead, *others) in zip(rows, found, strict=True)
        if number
    ]


def beside(*conditions: Any) -> Query:
    """What was paid besides outcomes, by why."""
    return (
        select(
            paid_beside.c.why,
            func.count(paid_beside.c.doc_id.distinct()).label("number"),
            *(_total(paid_beside.c[name]) for name in _FIGURES[2:]),
        )
        .where(*conditions)
        .group_by(paid_beside.c.why)
    )


@cache
def beside_job() -> Query:
    """Of one ``job``. Built once, as ``tallied``."""
    return beside(paid_beside.c.job_id == bindparam("job"))


def counts_from(rows: Sequence[Row[Any]], paid: Sequence[Row[Any]] = ()) -> Counts:
    """``paid``: what ``beside`` has found."""
    dead = {row.reason: int(row.number) for row in rows if row.kind == DEAD and row.number}
    results = [row for row in rows if row.kind != DEAD]
    asked = [row for row in rows if row.kind == DEAD or not row.reason]  # the others show the tokens of another's call
    reused = [row for row in results if row.reason and row.number]
    return Counts(
        succeeded=sum(int(row.number) for row in results),
        succeeded_after_retry=sum(int(row.after_retry) for row in results),
        dead=sum(dead.values()),
        dead_by_reason=dead,
        calls=sum(int(row.calls) for row in (*rows, *paid)),
        prompt_tokens=sum(int(row.prompt_tokens) for row in (*asked, *paid)),
        completion_tokens=sum(int(row.completion_tokens) for row in (*asked, *paid)),
        cost_microusd=sum(int(row.cost_microusd) for row in (*rows, *paid)),
        reused={row.reason: int(row.number) for row in reused},
        reused_tokens={row.reason: (int(row.prompt_tokens), int(row.completion_tokens)) for row in reused},
        answered_twice=sum(int(row.number) for row in paid if row.why == SECOND_ANSWER),
        twice_microusd=sum(int(row.cost_microusd) for row in paid if row.why == SECOND_ANSWER),
        beside=Beside(*(sum(int(getattr(row, name)) for row in paid) for name in Beside._fields)),
    )


def _add(connection: Connection, sums: Mapping[Which, list[int]]) -> None:
    _grow(connection, tallies, ("job_id", "kind", "reason"), _FIGURES, sums)


def _add_to_lanes(connection: Connection, sums: Mapping[tuple[str, str], list[int]]) -> None:
    _grow(connection, lane_tallies, ("job_id", "lane"), _OF_LANE, sums)


def _grow(
    connection: Connection, table: Table, of: tuple[str, ...], figures: tuple[str, ...], sums: Mapping[Any, list[int]]
) -> None:
    if not sums:
        return
    on_sqlite = connection.dialect.name == "sqlite"
    shard = 0 if on_sqlite else os.getpid() % SHARDS
    rows = [
        {"shard": shard, **dict(zip(of, which, strict=True)), **dict(zip(figures, more, strict=True))}
        for which, more in sorted(sums.items())
    ]
    connection.execute(_growing(on_sqlite, table, of, figures), rows)


@cache
def _growing(on_sqlite: bool, table: Table, of: tuple[str, ...], figures: tuple[str, ...]) -> Any:
    """The statement, built once: building it costs more than running it."""
    new = (sqlite if on_sqlite else postgresql).insert(table)
    return new.on_conflict_do_update(
        index_elements=["shard", *of], set_={name: table.c[name] + new.excluded[name] for name in figures}
    )


def _sums(rows: Sequence[OutcomeRow]) -> list[int]:
    columns = list(zip(*rows, strict=True))
    after_retry = len([attempts for attempts in columns[_ATTEMPTS] if attempts > 1])
    return [len(rows), after_retry, *(sum(filter(None, columns[place])) for place in _SUMMED)]


def _lane_sums(rows: Sequence[OutcomeRow]) -> list[int]:
    """Results that were reused show the tokens of another's call: they count without them."""
    asked = [row for row in rows if row[_KIND] == DEAD or not row[_REASON]]
    dead = len([row for row in asked if row[_KIND] == DEAD])
    columns = list(zip(*asked, strict=True))
    sums = [sum(filter(None, columns[place])) for place in _SUMMED] if columns else [0] * len(_SUMMED)
    return [len(rows), dead, *sums]


def _grouped_by_lane(*conditions: Any) -> Query:
    """As ``_lane_sums`` adds up rows."""
    is_dead = outcomes.c.kind == DEAD
    asked = or_(is_dead, outcomes.c.reason.is_(None))
    return (
        select(
            outcomes.c.lane,
            func.count().label("number"),
            func.count().filter(is_dead).label("dead"),
            *(func.coalesce(func.sum(outcomes.c[name]).filter(asked), 0).label(name) for name in _OF_LANE[2:]),
        )
        .where(*conditions, outcomes.c.lane.is_not(None))
        .group_by(outcomes.c.lane)
    )


def _total(column: Any) -> Any:
    return func.coalesce(func.sum(column), 0).label(column.name)
