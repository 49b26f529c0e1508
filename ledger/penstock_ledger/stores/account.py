"""The account of a job: what it has spent over all generations and lanes, which only grows.

It is the sum of four parts, and no step takes from one what it does not add to another in the same
transaction:

- ``tallies``: its visible outcomes. Settling adds here, so that an account costs it no statement
  more.
- ``paid_beside``: payments that no outcome says, a row for each, so that the same one is never
  added twice.
- ``batch_remainders``: documents that a provider batch has left, until they have an outcome.
- ``spending``: the rest. A replay moves what its dead letters cost from the tallies to here, and a
  purge moves all of it.

Beside it stands what answers saved: how much less they cost than they would have without a cause, a
service tier or the provider's prompt cache; below 0, it made them dearer. Each answer is booked
once, in the transaction that first writes a row that it was paid for by. What moves between these
later moves nothing here, so that replays and purges change nothing in it.

What an outcome costs is all that was paid for its document, as far as its message tells of earlier
attempts. Those that were paid for are in ``paid_beside`` or ``batch_remainders`` meanwhile, since a
lost Redis forgets messages; the outcome's transaction takes them out, and what the message did not
tell of goes to ``spending``.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal,
    or_,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.dialects import postgresql, sqlite

from penstock_ledger.model import RULE, ItemKey, Paid, Saving
from penstock_ledger.sql.tables import (
    batch_remainders,
    feeds,
    jobs,
    lane_tallies,
    outcomes,
    paid_beside,
    savings,
    spending,
    tallies,
)
from penstock_ledger.stored_values import FIGURE_MAX
from penstock_ledger.stores.outcome_rows import DEAD

SHARDS: Final = 16  # more than the processes that commit at the same moment, few enough to add up
KEYS_MAX: Final = 500  # documents in one statement

# How money came to be in `spending`.
SUPERSEDED: Final = "superseded"  # dead letters that were replayed
UNREAD: Final = "unread"  # answers of provider batches that were paid for and never read
FORGOTTEN: Final = "forgotten"  # earlier attempts that the message of a document did not tell of
PURGED: Final = "purged"  # all that a job has spent that was purged
# And in `paid_beside`.
SECOND_ANSWER: Final = "second_answer"  # it lost to an outcome that was there before
LANE_LEFT: Final = "lane_left"  # an attempt in a lane that the job has left
PROMPT_CACHE: Final = "prompt_cache"  # an explicit cache: made, or kept for some time more
# an attempt after which there is another one, until that has come to an outcome
RETRIED: Final = "retried"
# so begin the names of what batches cost for documents that went on to another lane
WAITED: Final = "waited-"
# And in `batch_remainders`.
WAITING: Final = "waiting"

_OF: Final = ("job_id", "generation", "kind", "lane")
_PAID: Final = Paid._fields
_FIGURES: Final = ("documents", *_PAID)

Query = Select[*tuple[Any, ...]]
Conditions = Sequence[ColumnElement[bool]]


def add_spent(
    connection: Connection,
    job_id: str,
    paid: Paid,
    *,
    kind: str,
    lane: str | None = None,
    generation: int = 1,
    documents: int = 0,
) -> None:
    """Add what was paid to a job's account, in the transaction of ``connection``.

    Called again it adds again: the caller's own row has to say that it was done."""
    _add(connection, job_id, {(job_id, generation, kind, lane or ""): [documents, *paid]})


def add_superseded(
    connection: Connection, job_id: str, generation: int, of_lanes: Mapping[str, Sequence[int]]
) -> None:
    """Add what dead letters cost that ``generation`` replays, by the lane they ended in.

    Each has documents, then figures as ``Paid``."""
    rows = {
        (job_id, generation, SUPERSEDED, lane): list(figures) for lane, figures in of_lanes.items()
    }
    _add(connection, job_id, rows)


def mend_replays(connection: Connection, job_id: str) -> None:
    """Add what replays have left out that the release before has made.

    That release knows of no account."""
    known = select(spending.c.generation).where(
        spending.c.job_id == job_id, spending.c.kind == SUPERSEDED
    )
    replays = select(feeds.c.generation).where(
        feeds.c.job_id == job_id, feeds.c.kind == "replay", feeds.c.generation.not_in(known)
    )
    for generation in connection.execute(replays).scalars().all():
        add_superseded(
            connection, job_id, generation, superseded_by(connection, job_id, generation)
        )


