"""A job's results are noted with the releases, engines, providers and prices that made them.

The same for thousands of rows, so nothing of it lies in a row: each combination is one entry of the
table `meta`, written before the first result that was made with it, and a second one with when it
was last in use, written once a minute. Of one result the row has the model as answered and its
time, which choose among the entries of its generation: one, unless the fleet was being changed at
that moment.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import (
    Connection,
    Delete,
    Table,
    and_,
    bindparam,
    delete,
    func,
    select,
    tuple_,
    update,
)

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import (
    batch_remainders,
    door_batches,
    door_files,
    jobs,
    meta,
    metadata,
    outcomes,
    paid_beside,
    savings,
    spending,
)
from penstock_ledger.stores.account import keep_account, kept_step, mend_replays

# of one job; a combination more is a change of release or price while it ran
ENTRIES_READ: Final = 1_000
MADE: Final = "made:"  # before the job's id in the names of entries
LAST: Final = "made_last:"
STEP: Final = "step:"  # of entries that are no provenance, and go with it: see StepsTaken
RENOTED_S: Final = 60.0  # between two notes that a combination is in use
SKEW_S: Final = 5.0  # that the clocks of workers may be apart
# Of one kind and job. The range is for the index: what they begin with alone would read the entries
# of all jobs, and a range alone would have others, too, in a database that sorts without colons.
# What follows are hexadecimal digits.
_IS_OF: Final = and_(
    meta.c.name > bindparam("first"),
    meta.c.name < bindparam("behind"),
    func.substr(meta.c.name, 1, func.length(bindparam("first"))) == bindparam("first"),
)
_ENTRIES: Final = select(meta.c.name, meta.c.value).where(_IS_OF).limit(ENTRIES_READ)


class MadeWith(NamedTuple):
    """One combination. Prices are in US dollars."""

    generation: int
    lane: str
    provider: str
    penstock: str  # the worker's release
    # name and version of what computes in the worker, or where its server is; empty for a provider
    engine: str
    # None: no price is known
    usd_per_mtok_in: float | None = None
    usd_per_mtok_out: float | None = None
    usd_per_hour: float = 0.0  # of a worker that hosts a model
    # as answered; None in entries of earlier releases, and beyond some models of one job
    model: str | None = None
    # of what came in batches: 0.5 is half the price; None: unknown, or none came so
    batch_discount: float | None = None
    # whether what its answers saved is booked; releases before did not, and none of it is known
    notes_savings: bool = False


class InUse(NamedTuple):
    """A combination, and its first and last note in Unix time.

    It is None for a last one that earlier releases did not write."""

    made: MadeWith
    since: float
    last: float | None

    def may_have_made(self, at: float) -> bool:
        """Return whether a result of that time may be of it."""
        ended = self.last is not None and at > self.last + RENOTED_S + SKEW_S
        return self.since - SKEW_S <= at and not ended


class Provenance:
    """Entries are only ever added; purging a job deletes its own."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def note(self, made: Iterable[tuple[str, MadeWith]]) -> None:
        """Note what made results, as (job, combination).

        What is there stays, but for the time of the last note.
        """
        rows = [row for job_id, one in made for row in _rows(job_id, one)]
        rows.sort(key=itemgetter("name"))  # two workers lock the same rows in the same order
        insert = self._db.insert(meta)
        newer = insert.on_conflict_do_update(
            index_elements=[meta.c.name],
            set_={"value": insert.excluded.value},
            where=meta.c.name.startswith(LAST),
        )
        if rows:
            self._db.write(lambda connection: connection.execute(newer, rows))

    def of(self, job_id: str) -> list[MadeWith]:
        """Return the combinations of all generations, in the order in which they came into use."""
        return [one.made for one in self.in_use(job_id)]

    def of_all(self) -> Iterator[tuple[str, MadeWith]]:
        """Yield (job, combination) of every job, a page at a time."""
        some = select(meta.c.name, meta.c.value).where(
            meta.c.name.startswith(MADE, autoescape=True)
        )
        every = some.order_by(meta.c.name).limit(ENTRIES_READ)
        behind = ""
        while True:
            page = every.where(meta.c.name > behind)
            rows = self._db.rows(page)
            for name, value in rows:
                one = orjson.loads(value)
                made = MadeWith(**{field: one[field] for field in MadeWith._fields if field in one})
                yield name.removeprefix(MADE).rpartition(":")[0], made
            if len(rows) < ENTRIES_READ:
                return
            behind = rows[-1].name

    def in_use(self, job_id: str) -> list[InUse]:
        """Return the same, each with its times."""
        made, last = self._values(MADE, job_id), self._values(LAST, job_id)
        found = sorted(
            ((orjson.loads(value), last.get(mark)) for mark, value in made.items()),
            key=lambda entry: (entry[0]["generation"], entry[0]["since"]),
        )
        return [
            InUse(
                MadeWith(**{name: one[name] for name in MadeWith._fields if name in one}),
                one["since"],
                None if at is None else float(at),
            )
            for one, at in found
        ]

    def _values(self, kind: str, job_id: str) -> dict[str, str]:
        places = _places(kind, job_id)
        rows = self._db.rows(_ENTRIES, places)
        return {name.removeprefix(places["first"]): value for name, value in rows}


