"""Pages of jobs and of dead letters, as lists show them.

Jobs come newest first with their counts, dead letters without the bodies that they keep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    false,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)

from penstock_ledger.model import Counts, ItemKey, Job, JobState
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import jobs, outcomes
from penstock_ledger.stores.account import rest_of_jobs
from penstock_ledger.stores.jobs import job_of
from penstock_ledger.stores.outcome_rows import REPLAYABLE
from penstock_ledger.stores.tallies import counts_from, tallied_of

__all__ = ["DeadLetterLine", "JobPage", "JobPages", "JobPlace", "dead_letter_lines"]

JOBS_MAX: Final = 1_000  # of one page: far below every driver's limit on parameters
SEARCH_MAX: Final = 200  # characters: more than a key has

_place: Final = tuple_(jobs.c.created_at, jobs.c.job_id)
_OLDER_FIRST: Final = (jobs.c.created_at, jobs.c.job_id)
_NEWER_FIRST: Final = (jobs.c.created_at.desc(), jobs.c.job_id.desc())


class JobPlace(NamedTuple):
    """The place of a job in the list."""

    created_at: float
    job_id: str

    @classmethod
    def of(cls, job: Job) -> JobPlace:
        return cls(job.created_at, job.job_id)


class JobPage(NamedTuple):
    """Some jobs, newest first."""

    jobs: list[tuple[Job, Counts]]
    newer: bool  # whether there are jobs before the first of them
    older: bool  # whether there are jobs behind the last of them


class JobPages:
    """Of one database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def page(
        self,
        *,
        tenants: Collection[str | None] | None = None,
        states: Collection[JobState] | None = None,
        search: str = "",
        beginning: str = "",
        without: str = "",
        before: JobPlace | None = None,
        after: JobPlace | None = None,
        limit: int = 50,
    ) -> JobPage:
        """Return at most ``limit`` jobs older than ``before``, or the next newer than ``after``.

        With neither they are the newest.

        ``tenants`` None means all; in it None stands for jobs without a tenant. ``search`` is found
        anywhere in key or id, in capitals or not. Keys begin with ``beginning``, and none with
        ``without``.
        """
        chosen = [
            *_of_tenants(tenants),
            *_in_states(states),
            *_found_by(search),
            *_named(beginning, without),
        ]
        most = max(1, min(limit, JOBS_MAX))
        newer_first = after is None
        query = (
            select(jobs)
            .where(*chosen)
            .limit(most + 1)
            .order_by(*(_NEWER_FIRST if newer_first else _OLDER_FIRST))
        )
        if after is not None:
            query = query.where(_place > tuple_(*after))
        elif before is not None:
            query = query.where(_place < tuple_(*before))

        def read(connection: Connection) -> JobPage:
            found = list(connection.execute(query))
            more, rows = len(found) > most, found[:most]
            if newer_first:
                newer, older = (
                    before is not None and _is_any(connection, chosen, rows, before, ahead=True),
                    more,
                )
            else:
                newer, older = more, _is_any(connection, chosen, rows[::-1], after, ahead=False)
                rows.reverse()
            return JobPage(_with_counts(connection, list(map(job_of, rows))), newer, older)

        return self._db.read(read)

    def states(
        self, tenants: Collection[str | None] | None = None, *, without: str = ""
    ) -> dict[JobState, int]:
        """Return how many jobs are in each state; those that none is in are left out."""
        query = (
            select(jobs.c.state, func.count())
            .where(*_of_tenants(tenants), *_named("", without))
            .group_by(jobs.c.state)
        )
        rows = self._db.rows(query)
        return {JobState(state): int(number) for state, number in rows}

    def counts(self, job_ids: Sequence[str]) -> dict[str, Counts]:
        """Return counts of at most JOBS_MAX jobs, each as ``OutcomeStore.counts`` has it."""
        return self._db.read(lambda connection: _counts(connection, list(job_ids)[:JOBS_MAX]))


def _of_tenants(tenants: Collection[str | None] | None) -> Iterable[ColumnElement[bool]]:
    if tenants is None:
        return
    named = [tenant for tenant in tenants if tenant is not None]
    conditions: list[ColumnElement[bool]] = [jobs.c.tenant == named[0]] if len(named) == 1 else []
    if len(named) > 1:
        conditions = [jobs.c.tenant.in_(named)]
    if None in tenants:
        conditions.append(jobs.c.tenant.is_(None))
    yield or_(*conditions) if conditions else false()