def mend_retries(connection: Connection, job_id: str) -> None:
    """Take out what was noted of attempts whose outcomes the release before has stored.

    Their messages say that they were paid for, and it knows of no notes. Where an outcome says
    fewer calls, its message had forgotten them."""
    notes = (
        select(
            paid_beside.c.job_id,
            paid_beside.c.generation,
            paid_beside.c.doc_id,
            func.sum(paid_beside.c.calls).label("calls"),
        )
        .where(paid_beside.c.job_id == job_id, paid_beside.c.why == RETRIED)
        .group_by(paid_beside.c.job_id, paid_beside.c.generation, paid_beside.c.doc_id)
        .subquery()
    )
    said = (outcomes.c[name] for name in ("generation", "doc_id", *_PAID))
    told = (
        select(*said)
        .join_from(
            notes,
            outcomes,
            and_(
                # not the job itself: SQLite 3.46 would walk all outcomes of it
                outcomes.c.job_id == notes.c.job_id,
                outcomes.c.generation == notes.c.generation,
                outcomes.c.doc_id == notes.c.doc_id,
            ),
        )
        # which that release does not write
        .where(outcomes.c.unpriced.is_(None), outcomes.c.calls > notes.c.calls)
    )
    take_out_earlier(
        connection,
        {
            ItemKey(job_id, generation, doc_id): Paid(*(int(figure or 0) for figure in paid))
            for generation, doc_id, *paid in map(tuple, connection.execute(told))
        },
    )


def superseded_by(connection: Connection, job_id: str, generation: int) -> dict[str, list[int]]:
    """Return what the dead letters cost that a generation replays, by lane.

    Each has documents, then figures as ``Paid``."""
    lane = func.coalesce(outcomes.c.lane, "")
    query = (
        select(lane.label("lane"), func.count().label("documents"), *_sums(outcomes))
        .where(outcomes.c.job_id == job_id, outcomes.c.superseded_by == generation)
        .group_by(lane)
    )
    return {
        row.lane: [int(getattr(row, name)) for name in _FIGURES]
        for row in connection.execute(query)
    }


# -- what messages say of earlier attempts ---------------------------------------------------------


def take_out_earlier(
    connection: Connection, earlier: Mapping[ItemKey, Paid], *, remainders: bool = False
) -> None:
    """Take out what was noted of earlier attempts at documents that have their outcomes now.

    ``earlier`` is how much of it those outcomes say; what was noted beyond that is kept as
    forgotten. ``remainders``: what batches have left of them goes, too."""
    notes = or_(
        paid_beside.c.why == RETRIED, paid_beside.c.answer.startswith(WAITED, autoescape=True)
    )
    with_money = [key for key, paid in earlier.items() if any(paid)]
    noted: dict[ItemKey, Paid] = {}
    gone = list(_taken(connection, paid_beside, with_money, notes))
    if remainders:
        gone += _taken(connection, batch_remainders, earlier)
    for key, paid in gone:
        noted[key] = noted.get(key, Paid()).plus(paid)
    for key, paid in sorted(noted.items()):
        beyond = paid.beyond(earlier[key])
        if any(beyond[1:]):
            add_spent(
                connection,
                key.job_id,
                beyond,
                generation=key.generation,
                kind=FORGOTTEN,
                documents=1,
            )


def _taken(
    connection: Connection, table: Table, keys: Iterable[ItemKey], *conditions: ColumnElement[bool]
) -> Iterator[tuple[ItemKey, Paid]]:
    """Delete rows of documents, and return what they say."""
    for (job_id, generation), docs in by_feed(keys).items():
        rows = delete(table).where(
            table.c.job_id == job_id, table.c.generation == generation, *conditions
        )
        for start in range(0, len(docs), KEYS_MAX):
            some = rows.where(table.c.doc_id.in_(docs[start : start + KEYS_MAX]))
            for doc_id, *paid in connection.execute(
                some.returning(table.c.doc_id, *(table.c[name] for name in _PAID))
            ):
                yield ItemKey(job_id, generation, doc_id), Paid(*map(int, paid))


def by_feed(keys: Iterable[ItemKey]) -> dict[tuple[str, int], list[str]]:
    """Return the documents of each job and generation."""
    found: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for job_id, generation, doc_id in keys:
        found[job_id, generation].append(doc_id)
    return found


# -- purging ---------------------------------------------------------------------------------------


def keep_account(connection: Connection, job_id: str) -> None:
    """Move what a job's outcomes cost from its tallies to where its account stays.

    Done again, it moves what came since."""
    visible = [
        _asked_of(row)
        for row in connection.execute(_gone(tallies, job_id, "kind", "reason", "number"))
    ]
    in_lanes: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(_FIGURES))
    for row in connection.execute(_gone(lane_tallies, job_id, "lane", "number")):
        lane = in_lanes[row.lane]
        lane[:] = [
            one + int(getattr(row, name))
            for one, name in zip(lane, ("number", *_PAID), strict=True)
        ]
    whole = [sum(column) for column in zip(*visible, strict=True)] or [0] * len(_FIGURES)
    rest = [one - sum(lane[place] for lane in in_lanes.values()) for place, one in enumerate(whole)]
    is_there = (
        connection.execute(select(jobs.c.job_id).where(jobs.c.job_id == job_id)).first() is not None
    )
    # A row of nothing says whose the job was, for what a frozen worker may still bring.
    if is_there or any(whole):
        _add(
            connection,
            job_id,
            {(job_id, 1, PURGED, lane): sums for lane, sums in (*in_lanes.items(), ("", rest))},
        )


