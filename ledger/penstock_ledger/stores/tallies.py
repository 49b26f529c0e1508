"""Figures of a job, kept in the transaction that writes or replays its outcomes.

Counting must not read a million rows.

A tally is the sum of its shards. On PostgreSQL each process adds to one shard, so that group
commits of several processes do not wait for one another's row lock; a shard may be negative, their
sum is not. ``OutcomeStore.recount`` counts rows.

What was paid for besides outcomes has a row for each payment, so that the same one is never added
twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, bindparam, func, literal, or_, select, union_all
from sqlalchemy.dialects import postgresql, sqlite

from penstock_ledger.model import Counts, ItemKey, LaneCounts, Paid, PaidBeside
from penstock_ledger.sql.tables import jobs, lane_tallies, outcomes, paid_beside, spending, tallies
from penstock_ledger.stored_values import bounded_count, bounded_figure
from penstock_ledger.stores.account import (
    LANE_LEFT,
    PROMPT_CACHE,
    PURGED,
    RETRIED,
    SECOND_ANSWER,
    add_spent,
    add_superseded,
    grow,
    superseded_by,
)
from penstock_ledger.stores.outcome_rows import COLUMNS, DEAD, KEY_COLUMNS, OutcomeRow

_PAID: Final = Paid._fields
_FIGURES: Final = ("number", "after_retry", *_PAID)
_OF_LANE: Final = ("number", "dead", *_PAID)
_WHICH_OF_ROW: Final = itemgetter(*map(COLUMNS.index, ("job_id", "kind", "reason")))
_KIND, _REASON = map(COLUMNS.index, ("kind", "reason"))
_LANE_OF_ROW: Final = itemgetter(*map(COLUMNS.index, ("job_id", "lane")))
_ATTEMPTS: Final = COLUMNS.index("attempts")
_SUMMED: Final = tuple(map(COLUMNS.index, _PAID))

_KEY_BESIDE: Final = tuple(paid_beside.c[name] for name in ItemKey._fields)
_WHICH_BESIDE: Final = itemgetter("job_id", "generation", "doc_id", "answer")

_CALLS, _CREATED = COLUMNS.index("calls"), COLUMNS.index("created_at")
_STORED: Final = select(outcomes).where(
    *(outcomes.c[name] == bindparam(f"its_{name}") for name in ("job_id", "generation", "doc_id"))
)

_NOTED: Final = select(*(func.coalesce(func.sum(paid_beside.c[name]), 0) for name in _PAID)).where(
    paid_beside.c.why == RETRIED,
    *(
        paid_beside.c[name] == bindparam(f"its_{name}")
        for name in ("job_id", "generation", "doc_id")
    ),
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
    _add(
        connection,
        {
            (job_id, kind, reason or ""): _sums(same)
            for (job_id, kind, reason), same in alike.items()
        },
    )
    _add_to_lanes(connection, {which: _lane_sums(same) for which, same in of_lane.items()})


def add_second_answers(
    connection: Connection, rows: Iterable[OutcomeRow], earlier: Mapping[ItemKey, Paid]
) -> set[ItemKey]:
    """Note the answers that lost to earlier ones, were paid for, and say something else.

    The same outcome written again is no other answer. ``earlier``: what they say of earlier
    attempts, which is noted elsewhere. Returns those that were noted now."""
    found = list[dict[str, Any]]()
    for row in rows:
        if not row[_CALLS]:
            continue
        key = ItemKey(*row[:KEY_COLUMNS])
        stored = connection.execute(
            _STORED, {f"its_{name}": value for name, value in key._asdict().items()}
        ).first()
        own = Paid(*(row[place] or 0 for place in _SUMMED)).beyond(earlier.get(key, Paid()))
        if stored is None or _said(stored) != _said(row):  # None: its job was purged
            answer = sha256(repr(_said(row)).encode()).hexdigest()[:32]
            found.append(_beside(PaidBeside(key, *own), answer, SECOND_ANSWER))
    return _insert_beside(connection, found)


def add_retried(connection: Connection, spent: Iterable[tuple[str, PaidBeside]]) -> set[ItemKey]:
    """Note what attempts used up after which there is another one, each by its own name.

    Returns those that were noted now."""
    return _insert_beside(connection, [_beside(one, name, RETRIED) for name, one in spent])


def add_left(connection: Connection, spent: Iterable[PaidBeside]) -> None:
    """Note what attempts used up in a lane that their job has left, beyond what is noted.

    They came to no outcome. Where their document has an outcome by now, that took in what was
    noted."""
    rows = list[dict[str, Any]]()
    for one in spent:
        key = {f"its_{name}": value for name, value in one.key._asdict().items()}
        if connection.execute(_STORED, key).first() is not None:
            continue
        beyond = Paid(*one[1:-1]).beyond(tuple(map(int, connection.execute(_NOTED, key).one())))
        if any(beyond):
            rows.append(_beside(PaidBeside(one.key, *beyond), f"lane-left-{one.calls}", LANE_LEFT))
    _insert_beside(connection, rows)


def add_beside(connection: Connection, spent: Iterable[PaidBeside], answer: str) -> set[ItemKey]:
    """Note what was paid for provider batches beside outcomes.

    ``answer`` names it among all that was paid for its document. Returns those that were noted
    now."""
    return _insert_beside(connection, [_beside(one, answer, LANE_LEFT) for one in spent])


def add_kept(connection: Connection, spent: PaidBeside, answer: str) -> bool:
    """Note what an explicit cache cost, which is named in the place of a document.

    Returns whether it was noted now."""
    return bool(_insert_beside(connection, [_beside(spent, answer, PROMPT_CACHE)]))


def _said(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return all that makes an answer this one.

    That is not when it was stored, and not what came of the document later."""
    return tuple(
        bytes(value) if isinstance(value, bytes | memoryview) else value
        for place, value in enumerate(row)
        if place != _CREATED and COLUMNS[place] != "superseded_by"
    )