def _in_states(states: Collection[JobState] | None) -> Iterable[ColumnElement[bool]]:
    if states is not None:
        yield jobs.c.state.in_([str(state) for state in states])


def _named(beginning: str, without: str) -> Iterable[ColumnElement[bool]]:
    if beginning:
        yield jobs.c.job_key.startswith(beginning, autoescape=True)
    if without:
        yield ~jobs.c.job_key.startswith(without, autoescape=True)


def _found_by(search: str) -> Iterable[ColumnElement[bool]]:
    text = search[:SEARCH_MAX]
    if text and not text.isprintable():  # no key has such a character
        yield false()
    elif text:
        yield or_(
            jobs.c.job_key.icontains(text, autoescape=True),
            jobs.c.job_id.icontains(text, autoescape=True),
        )


def _is_any(
    connection: Connection,
    chosen: Iterable[ColumnElement[bool]],
    rows: Sequence[Row[Any]],
    otherwise: JobPlace | None,
    *,
    ahead: bool,
) -> bool:
    """Return whether a job is newer than the first of ``rows`` (``ahead``) or older than the last.

    Without rows it is held against that place, or is at it."""
    if rows:
        edge = rows[0] if ahead else rows[-1]
        place = tuple_(edge.created_at, edge.job_id)
        beyond = _place > place if ahead else _place < place
    else:
        assert otherwise is not None, "a page without a place has no other side"
        beyond = _place >= tuple_(*otherwise) if ahead else _place <= tuple_(*otherwise)
    order = _OLDER_FIRST if ahead else _NEWER_FIRST
    query = select(jobs.c.job_id).where(*chosen, beyond).order_by(*order).limit(1)
    return connection.execute(query).first() is not None


def _with_counts(connection: Connection, found: list[Job]) -> list[tuple[Job, Counts]]:
    counts = _counts(connection, [job.job_id for job in found])
    return [(job, counts[job.job_id]) for job in found]


def _counts(connection: Connection, job_ids: list[str]) -> dict[str, Counts]:
    sums = _by_job(connection, tallied_of(job_ids)) if job_ids else {}
    paid = _by_job(connection, rest_of_jobs(job_ids)) if job_ids else {}
    return {job_id: counts_from(sums.get(job_id, ()), paid.get(job_id, ())) for job_id in job_ids}


def _by_job(connection: Connection, query: Select[Any]) -> dict[str, list[Row[Any]]]:
    found = defaultdict[str, list[Row[Any]]](list)
    for row in connection.execute(query):
        found[row.job_id].append(row)
    return found


ERROR_CHARS: Final = 600  # of what went wrong: more than a line of a table has room for
# literal, so that the partial index is used
_IS_DEAD: Final[ColumnElement[bool]] = literal_column("kind = 'dead'")


class DeadLetterLine(NamedTuple):
    """One dead letter."""

    generation: int
    doc_id: str
    reason: str
    attempts: int
    status_code: int | None
    last_error: str  # cut
    created_at: float
    replayable: bool


def dead_letter_lines(
    db: Database,
    job_id: str,
    *,
    reason: str | None = None,
    only: ItemKey | None = None,
    after: tuple[int, str] | None = None,
    limit: int,
) -> list[DeadLetterLine]:
    """Return visible dead letters by generation and document id, those behind ``after``.

    ``reason`` leaves out those of others, ``only`` all but one.
    """
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
            REPLAYABLE.label("replayable"),
        )
        .where(outcomes.c.job_id == job_id, _IS_DEAD, outcomes.c.superseded_by.is_(None))
        .order_by(outcomes.c.generation, outcomes.c.doc_id)
        .limit(limit)
    )
    if reason is not None:
        query = query.where(outcomes.c.reason == reason)
    if only is not None:
        one = (outcomes.c.generation == only.generation, outcomes.c.doc_id == only.doc_id)
        query = query.where(*one)
    if after is not None:
        query = query.where(place > after)
    rows = db.rows(query)
    return [
        DeadLetterLine(
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
