"""Calls of the synchronous doors: documents of open jobs whose callers wait.

What Idempotency-Keys stand for is kept here, too.

The claim of a key and the document that it stands for are written in one transaction: where there
is a claim, there is a document, which will have its outcome whatever becomes of the door.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, or_, select, update

from penstock_ledger.model import DeadLetter, Result
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import door_calls, feeds, jobs, outcomes, spool
from penstock_ledger.stores.jobs import LIVE
from penstock_ledger.stores.outcome_rows import outcome_from
from penstock_ledger.stores.spool import STATEMENT_MAX, check_open

__all__ = ["CallClaim", "DoorCall", "DoorCallStore", "PushedCall"]

FORGET_MAX: Final = 1_000  # expired claims deleted at once: the transaction lasts some milliseconds
OPEN_MAX: Final = 1_000  # open jobs of doors that are looked at at once
NO_TENANT: Final = ""
GIVEN: Final = "given"

# Built once: putting a statement together costs more than what the database does with it, and these
# run for each call.
# The primary key has generations between job and document: without them a whole job is walked.
_OF_JOB: Final = select(outcomes).where(
    outcomes.c.job_id == bindparam("job"),
    outcomes.c.generation.in_(select(feeds.c.generation).where(feeds.c.job_id == bindparam("job"))),
    outcomes.c.superseded_by.is_(None),
)
_OUTCOMES: Final = _OF_JOB.where(outcomes.c.doc_id.in_(bindparam("docs", expanding=True)))
_OUTCOME: Final = _OF_JOB.where(outcomes.c.doc_id == bindparam("doc"))
_NUMBERS: Final = select(spool.c.doc_id, spool.c.seq).where(
    spool.c.job_id == bindparam("job"), spool.c.doc_id.in_(bindparam("docs", expanding=True))
)


@dataclass(frozen=True, slots=True)
class CallClaim:
    """An Idempotency-Key as a caller sends it, and for how long it is kept."""

    tenant: str | None
    key: str
    request_digest: str
    keep_s: float
    instead_of: str | None = None  # the document of an earlier claim that counts no more


class PushedCall(NamedTuple):
    """One call: its documents, and the claim that they stand for, if there is one."""

    documents: Sequence[tuple[str, bytes]]  # id and request body
    name: str  # what the claim keeps: the document's id, or what those of several begin with
    claim: CallClaim | None = None


@dataclass(frozen=True, slots=True)
class DoorCall:
    """The call that an idempotency key was given for."""

    request_digest: str
    job_id: str
    name: str
    expires_at: float


class DoorCallStore:
    def __init__(self, db: Database) -> None:
        self._db = db
        stored = db.insert(spool).on_conflict_do_nothing()
        self._spooled = stored.returning(spool.c.doc_id, spool.c.seq)

    def push(self, job_id: str, calls: Sequence[PushedCall]) -> list[dict[str, int]]:
        """Store the documents of several calls in one transaction.

        Returns for each call the numbers of its rows, by document.

        A call whose key is taken by now stores nothing and has no rows. Raises JobNotFound and
        JobClosed.
        """
        return self._db.write(lambda connection: self._push(connection, job_id, calls), named=True)

    def find(self, tenant: str | None, key: str) -> DoorCall | None:
        """Return what was claimed with this key, while it is kept."""
        query = select(door_calls).where(
            door_calls.c.tenant == (tenant or NO_TENANT),
            door_calls.c.idem_key == key,
            door_calls.c.expires_at > time.time(),
        )
        row = self._db.read(lambda connection: connection.execute(query).one_or_none())
        return (
            None
            if row is None
            else DoorCall(row.request_digest, row.job_id, row.doc_id, row.expires_at)
        )

    def outcomes(self, job_id: str, doc_ids: Sequence[str]) -> dict[str, Result | DeadLetter]:
        """Return the visible outcomes of those that have one."""

        def read(connection: Connection) -> dict[str, Result | DeadLetter]:
            if len(doc_ids) == 1:  # mostly; an IN is put together anew each time
                rows = connection.execute(_OUTCOME, {"job": job_id, "doc": doc_ids[0]})
                return {row.doc_id: outcome_from(row) for row in rows}
            found: dict[str, Result | DeadLetter] = {}
            for start in range(0, len(doc_ids), STATEMENT_MAX):
                some = {"job": job_id, "docs": doc_ids[start : start + STATEMENT_MAX]}
                found |= {
                    row.doc_id: outcome_from(row) for row in connection.execute(_OUTCOMES, some)
                }
            return found

        return self._db.read(read)

    def forget_expired(self) -> int:
        """Delete claims that are kept no longer, a bounded number; returns how many there were."""
        old = select(door_calls.c.tenant, door_calls.c.idem_key).where(
            door_calls.c.expires_at <= time.time()
        )

        def forget(connection: Connection) -> int:
            rows = connection.execute(old.limit(FORGET_MAX)).all()
            for tenant, key in rows:
                connection.execute(
                    delete(door_calls).where(
                        door_calls.c.tenant == tenant, door_calls.c.idem_key == key
                    )
                )
            return len(rows)

        return self._db.write(forget)

    def open_jobs(self, key_prefix: str) -> list[tuple[str, str, float]]:
        """Return the live jobs with such keys that are not closed, oldest first.

        Each has its id, its key and the time when it was created."""
        query = (
            select(jobs.c.job_id, jobs.c.job_key, jobs.c.created_at)
            .where(jobs.c.state.in_([str(state) for state in LIVE]), jobs.c.total.is_(None))
            .where(jobs.c.job_key.startswith(key_prefix, autoescape=True))
            .order_by(jobs.c.created_at)
            .limit(OPEN_MAX)
        )
        return [(row[0], row[1], row[2]) for row in self._db.rows(query)]

    def _push(
        self, connection: Connection, job_id: str, calls: Sequence[PushedCall]
    ) -> list[dict[str, int]]:
        check_open(connection, job_id, [doc_id for call in calls for doc_id, _ in call.documents])
        taken = [
            call.claim is not None and not self._claimed(connection, job_id, call.name, call.claim)
            for call in calls
        ]
        rows = [
            {"job_id": job_id, "doc_id": doc_id, "body": body, "fed": False}
            for call, is_taken in zip(calls, taken, strict=True)
            if not is_taken
            for doc_id, body in call.documents
        ]
        numbers = dict[str, int]()
        if rows:
            given = rows[0] if len(rows) == 1 else rows  # one at a time is the shorter way
            stored = connection.execute(self._spooled, given)
            numbers = {row.doc_id: row.seq for row in stored}
        there = [name for row in rows if (name := str(row["doc_id"])) not in numbers]
        if there:
            numbers |= _numbers(connection, job_id, there)
        return [
            {} if is_taken else {doc_id: numbers[doc_id] for doc_id, _ in call.documents}
            for call, is_taken in zip(calls, taken, strict=True)
        ]

    def _claimed(self, connection: Connection, job_id: str, name: str, claim: CallClaim) -> bool:
        """Return whether the key is this call's now."""
        now = time.time()
        tenant = claim.tenant or NO_TENANT
        values: dict[str, Any] = {
            "request_digest": claim.request_digest,
            "job_id": job_id,
            "doc_id": name,
            "state": GIVEN,
            "created_at": now,
            "expires_at": now + claim.keep_s,
        }
        its_row = (door_calls.c.tenant == tenant) & (door_calls.c.idem_key == claim.key)
        # it is this call's where it was stored, and the answer to the commit was lost
        over = or_(door_calls.c.expires_at <= now, door_calls.c.doc_id == name)
        if claim.instead_of is not None:
            over = or_(over, door_calls.c.doc_id == claim.instead_of)
        if connection.execute(update(door_calls).where(its_row, over).values(values)).rowcount:
            return True
        row = {"tenant": tenant, "idem_key": claim.key, **values}
        return (
            connection.execute(
                self._db.insert(door_calls).values(row).on_conflict_do_nothing()
            ).rowcount
            == 1
        )


def _numbers(connection: Connection, job_id: str, doc_ids: Sequence[str]) -> Mapping[str, int]:
    numbers: dict[str, int] = {}
    for start in range(0, len(doc_ids), STATEMENT_MAX):
        rows = connection.execute(
            _NUMBERS, {"job": job_id, "docs": doc_ids[start : start + STATEMENT_MAX]}
        )
        numbers.update((row.doc_id, row.seq) for row in rows)
    return numbers
