"""The journal of provider batches is read here: figures, states, and what they hold."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    case,
    exists,
    func,
    not_,
    or_,
    select,
)

from penstock_ledger.model import JobState
from penstock_ledger.provider_batch import (
    BatchesOpen,
    BatchFailure,
    BatchState,
    BatchSum,
    BatchTrouble,
    Missing,
    ProviderBatch,
)
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import batch_remainders, jobs
from penstock_ledger.sql.tables import provider_batch_ids as ids
from penstock_ledger.sql.tables import provider_batches as table
from penstock_ledger.stores.account import cost_of_jobs

SUMS_MAX: Final = 200  # kinds of provider batches that a job is summed up by
TROUBLES_MAX: Final = 1_000  # batches of a job whose troubles are summed up
# the states that are open, and not "not settled": an index finds these
IS_OPEN: Final = table.c.state.in_([str(state) for state in BatchState if state != "settled"])
_AT_PROVIDER: Final = (BatchState.UPLOADED, BatchState.CREATED)
# then the journal says why a batch has ended
_READ: Final = (BatchState.COLLECTED, BatchState.SETTLED)
# failures of such batches
_CUT_SHORT: Final[tuple[str | None, ...]] = (
    "lane_left",
    "batch_cancelled",
    "batch_stuck",
    "batch_refused",
)
# times as many batches as are wanted, since some of them were cut short
_LOOKED_AT: Final = 4
# Since its end a batch that a living worker leads keeps its documents for so long: its answers are
# read.
_READING_S: Final = 1_800.0
_TAKEN: Final = select(func.count(), func.coalesce(func.sum(table.c.requests), 0)).where(
    table.c.job_id == bindparam("job"), table.c.remote_id.is_not(None)
)
_OF_BATCH: Final = tuple(ProviderBatch.__dataclass_fields__)


class BatchFigures:
    """Of the provider batches of all jobs. Nothing is written."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def failed_in_a_row(self, job_id: str, at_least: int, name: str) -> bool:
        """Return whether the newest batches, so many that were created, have all failed so."""
        query = select(table.c.failure, table.c.why)
        query = query.where(table.c.job_id == job_id, table.c.created_at.is_not(None))
        newest = query.order_by(table.c.created_at.desc()).limit(at_least)
        rows = self._db.rows(newest)
        return len(rows) == at_least and all(_failure_in(row) == name for row in rows)

    def tokens_beside(self, batch: ProviderBatch) -> int:
        """Return the tokens of all other batches that are at its provider."""
        return int(
            self._db.read(lambda connection: connection.execute(held_beside(batch)).scalar_one())
        )

    def spent(self, job_id: str) -> int:
        """Return millionths of a dollar that are in the job's account."""
        return self._db.read(lambda connection: cost_of_jobs(connection, [job_id]))

    def may_cost(self, job_id: str) -> dict[str, int]:
        """Return the most that each batch which may be at its provider costs, by their tags.

        None is settled."""
        query = select(table.c.tag, table.c.may_cost_microusd)
        query = query.where(table.c.job_id == job_id, IS_OPEN, table.c.creating_at.is_not(None))
        return {row[0]: int(row[1]) for row in self._db.rows(query)}

    def tags_of(self, job_id: str) -> set[str]:
        """Return the tags of a job's batches that are not settled."""
        query = select(table.c.tag).where(table.c.job_id == job_id, IS_OPEN)
        return self._db.read(lambda connection: set(connection.execute(query).scalars()))

    def to_hand_over(self, job_id: str) -> list[ProviderBatch]:
        """Return unsettled batches whose documents are in no other lane, the oldest first.

        Those whose answers a living worker reads now are left out; answers that are missing are not
        being read."""

        def read(connection: Connection) -> list[ProviderBatch]:
            is_led = and_(
                table.c.owner.is_not(None), table.c.lease_until > self._db.now(connection)
            )
            is_fresh = func.coalesce(table.c.ended_at, 0.0) > time.time() - _READING_S
            has_ended = table.c.state.in_((BatchState.ENDED, BatchState.COLLECTED))
            is_read = and_(has_ended, is_led, is_fresh, table.c.missing.is_(None))
            query = select(table).where(
                table.c.job_id == job_id, IS_OPEN, table.c.handed_at.is_(None), not_(is_read)
            )
            return [
                batch_of(row)
                for row in connection.execute(query.order_by(table.c.packed_at, table.c.tag))
            ]

        return self._db.read(read)

    def holds_documents(self, job_id: str, generation: int) -> bool:
        """Return whether batches at work hold documents of a generation.

        Those are neither settled nor handed over."""
        query = select(
            exists().where(
                table.c.job_id == job_id,
                table.c.generation == generation,
                IS_OPEN,
                table.c.handed_at.is_(None),
            )
        )
        return bool(self._db.read(lambda connection: connection.execute(query).scalar_one()))

    def get(self, tag: str) -> ProviderBatch | None:
        """Return a batch; None for one of a job that was purged."""
        rows = self._db.rows(select(table).where(table.c.tag == tag))
        return batch_of(rows[0]) if rows else None

    def is_handed_over(self, tag: str) -> bool:
        query = select(table.c.handed_at).where(table.c.tag == tag)
        return (
            self._db.read(lambda connection: connection.execute(query).scalar_one_or_none())
            is not None
        )

    def open_of(self, job_id: str) -> int:
        """Return how many batches of a job are not settled."""
        query = select(func.count()).where(table.c.job_id == job_id, IS_OPEN)
        return self._db.read(lambda connection: connection.execute(query).scalar_one())

    def is_busy(self, job_id: str) -> bool:
        """Return whether documents of a job are in a batch, or wait for one or another lane."""
        in_batch = exists().where(table.c.job_id == job_id, IS_OPEN, table.c.handed_at.is_(None))
        waits = exists().where(batch_remainders.c.job_id == job_id)
        return bool(
            self._db.read(
                lambda connection: connection.execute(select(or_(in_batch, waits))).scalar_one()
            )
        )

    def open_tags(self) -> set[str]:
        """Return the tags of all batches that are not settled."""
        query = select(table.c.tag).where(IS_OPEN)
        return self._db.read(lambda connection: set(connection.execute(query).scalars()))

    def packed_waiting(self, provider: str) -> int:
        """Count batches of a provider that wait to be created.

        Their files take room, and their turn has not come. Those of jobs that are paused do not
        count: other jobs would wait until a person resumes them."""
        running = select(jobs.c.job_id).where(jobs.c.state == str(JobState.RUNNING))
        query = select(func.count()).where(
            table.c.state.in_((BatchState.PACKED, BatchState.UPLOADED)),
            table.c.provider == provider,
            table.c.job_id.in_(running),
        )
        return self._db.read(lambda connection: connection.execute(query).scalar_one())

    def of_job(self, job_id: str, limit: int = 1_000) -> list[ProviderBatch]:
        """Return the batches of a job, oldest first."""
        query = (
            select(table)
            .where(table.c.job_id == job_id)
            .order_by(table.c.packed_at, table.c.tag)
            .limit(limit)
        )
        return [batch_of(row) for row in self._db.rows(query)]

    def sums(self, job_id: str) -> list[BatchSum]:
        """Return the batches of a job, summed up by their states."""
        columns = table.c

        def read(connection: Connection) -> list[BatchSum]:
            is_led = case(
                (
                    and_(
                        columns.owner.is_not(None), columns.lease_until > self._db.now(connection)
                    ),
                    1,
                ),
                else_=0,
            )
            query = (
                select(
                    columns.state,
                    columns.status,
                    columns.provider,
                    func.count().label("batches"),
                    func.sum(columns.requests).label("requests"),
                    func.sum(columns.succeeded).label("succeeded"),
                    func.sum(columns.failed).label("failed"),
                    func.count(columns.succeeded).label("counted"),
                    func.max(columns.why).label("why"),
                    func.sum(is_led).label("led"),
                    func.coalesce(func.sum(columns.unread), 0).label("unread"),
                    func.sum(columns.unread_microusd).label("unread_microusd"),
                    func.count(columns.unread_microusd).label("priced"),
                    func.count(columns.unread).label("with_unread"),
                )
                .where(columns.job_id == job_id)
                .group_by(columns.state, columns.status, columns.provider)
                .order_by(func.min(columns.packed_at))
                .limit(SUMS_MAX)
            )
            troubles = _troubles(connection, job_id)
            return [_sum_of(row, troubles) for row in connection.execute(query)]

        return self._db.read(read)

    def created(self, job_id: str) -> tuple[int, int]:
        """Return how many batches of a job providers took, and the requests in them."""
        batches, requests = self._db.read(
            lambda connection: connection.execute(_TAKEN, {"job": job_id}).one()
        )
        return int(batches), int(requests)

    def unread(self, job_id: str) -> tuple[int, int | None]:
        """Return the answers that were paid for and could not be read, and their cost at most.

        It is in millionths of a dollar; None where for some of them no price is known."""
        columns = table.c
        query = select(
            func.coalesce(func.sum(columns.unread), 0),
            func.coalesce(func.sum(columns.unread_microusd), 0),
            func.count(columns.unread),
            func.count(columns.unread_microusd),
        ).where(columns.job_id == job_id)
        answers, cost, of, priced = self._db.read(
            lambda connection: connection.execute(query).one()
        )
        return int(answers), int(cost) if of == priced else None

    def open_times(self, job_id: str) -> BatchesOpen:
        """Return since when the batches of a job run, or wait to be created."""
        columns, waiting = table.c, (str(BatchState.PACKED), str(BatchState.UPLOADED))
        waits = columns.state.in_(waiting)
        query = select(
            func.min(columns.created_at).filter(
                or_(columns.state == str(BatchState.CREATED), columns.missing.is_not(None))
            ),
            func.min(columns.packed_at).filter(waits),
            func.max(columns.why).filter(waits),
            func.coalesce(
                func.sum(columns.succeeded).filter(columns.state == str(BatchState.CREATED)), 0
            ),
        ).where(columns.job_id == job_id, IS_OPEN)
        return self._db.read(lambda connection: _open_of(connection.execute(query).one()))

    def lasted(self, provider: str, limit: int) -> list[float]:
        """Return the seconds that the provider's last batches of all jobs took.

        They count from the create to the end, as it worked on them: without those that were
        cancelled or refused, or that their job did not wait for."""
        columns = table.c
        status = func.lower(func.coalesce(columns.status, ""))
        seconds = (columns.ended_at - columns.created_at).label("lasted")
        ended = select(seconds, columns.failure, columns.why).where(
            columns.provider == provider,
            columns.created_at.is_not(None),
            columns.ended_at.is_not(None),
            columns.state.in_(_READ),
            columns.handed_at.is_(None),
            status.not_like("%cancel%"),
            status.not_like("%fail%"),
        )
        query = ended.order_by(columns.ended_at.desc()).limit(_LOOKED_AT * limit)
        rows = self._db.rows(query)
        whole = [float(row.lasted) for row in rows if _failure_in(row) not in _CUT_SHORT]
        return whole[:limit]

    def kept_ids(self, tag: str) -> bytes | None:
        """Return which documents a batch has, as its packer wrote it.

        It is None where that was too much, or the batch is settled."""
        query = select(ids.c.ids).where(ids.c.tag == tag)
        return self._db.read(lambda connection: connection.execute(query).scalar_one_or_none())