def _beside(spent: PaidBeside, answer: str, why: str) -> dict[str, Any]:
    return {
        **spent.key._asdict(),
        "answer": answer,
        "why": why,
        "calls": bounded_count(spent.calls),
        "prompt_tokens": bounded_figure(spent.prompt_tokens),
        "completion_tokens": bounded_figure(spent.completion_tokens),
        "cost_microusd": bounded_figure(spent.cost_microusd),
        "unpriced": bounded_count(spent.unpriced),
        "escalations": bounded_count(spent.escalations),
        "at": time.time(),
    }


def _insert_beside(connection: Connection, rows: list[dict[str, Any]]) -> set[ItemKey]:
    """Insert the rows that are not there; returns of which documents.

    Of jobs that were purged nothing is left but their accounts: there it goes to those."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    if not rows:
        return set()
    its_jobs = select(jobs.c.job_id).where(jobs.c.job_id.in_({row["job_id"] for row in rows}))
    there = set(connection.execute(its_jobs).scalars())
    gone = [row for row in rows if row["job_id"] not in there]
    for row in gone:
        add_spent(
            connection,
            row["job_id"],
            Paid(*(row[name] for name in _PAID)),
            kind=PURGED,
            generation=row["generation"],
            documents=int(row["why"] == SECOND_ANSWER),
        )
    noted = {ItemKey(*(row[name] for name in ItemKey._fields)) for row in gone}
    if len(gone) < len(rows):
        # two processes that note the same wait for one another in the same order
        rows = sorted((row for row in rows if row["job_id"] in there), key=_WHICH_BESIDE)
        new = dialect.insert(paid_beside).on_conflict_do_nothing().returning(*_KEY_BESIDE)
        noted |= {ItemKey(*row) for row in connection.execute(new, rows)}
    return noted


def supersede(connection: Connection, job_id: str, generation: int) -> int:
    """Take dead letters that ``generation`` replays out of the tallies.

    They are no longer visible; what they cost is kept in the job's account. Returns how many they
    are."""
    conditions = (outcomes.c.superseded_by == generation,)
    counted = connection.execute(grouped(outcomes.c.job_id == job_id, *conditions)).all()
    sums: dict[Which, list[int]] = {
        (job_id, row.kind, row.reason or ""): [-int(getattr(row, name)) for name in _FIGURES]
        for row in counted
    }
    _add(connection, sums)
    in_lanes = connection.execute(_grouped_by_lane(outcomes.c.job_id == job_id, *conditions)).all()
    _add_to_lanes(
        connection,
        {(job_id, row.lane): [-int(getattr(row, name)) for name in _OF_LANE] for row in in_lanes},
    )
    add_superseded(connection, job_id, generation, superseded_by(connection, job_id, generation))
    return sum(int(row.number) for row in counted)


def grouped(*conditions: Any) -> Query:
    """Return a query that counts outcomes themselves, by kind and reason."""
    return (
        select(
            outcomes.c.kind,
            outcomes.c.reason,
            func.count().label("number"),
            func.count().filter(outcomes.c.attempts > 1).label("after_retry"),
            *(_total(outcomes.c[name]) for name in _PAID),
        )
        .where(*conditions)
        .group_by(outcomes.c.kind, outcomes.c.reason)
    )


@cache
def tallied() -> Query:
    """Return the same of one ``job``, from the tallies.

    Built once: building it costs more than running it."""
    return (
        select(tallies.c.kind, tallies.c.reason, *(_total(tallies.c[name]) for name in _FIGURES))
        .where(tallies.c.job_id == bindparam("job"))
        .group_by(tallies.c.kind, tallies.c.reason)
    )


def tallied_of(job_ids: Sequence[str]) -> Query:
    """Return the same of several jobs, with `job_id`."""
    return (
        select(
            tallies.c.job_id,
            tallies.c.kind,
            tallies.c.reason,
            *(_total(tallies.c[name]) for name in _FIGURES),
        )
        .where(tallies.c.job_id.in_(job_ids))
        .group_by(tallies.c.job_id, tallies.c.kind, tallies.c.reason)
    )


@cache
def tallied_by_lane() -> Any:
    """Return the visible outcomes of one ``job`` by the lane that answered.

    What it has spent there besides is in it, too."""
    of_job: Any = bindparam("job")
    visible = (lane_tallies.c[name].label(name) for name in ("lane", *_OF_LANE))
    besides = (spending.c[name].label(name) for name in _PAID)
    parts = union_all(
        select(*visible).where(lane_tallies.c.job_id == of_job),
        select(spending.c.lane, literal(0), literal(0), *besides).where(
            spending.c.job_id == of_job, spending.c.lane != ""
        ),
    ).subquery()
    return (
        select(parts.c.lane, *(_total(parts.c[name]) for name in _OF_LANE))
        .group_by(parts.c.lane)
        .order_by(parts.c.lane)
    )


def lane_counts_from(rows: Sequence[Row[Any]]) -> list[LaneCounts]:
    """Return the counts of lanes, without those where nothing is visible and nothing was spent."""
    found = [[int(getattr(row, name)) for name in _OF_LANE] for row in rows]
    return [
        LaneCounts(row.lane, number - dead, dead, *paid)
        for row, (number, dead, *paid) in zip(rows, found, strict=True)
        if number or any(paid)
    ]


def counts_from(rows: Sequence[Row[Any]], rest: Sequence[Row[Any]] = ()) -> Counts:
    """Return the counts of a job.

    ``rest`` is what is in the account besides, as ``account.rest_of_job`` finds it.
    """
    dead = {row.reason: int(row.number) for row in rows if row.kind == DEAD and row.number}
    results = [row for row in rows if row.kind != DEAD]
    # the others show the tokens of another's call
    asked = [row for row in rows if row.kind == DEAD or not row.reason]
    reused = [row for row in results if row.reason and row.number]
    tokens = _added(asked)
    visible = _added(rows)._replace(
        prompt_tokens=tokens.prompt_tokens, completion_tokens=tokens.completion_tokens
    )
    whole = visible.plus(_added(rest))
    second = [row for row in rest if row.why == SECOND_ANSWER]
    return Counts(
        succeeded=sum(int(row.number) for row in results),
        succeeded_after_retry=sum(int(row.after_retry) for row in results),
        dead=sum(dead.values()),
        dead_by_reason=dead,
        **whole._asdict(),
        visible=visible,
        beside=_added([row for row in rest if not row.of_lane]),
        by_kind={
            why: _added([row for row in rest if row.why == why])
            for why in {row.why for row in rest}
        },
        reused={row.reason: int(row.number) for row in reused},
        reused_tokens={
            row.reason: (int(row.prompt_tokens), int(row.completion_tokens)) for row in reused
        },
        answered_twice=sum(int(row.number) for row in second),
        twice_microusd=sum(int(row.cost_microusd) for row in second),
    )


def _added(rows: Sequence[Row[Any]]) -> Paid:
    return Paid(*(sum(int(getattr(row, name)) for row in rows) for name in _PAID))


def _add(connection: Connection, sums: Mapping[Which, list[int]]) -> None:
    grow(connection, tallies, ("job_id", "kind", "reason"), _FIGURES, sums)


def _add_to_lanes(connection: Connection, sums: Mapping[tuple[str, str], list[int]]) -> None:
    grow(connection, lane_tallies, ("job_id", "lane"), _OF_LANE, sums)


def _sums(rows: Sequence[OutcomeRow]) -> list[int]:
    columns = list(zip(*rows, strict=True))
    after_retry = len([attempts for attempts in columns[_ATTEMPTS] if attempts > 1])
    return [len(rows), after_retry, *(sum(filter(None, columns[place])) for place in _SUMMED)]


def _lane_sums(rows: Sequence[OutcomeRow]) -> list[int]:
    """Return the sums of a lane.

    Results that were reused show the tokens of another's call: they count without them.
    """
    asked = [row for row in rows if row[_KIND] == DEAD or not row[_REASON]]
    dead = len([row for row in asked if row[_KIND] == DEAD])
    columns = list(zip(*asked, strict=True))
    sums = (
        [sum(filter(None, columns[place])) for place in _SUMMED] if columns else [0] * len(_SUMMED)
    )
    return [len(rows), dead, *sums]


def _grouped_by_lane(*conditions: Any) -> Query:
    """Return the query that adds up rows as ``_lane_sums`` does."""
    is_dead = outcomes.c.kind == DEAD
    asked = or_(is_dead, outcomes.c.reason.is_(None))
    return (
        select(
            outcomes.c.lane,
            func.count().label("number"),
            func.count().filter(is_dead).label("dead"),
            *(
                func.coalesce(func.sum(outcomes.c[name]).filter(asked), 0).label(name)
                for name in _PAID
            ),
        )
        .where(*conditions, outcomes.c.lane.is_not(None))
        .group_by(outcomes.c.lane)
    )


def _total(column: Any) -> Any:
    return func.coalesce(func.sum(column), 0).label(column.name)