def made_by(
    entries: Sequence[InUse], generation: int, model: str | None, at: float
) -> list[MadeWith]:
    """Return what a result of that generation, model and time was made with.

    More than one where the fleet was changed just then."""
    own = [one for one in entries if one.made.generation == generation]
    alike = [one for one in own if one.made.model in (None, model)] or own
    return [one.made for one in alike if one.may_have_made(at)] or [one.made for one in alike]


def forget_provenance(connection: Connection, job_id: str) -> None:
    for kind in (MADE, LAST, STEP):
        connection.execute(delete(meta).where(_IS_OF), _places(kind, job_id))


def _rows(job_id: str, made: MadeWith) -> Iterator[dict[str, Any]]:
    facts, now = made._asdict(), time.time()
    mark = hashlib.sha256(orjson.dumps(facts)).hexdigest()[:16]
    yield {"name": f"{MADE}{job_id}:{mark}", "value": orjson.dumps(facts | {"since": now}).decode()}
    yield {"name": f"{LAST}{job_id}:{mark}", "value": repr(now)}


def _places(kind: str, job_id: str) -> dict[str, str]:
    prefix = f"{kind}{job_id}:"
    return {"first": prefix, "behind": f"{prefix}g"}


# with bodies of some kilobytes, a step writes some megabytes of journal
ROWS_PER_STEP: Final = 1_000


def purge_job(database: Database, job_id: str) -> int:
    """Delete all of a job but its account; returns how many outcomes it had.

    Only for jobs that are final, which the caller has to see to.

    The job's own row goes last, so that an interrupted purge can be repeated.
    """
    # while its dead letters are there
    database.write(lambda connection: mend_replays(connection, job_id))
    outcomes_deleted = _empty(database, outcomes, job_id)
    _keep_account(database, job_id)
    for table in metadata.sorted_tables:
        if "job_id" in table.columns and table not in (
            outcomes,
            jobs,
            savings,
            spending,
            door_batches,
            door_files,
        ):
            _empty(database, table, job_id)
    database.write(lambda connection: forget_provenance(connection, job_id))
    database.write(lambda connection: _expire_files(connection, job_id))
    _empty(database, jobs, job_id)
    # Outcomes are inserted only where their job is. Those that came between their table's turn and
    # the job's go now.
    _keep_account(database, job_id)
    _empty(database, outcomes, job_id)
    return outcomes_deleted


def _keep_account(database: Database, job_id: str) -> None:
    """Keep what the job has spent.

    Forgetting it must make no room in the budget of its tenant's month."""
    database.write(lambda connection: keep_account(connection, job_id))
    for table in (paid_beside, batch_remainders):
        while database.write(partial(kept_step, table=table, job_id=job_id, most=ROWS_PER_STEP)):
            pass


def _expire_files(connection: Connection, job_id: str) -> None:
    """Expire files of the HTTP doors that hold its answers.

    The doors remove their bytes, and then the rows."""
    connection.execute(
        update(door_files).where(door_files.c.job_id == job_id).values(expires_at=0.0)
    )


def _empty(database: Database, table: Table, job_id: str) -> int:
    deleted = 0
    while found := _step(database, _delete_some(table, job_id)):
        deleted += found
    return deleted


def _delete_some(table: Table, job_id: str) -> Delete:
    key = list(table.primary_key.columns)
    some = select(*key).where(table.c.job_id == job_id).limit(ROWS_PER_STEP)
    return delete(table).where(tuple_(*key).in_(some))


def _step(database: Database, statement: Delete) -> int:
    def work(connection: Connection) -> int:
        return connection.execute(statement).rowcount

    return database.write(work)