def kept_step(connection: Connection, table: Table, job_id: str, most: int) -> int:
    """Return the same for some rows of ``paid_beside`` or ``batch_remainders``.

    Returns how many.
    """
    key = list(table.primary_key.columns)
    some = select(*key).where(table.c.job_id == job_id).limit(most)
    gone = delete(table).where(tuple_(*key).in_(some)).returning(*(table.c[name] for name in _PAID))
    rows = [tuple(map(int, row)) for row in connection.execute(gone)]
    if rows:
        _add(
            connection,
            job_id,
            {(job_id, 1, PURGED, ""): [0, *(sum(column) for column in zip(*rows, strict=True))]},
        )
    return len(rows)


def _gone(table: Table, job_id: str, *names: str) -> Any:
    return (
        delete(table)
        .where(table.c.job_id == job_id)
        .returning(*(table.c[name] for name in (*names, *_PAID)))
    )


def _asked_of(row: Row[Any]) -> list[int]:
    """Return the documents of a row, then figures as ``Paid`` has them.

    Results that were reused show the tokens of another's call: they count without them.
    """
    figures = [int(getattr(row, name)) for name in ("number", *_PAID)]
    if row.kind != DEAD and row.reason:
        figures[2] = figures[3] = 0
    return figures


# -- reading ---------------------------------------------------------------------------------------


@cache
def rest_of_job() -> Any:
    """Return the query of one ``job``'s account but its visible outcomes, by why.

    Built once: building it costs more than running it.
    """
    return _rest(lambda table: [table.c.job_id == bindparam("job")])


def rest_of_jobs(job_ids: Sequence[str]) -> Any:
    """Return the same of several jobs, with `job_id`."""
    return _rest(lambda table: [table.c.job_id.in_(job_ids)], by_job=True)


def rest_of_generation(job_id: str, generation: int) -> Any:
    """Return the same of one generation, without what later ones have replayed."""
    return _rest(
        lambda table: [
            table.c.job_id == job_id,
            table.c.generation == generation,
            *([table.c.kind != SUPERSEDED] if table is spending else []),
        ]
    )


def _rest(of: Callable[[Table], Conditions], *, by_job: bool = False) -> Any:
    """Return the query of an account.

    Each row says why, whether the lane is known, documents, then figures as ``Paid`` has them.
    """

    def part(table: Table, why: Any, documents: Any, is_of_lane: Any) -> Query:
        job = [table.c.job_id] if by_job else []
        columns = (
            why.label("why"),
            is_of_lane.label("of_lane"),
            documents.label("number"),
            *_sums(table),
        )
        groups = [column for column in (why, is_of_lane) if column is not _NO]
        return select(*job, *columns).where(*of(table)).group_by(*job, *groups)

    of_lane = case((spending.c.lane == "", 0), else_=1)
    return union_all(
        part(paid_beside, paid_beside.c.why, func.count(paid_beside.c.doc_id.distinct()), _NO),
        part(spending, spending.c.kind, func.coalesce(func.sum(spending.c.documents), 0), of_lane),
        part(batch_remainders, literal(WAITING), func.count(), _NO).having(func.count() > 0),
    )


_NO: Final = literal(0)


def cost_of_jobs(connection: Connection, job_ids: Sequence[str]) -> int:
    """Return what these jobs have spent, in millionths of a dollar."""
    parts = [_cost(table).where(table.c.job_id.in_(job_ids)) for table in (*_OF_JOBS, spending)]
    return _together(connection, parts)


def cost_of_tenant(connection: Connection, tenant: str, began: float, ends: float) -> int:
    """Return the cost of a tenant's jobs that were accepted in this time.

    Those that were purged since are among them."""
    which = (jobs.c.tenant == tenant, jobs.c.created_at >= began, jobs.c.created_at < ends)
    accepted = spending.c.accepted_at
    parts = [
        _cost(table).join_from(table, jobs, and_(jobs.c.job_id == table.c.job_id, *which))
        for table in _OF_JOBS
    ]
    parts.append(
        _cost(spending).where(spending.c.tenant == tenant, accepted >= began, accepted < ends)
    )
    return _together(connection, parts)


_OF_JOBS: Final = (tallies, paid_beside, batch_remainders)  # what goes when a job is purged


def _cost(table: Table) -> Query:
    return select(func.coalesce(func.sum(table.c.cost_microusd), 0).label("cost"))


