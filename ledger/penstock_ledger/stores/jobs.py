"""Jobs: accepted once per key, moved between states by compare-and-set, replayed as generations."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Row,
    bindparam,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from penstock_ledger.door_stores.events import note_event
from penstock_ledger.errors import (
    FilesTaken,
    JobClosed,
    JobConflict,
    JobNotFound,
    JobNotReplayable,
    NothingToReplay,
)
from penstock_ledger.model import DeadLetter, Feed, FeedKind, Job, JobState, NewJob, TakenFiles
from penstock_ledger.reasons import (
    Accepted,
    Reason,
    accepted_with,
    explain,
    read_accepted,
    read_reason,
    stored_reason,
    without_secrets,
)
from penstock_ledger.sql.tables import jobs, outcomes, spool, taken_files
from penstock_ledger.stored_values import json_text
from penstock_ledger.stores.account import mend_replays
from penstock_ledger.stores.feeds import FeedStore, add_feed
from penstock_ledger.stores.outcome_insert import insert_outcomes
from penstock_ledger.stores.outcome_rows import REPLAYABLE, dead_letter_row
from penstock_ledger.stores.source_keys import insert_pages
from penstock_ledger.stores.tallies import supersede

# rows or ids per SQL statement: far below every driver's limit on parameters
STATEMENT_MAX: Final = 500
SHOWN_CHARS: Final = 60  # of a value in a message
_AGAIN: Final = (JobState.RUNNING, JobState.PAUSED)
LIVE: Final = (JobState.RUNNING, JobState.PAUSED, JobState.CANCELLING)
TOLD: Final = (JobState.PAUSED, JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)
REPLAYED_IN: Final = (JobState.RUNNING, JobState.PAUSED, JobState.COMPLETED)

# Built once: putting a statement together costs more than what the database does with it.
_MOVE: Final = (
    update(jobs)
    .where(
        jobs.c.job_id == bindparam("job"),
        jobs.c.state.in_(bindparam("from", expanding=True)),
        jobs.c.generation == func.coalesce(bindparam("of", type_=Integer), jobs.c.generation),
    )
    .values(
        state=bindparam("to"),
        reason=bindparam("why"),
        finished_at=bindparam("ended"),
        resume_at=bindparam("until"),
        pause=bindparam("pause"),
    )
)
_PAUSED: Final = select(jobs.c.pause, jobs.c.stop_accepted).where(
    jobs.c.job_id == bindparam("job"),
    jobs.c.state == str(JobState.PAUSED),
    jobs.c.pause.is_not(None),
)
_NAMED: Final = select(jobs).where(
    or_(jobs.c.job_id == bindparam("name"), jobs.c.job_key == bindparam("name"))
)


class JobStore(FeedStore):
    """The jobs table and, inherited, the feeds."""

    def create(
        self, job: NewJob, refused: Iterable[DeadLetter] = (), keys: Iterable[bytes] = ()
    ) -> tuple[Job, bool]:
        """Accept a job, its first feed, and its refused rows in one transaction.

        ``keys`` are the pages of the rows' keys, where the source is a table; they may be read
        twice. Returns the job and whether it is new: the same key again returns the job that has
        it.
        Raises JobConflict when the key is taken by a job with another digest, and FilesTaken.
        """
        letters = list(refused)  # the transaction may be repeated
        created, row = self._db.write(
            lambda connection: self._create(connection, job, letters, keys), named=True
        )
        if row.digest != job.digest:
            raise JobConflict(job.job_key, row.job_id, _differences(job_of(row), job))
        return job_of(row), created

    def get(self, job_id_or_key: str) -> Job:
        """Return a job by its id or its key; an id is preferred to an equal key.

        Raises JobNotFound.
        """
        rows = self._db.rows(_NAMED, {"name": job_id_or_key})
        if not rows:
            raise JobNotFound(job_id_or_key)
        return job_of(next((row for row in rows if row.job_id == job_id_or_key), rows[0]))

    def states(self, job_ids: Collection[str]) -> dict[str, JobState]:
        """Return the states of those of them that are ids of jobs."""
        query = select(jobs.c.job_id, jobs.c.state).where(jobs.c.job_id.in_(job_ids))
        return {row.job_id: JobState(row.state) for row in self._db.rows(query)}

    def list(self, limit: int = 100, states: Collection[JobState] | None = None) -> list[Job]:
        """Return jobs, newest first."""
        query = select(jobs).order_by(jobs.c.created_at.desc(), jobs.c.job_id.desc()).limit(limit)
        if states is not None:
            query = query.where(jobs.c.state.in_([str(state) for state in states]))
        return [job_of(row) for row in self._db.rows(query)]

    def set_state(
        self,
        job_id: str,
        to: JobState,
        *,
        why: Reason | None = None,
        expect: Collection[JobState],
        resume_at: float | None = None,
        generation: int | None = None,
    ) -> bool:
        """Move a job to ``to`` if it is in one of ``expect``; else return False.

        It is False without such a job, too. ``resume_at`` (Unix seconds) is when a pause ends by
        itself: the control loop resumes the job then. ``generation``: the one that has ended; where
        the job has another by now, a replay has begun and the job goes on. Letting a job go on that
        a stop-loss has paused, or pausing it by hand, accepts what it was paused for.
        """
        why = None if why is None else without_secrets(why)
        moved = {
            "job": job_id,
            "from": [str(state) for state in expect],
            "to": str(to),
            "why": None if why is None else explain(why),
            "pause": None if why is None else stored_reason(why),
            "ended": time.time() if to.final else None,
            "until": resume_at,
            "of": generation,
        }

        def move(connection: Connection) -> bool:
            before = (
                connection.execute(_PAUSED, {"job": job_id}).one_or_none() if to in _AGAIN else None
            )
            if connection.execute(_MOVE, moved).rowcount != 1:
                return False
            if before is not None:
                _accept(connection, job_id, before.pause, before.stop_accepted)
            if to in TOLD:
                _note(connection, job_id, to)
            return True

        return self._db.write(move)

    def amend(self, job_id: str, spec: Mapping[str, Any], digest: str, *, expect: str) -> bool:
        """Replace the spec of a job whose digest still is ``expect``; else return False.

        False means that another process was first. For limits of the job as a whole only: workers
        keep what they have read of a spec.
        """
        query = (
            update(jobs)
            .where(jobs.c.job_id == job_id, jobs.c.digest == expect)
            .values(spec=json_text(dict(spec)), digest=digest)
        )
        return self._db.write(lambda connection: connection.execute(query).rowcount) == 1

    def close(self, job_id: str, total: int | None = None) -> int:
        """Seal an open job with ``total`` documents; None counts its spool in the same transaction.

        Returns the total. Closing again with the same total changes nothing. Raises JobNotFound and
        JobClosed.
        """
        return self._db.write(lambda connection: _close(connection, job_id, total))

    def replay(
        self,
        job_id: str,
        *,
        reason: str | None = None,
        doc_ids: Sequence[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> tuple[Feed, int]:
        """Send visible dead letters again, as the next generation.

        Returns its feed and how many there are. Rows that never parsed have no request and stay as
        they are. A completed job runs again. Raises JobNotFound, JobNotReplayable and
        NothingToReplay.
        """
        chosen = dict(overrides or {})
        return self._db.write(
            lambda connection: _replay(connection, job_id, reason, doc_ids, chosen)
        )

    def _create(
        self,
        connection: Connection,
        job: NewJob,
        refused: Iterable[DeadLetter],
        keys: Iterable[bytes],
    ) -> tuple[bool, Row[Any]]:
        values = {
            "job_id": job.job_id,
            "job_key": job.job_key,
            "spec": json_text(job.spec),
            "source": json_text(job.source),
            "digest": job.digest,
            "state": str(JobState.RUNNING),
            "generation": 1,
            "total": job.total,
            "created_at": time.time(),
            "lane": job.lane or job.spec.get("lane"),
            "tenant": job.spec.get("tenant"),
        }
        created = (
            connection.execute(
                self._db.insert(jobs).values(values).on_conflict_do_nothing()
            ).rowcount
            == 1
        )
        if created:
            add_feed(connection, job.job_id, 1, job.feed_kind, parts=job.shards)
            _insert_refused(connection, refused)
            insert_pages(connection, job.job_id, keys)
            if job.taken is not None:
                _take(connection, job.taken)
        return created, connection.execute(select(jobs).where(jobs.c.job_key == job.job_key)).one()


def _accept(connection: Connection, job_id: str, pause: str, before: str | None) -> None:
    accepted = accepted_with(pause, read_accepted(before))
    if accepted is not None:
        connection.execute(
            update(jobs)
            .where(jobs.c.job_id == job_id)
            .values(stop_accepted=json_text(accepted.to_json()))
        )


def _note(connection: Connection, job_id: str, to: JobState) -> None:
    """Note an event for the webhooks of the job's tenant.

    It is in the transaction of the change, so that there is an event for it, and none without it.
    """
    tenant = connection.execute(select(jobs.c.tenant).where(jobs.c.job_id == job_id)).scalar_one()
    note_event(connection, tenant, f"job.{to}", job_id)


def _take(connection: Connection, taken: TakenFiles) -> None:
    """Store which files the job has taken. Raises FilesTaken where another job has one of them.

    This happens with the job, or not at all: no process that dies in between leaves a file without
    its job, or with two.
    """
    rows = [{"schedule_id": taken.schedule_id, "file": file} for file in taken.files]
    try:
        connection.execute(insert(taken_files), rows)
    except IntegrityError:
        raise FilesTaken from None


def _differences(known: Job, new: NewJob) -> list[str]:
    """Return how a submit differs from the job that has its key.

    Each field comes with both values, cut to some characters.
    """
    differences = [
        f"{name} was {_shown(known.spec.get(name))}, is now {_shown(new.spec.get(name))}"
        for name in sorted(known.spec.keys() | new.spec.keys())
        if known.spec.get(name) != new.spec.get(name)
    ]
    places = [str(source.get("uri", source.get("kind"))) for source in (known.source, new.source)]
    if places[0] != places[1]:
        differences.append(f"source was {places[0]}, is now {places[1]}")
    elif any(
        known.source.get(name) != new.source.get(name)
        for name in ("sha256", "etag", "size", "keys_sha256")
    ):
        differences.append(f"the content of {places[0]} has changed")
    return differences


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def _insert_refused(connection: Connection, refused: Iterable[DeadLetter]) -> None:
    now = time.time()
    insert_outcomes(connection, [dead_letter_row(letter, now) for letter in refused])


def _close(connection: Connection, job_id: str, total: int | None) -> int:
    row = _locked(connection, job_id)
    if total is None:
        total = connection.execute(
            select(func.count()).where(spool.c.job_id == job_id)
        ).scalar_one()
    if row.total is None:
        connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(total=total))
    elif row.total != total:
        raise JobClosed(job_id, row.total)
    return total


def _replay(
    connection: Connection,
    job_id: str,
    reason: str | None,
    doc_ids: Sequence[str] | None,
    overrides: dict[str, Any],
) -> tuple[Feed, int]:
    row = _locked(connection, job_id)
    if row.state not in REPLAYED_IN:
        raise JobNotReplayable(job_id, row.state)
    generation = row.generation + 1
    mend_replays(connection, job_id)
    replayed = _supersede(connection, job_id, generation, reason, doc_ids)
    if replayed == 0:
        raise NothingToReplay(job_id, reason)
    again: dict[str, Any] = {}
    if row.state == JobState.COMPLETED:
        again = {"state": str(JobState.RUNNING), "reason": None, "pause": None, "finished_at": None}
    connection.execute(
        update(jobs).where(jobs.c.job_id == job_id).values(generation=generation, **again)
    )
    selection = {"reason": reason, "from_generation": row.generation, "documents": replayed}
    feed = add_feed(
        connection, job_id, generation, FeedKind.REPLAY, selection=selection, overrides=overrides
    )
    return feed, replayed


def _supersede(
    connection: Connection,
    job_id: str,
    generation: int,
    reason: str | None,
    doc_ids: Sequence[str] | None,
) -> int:
    """Take the chosen dead letters out of what is visible, and return how many they are."""
    wanted: list[ColumnElement[bool]] = [
        outcomes.c.job_id == job_id,
        literal_column("kind = 'dead'"),  # literal, so that the partial index is used
        outcomes.c.superseded_by.is_(None),
        REPLAYABLE,
    ]
    if reason is not None:
        wanted.append(outcomes.c.reason == reason)
    mark = update(outcomes).where(*wanted).values(superseded_by=generation)
    if doc_ids is None:
        connection.execute(mark)
    for start in range(0, len(doc_ids or ()), STATEMENT_MAX):
        connection.execute(
            mark.where(outcomes.c.doc_id.in_((doc_ids or ())[start : start + STATEMENT_MAX]))
        )
    return supersede(connection, job_id, generation)


def _locked(connection: Connection, job_id: str) -> Row[Any]:
    row = connection.execute(
        select(jobs).where(jobs.c.job_id == job_id).with_for_update()
    ).one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    return row


def job_of(row: Row[Any]) -> Job:
    return Job(
        job_id=row.job_id,
        job_key=row.job_key,
        spec=orjson.loads(row.spec),
        source=orjson.loads(row.source),
        digest=row.digest,
        state=JobState(row.state),
        reason=row.reason,
        generation=row.generation,
        total=row.total,
        created_at=row.created_at,
        finished_at=row.finished_at,
        resume_at=row.resume_at,
        lane_now=row.lane,
        moves=row.moves,
        why=read_reason(row.pause, row.reason),
        accepted=_accepted(row),
        tier_now=row.tier,
    )


def _accepted(row: Row[Any]) -> Accepted | None:
    """Return what was accepted of the job.

    A process of a release without these columns that let the job go on has left its pause.
    """
    known = read_accepted(row.stop_accepted)
    if row.pause is None or row.state != JobState.RUNNING:
        return known
    return accepted_with(row.pause, known) or known