def _failure_in(row: Any) -> str | None:
    failure = BatchFailure.read(row.failure, row.why)
    return None if failure is None else failure.name


def held_beside(batch: ProviderBatch) -> Any:
    at_provider: tuple[ColumnElement[bool], ...] = (
        table.c.provider == batch.provider,
        table.c.state.in_(_AT_PROVIDER),
        table.c.creating_at.is_not(None),
        table.c.tag != batch.tag,
    )
    return select(func.coalesce(func.sum(table.c.tokens), 0)).where(*at_provider)


def batch_of(row: Row[Any], *, fence: int | None = None) -> ProviderBatch:
    values = {name: getattr(row, name) for name in _OF_BATCH}
    for name in ("cursor_before", "cursor_behind"):
        values[name] = None if values[name] is None else orjson.loads(values[name])
    values["state"] = BatchState(row.state)
    values["trouble"], values["missing"] = (
        BatchTrouble.from_text(row.trouble),
        Missing.from_text(row.missing),
    )
    values["failure"] = BatchFailure.read(row.failure, row.why)
    values["fence"] = row.fence if fence is None else fence
    return ProviderBatch(**values)


def _open_of(row: Any) -> BatchesOpen:
    created_at, waits_since, why, answered = row
    return BatchesOpen(created_at, waits_since, why, int(answered))