def _together(connection: Connection, parts: Sequence[Query]) -> int:
    """Add the parts in one statement, which sees one moment.

    What moves from one part to another is counted once."""
    return int(sum(connection.execute(union_all(*parts)).scalars()))


def _sums(table: Table) -> Iterator[Any]:
    return (func.coalesce(func.sum(table.c[name]), 0).label(name) for name in _PAID)


# -- writing ---------------------------------------------------------------------------------------


def _add(
    connection: Connection, job_id: str, sums: Mapping[tuple[str, int, str, str], list[int]]
) -> None:
    if sums:
        tenant, accepted_at = _whose(connection, job_id)
        grow(
            connection,
            spending,
            _OF,
            _FIGURES,
            sums,
            {"tenant": tenant, "accepted_at": accepted_at},
        )


def _whose(connection: Connection, job_id: str) -> tuple[str | None, float]:
    """Return the tenant of a job and when it was accepted.

    One that was purged has left both in its account."""
    known = select(jobs.c.tenant, jobs.c.created_at).where(jobs.c.job_id == job_id)
    kept = (
        select(spending.c.tenant, spending.c.accepted_at)
        .where(spending.c.job_id == job_id)
        .limit(1)
    )
    row = connection.execute(known).first() or connection.execute(kept).first()
    return (None, 0.0) if row is None else (row[0], row[1])


def grow(
    connection: Connection,
    table: Table,
    of: tuple[str, ...],
    figures: tuple[str, ...],
    sums: Mapping[Any, list[int]],
    fixed: Mapping[str, Any] | None = None,
) -> None:
    """Add ``figures`` to the rows of ``table`` that ``of`` names, in the shard of this process.

    A new row has ``fixed``, too."""
    if not sums:
        return
    on_sqlite = connection.dialect.name == "sqlite"
    shard = 0 if on_sqlite else os.getpid() % SHARDS
    rows = [
        {
            "shard": shard,
            **(fixed or {}),
            **dict(zip(of, which, strict=True)),
            **dict(zip(figures, more, strict=True)),
        }
        for which, more in sorted(sums.items())
    ]
    connection.execute(_growing(on_sqlite, table, of, figures), rows)


@cache
def _growing(on_sqlite: bool, table: Table, of: tuple[str, ...], figures: tuple[str, ...]) -> Any:
    """Return the statement, built once: building it costs more than running it."""
    new = (sqlite if on_sqlite else postgresql).insert(table)
    return new.on_conflict_do_update(
        index_elements=["shard", *of],
        set_={name: table.c[name] + new.excluded[name] for name in figures},
    )


# -- savings ---------------------------------------------------------------------------------------

Savings = Mapping[ItemKey, Sequence[Saving]]
NOTHING_SAVED: Final[Savings] = {}

_OF_SAVINGS: Final = ("job_id", "cause", "lane")
_OF_SAVING: Final = Saving._fields[1:]


def add_savings(
    connection: Connection, lane: str | None, found: Savings, paid_now: Collection[ItemKey]
) -> None:
    """Book savings of those documents whose answers ``paid_now`` says are new in the account."""
    sums = dict[tuple[str, str, str], list[int]]()
    for key, some in found.items():
        for one in some if key in paid_now else ():
            which = (key.job_id, one.cause, lane or "")
            before = sums.get(which, [0] * len(_OF_SAVING))
            figures = (max(-FIGURE_MAX, min(FIGURE_MAX, figure)) for figure in one[1:])
            sums[which] = [sum(both) for both in zip(figures, before, strict=True)]
    grow(connection, savings, _OF_SAVINGS, _OF_SAVING, sums)


def savings_of(connection: Connection, job_id: str) -> list[Saving]:
    """Return the savings of a job by cause, those of all lanes together; none of its rules'."""
    return _by_cause(connection, savings.c.job_id == job_id, ~savings.c.cause.startswith(RULE))


def by_rules(connection: Connection, job_id: str) -> list[Saving]:
    """Return what answers were and cost by the rules of a job, whose causes begin with ``RULE``."""
    return _by_cause(connection, savings.c.job_id == job_id, savings.c.cause.startswith(RULE))


def _by_cause(connection: Connection, *conditions: ColumnElement[bool]) -> list[Saving]:
    query = (
        select(savings.c.cause, *sums_of_savings())
        .where(*conditions)
        .group_by(savings.c.cause)
        .order_by(savings.c.cause)
    )
    return [Saving(cause, *map(int, figures)) for cause, *figures in connection.execute(query)]


def sums_of_savings() -> list[Any]:
    """Return the columns that add up rows, named and in the order of ``Saving``."""
    return [func.sum(savings.c[name]).label(name) for name in _OF_SAVING]