Kind = tuple[str, str | None, str]  # state, status, provider
Troubles = Mapping[Kind, tuple[tuple[int, BatchTrouble], ...]]


def _troubles(connection: Connection, job_id: str) -> Troubles:
    """Return the troubles of a job's open batches, those that are alike together.

    Each is shown by the one that is tried next."""
    columns = table.c
    query = select(columns.state, columns.status, columns.provider, columns.trouble)
    query = query.where(columns.job_id == job_id, IS_OPEN, columns.trouble.is_not(None)).limit(
        TROUBLES_MAX
    )
    found: defaultdict[Kind, dict[tuple[str, str], tuple[int, BatchTrouble]]] = defaultdict(dict)
    for state, status, provider, text in connection.execute(query):
        trouble = BatchTrouble.from_text(text)
        if trouble is None:
            continue
        alike = found[state, status, provider]
        number, other = alike.get((trouble.call, trouble.name), (0, trouble))
        shown = min(trouble, other, key=lambda one: one.again_at)
        since, times = min(trouble.since, other.since), max(trouble.times, other.times)
        alike[trouble.call, trouble.name] = number + 1, shown._replace(since=since, times=times)
    return {kind: tuple(alike.values()) for kind, alike in found.items()}


def _sum_of(row: Any, troubles: Troubles) -> BatchSum:
    counted = row.counted == row.batches
    is_priced = row.with_unread > 0 and row.priced == row.with_unread
    return BatchSum(
        BatchState(row.state),
        row.status,
        row.batches,
        int(row.requests),
        int(row.succeeded) if counted else None,
        int(row.failed or 0) if counted else None,
        row.why,
        int(row.led),
        row.provider,
        troubles.get((row.state, row.status, row.provider), ()),
        int(row.unread),
        int(row.unread_microusd) if is_priced else None,
    )
