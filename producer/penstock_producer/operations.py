"""People and services change a job that was accepted by these operations.

The operations are pause, resume, cancel, move, limit, replay and purge.

Each operation stands here once. It checks, writes SQL, which says what is true, and tells Redis the
state and the lane of the job, so that workers see them at once. It returns what became of the job,
or raises JobRefused with a code, SpecError for a value that cannot be used, and what the ledger
raises of replays. Doors find the job, say who may do what, and translate both.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock_ledger import (
    BY_HAND,
    BatchFigures,
    BatchState,
    Database,
    JobStore,
    LaneMoves,
    OutcomeStore,
    needed_by,
    purge_job,
)
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import by_hand
from penstock_producer.accepting.acceptance import check_acceptable, check_other_lane
from penstock_producer.accepting.new_jobs import digest_of
from penstock_producer.errors import JobRefused, Problem, Refusal, SinkError, SpecError, seen
from penstock_producer.job.endpoints import IMAGE_EDITS, IMAGES
from penstock_producer.job.lanes import LANES, lanes_in_words, packs
from penstock_producer.job.options import STOP_FIELDS
from penstock_producer.job.spec import OFF, JobSpec
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources.overrides import Overrides
from penstock_producer.storage import IMAGE_FILE, remove_files

if TYPE_CHECKING:
    from penstock_ledger import RedisLedger

__all__ = ["LIMITS", "Changed", "JobOperations", "Replayed"]

log = logging.getLogger(__name__)

LIMITS: Final = ("budget_usd", "deadline_s", *STOP_FIELDS)
_MICRO: Final = 1_000_000

_LIVE: Final = (JobState.RUNNING, JobState.PAUSED)
# From which states an operation leads to one, and in which there is nothing left to do. Pausing a
# paused job makes the pause that of who asks: it ends no more by itself.
_FROM: Final = {
    JobState.PAUSED: _LIVE,
    JobState.RUNNING: (JobState.PAUSED,),
    JobState.CANCELLING: _LIVE,
}
_ALREADY: Final[Mapping[JobState, Sequence[JobState]]] = {
    JobState.PAUSED: (),
    JobState.RUNNING: (JobState.RUNNING,),
    JobState.CANCELLING: (JobState.CANCELLING, JobState.CANCELLED),
}


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of an operation on a job."""

    job: Job
    changed: bool  # False: it was as was asked for already


@dataclass(frozen=True, slots=True)
class Replayed:
    """A new generation of a job."""

    job: Job
    documents: int


class JobOperations:
    """Over one database.

    ``hot`` is None where no Redis is at hand: the control process tells workers within a second, as
    it does where Redis does not answer. All methods block.
    """

    def __init__(
        self, database: Database, settings: ProducerSettings, hot: RedisLedger | None = None
    ) -> None:
        self._database = database
        self._settings = settings
        self._hot = hot
        self._jobs = JobStore(database)

    def pause(self, job: Job, note: str) -> Changed:
        """Start nothing more of a job; what is in flight ends. ``note`` says why, for people."""
        return self._set_state(job, JobState.PAUSED, "pause", note)

    def resume(self, job: Job) -> Changed:
        """Let a paused job go on."""
        return self._set_state(job, JobState.RUNNING, "resume", None)

    def cancel(self, job: Job, note: str) -> Changed:
        """End a job: documents that have not begun become dead letters `cancelled`."""
        return self._set_state(job, JobState.CANCELLING, "cancel", note)

    def move(self, job: Job, lane: str, note: str) -> Changed:
        """Let a running job go on in another lane; what is done stays."""
        if lane not in LANES:
            fix = f"lanes are {lanes_in_words()}"
            message = f"there is no lane {seen(lane)}"
            raise SpecError([Problem("invalid_value", "/lane", message, fix)])
        if job.state is not JobState.RUNNING:
            raise _not_now(job, "move")
        if lane == job.lane:
            raise JobRefused(Refusal.SAME_LANE, job.job_key, lane=lane)
        check_other_lane(JobSpec.accepted(job.spec), lane, self._settings)
        shards = self._jobs.shards(job.job_id)
        if packs(lane) and any(not shard.exhausted for shard, _ in shards):
            raise JobRefused(Refusal.SEVERAL_FEEDERS, job.job_key, lane=lane)
        moves, now = LaneMoves(self._database), time.time()
        if moves.move(job.job_id, job.lane, lane, BY_HAND, note, {}, now=now) is None:
            raise JobRefused(Refusal.CHANGED, job.job_key)
        return Changed(self._tell_workers(job), changed=True)

    def limit(self, job: Job, limits: Mapping[str, Any]) -> Changed:
        """Give a job another budget, deadline or bound of its stop-loss.

        ``limits`` are some of LIMITS: what is left out stays, None lifts it. Submitting with them
        again then is the same job. Of a job that has a budget the prices are known, maybe to its
        workers only.
        """
        if job.state.final:
            raise _not_now(job, "limit")
        if not limits:
            return Changed(self._tell_workers(job), changed=False)
        budget_usd = limits.get("budget_usd")
        if budget_usd is not None:
            self._check_not_spent(job, budget_usd)
        bounds = dict(limits)
        if bounds.get("stop_at_dead", OFF) is None:
            bounds["stop_at_dead"] = OFF
        spec = JobSpec.accepted({**job.spec, **bounds})
        if job.spec.get("budget_usd") is None:
            check_acceptable(spec, self._settings.prices(spec.provider))
            if budget_usd is not None and job.lane not in spec.permitted_lanes:
                check_other_lane(spec, job.lane, self._settings)  # it was moved there by hand
        digest = digest_of(spec, job.source)
        if not self._jobs.amend(job.job_id, spec.to_json(), digest, expect=job.digest):
            raise JobRefused(Refusal.CHANGED, job.job_key)
        return Changed(self._tell_workers(job), changed=True)

    def replay(
        self,
        job: Job,
        *,
        reason: str | None = None,
        doc_ids: Sequence[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Replayed:
        """Try dead letters again, changed or as they were, as a new generation.

        A job that is paused stays paused. Raises JobNotReplayable and NothingToReplay, too."""
        changes = dict(overrides or {})
        Overrides(changes, str(job.spec["endpoint"]))
        if changes.get("body") is not None and len(doc_ids or ()) != 1:
            message, fix = "a body is one document's", "name one document"
            raise SpecError([Problem("invalid_value", "/body", message, fix)])
        _, number = self._jobs.replay(job.job_id, reason=reason, doc_ids=doc_ids, overrides=changes)
        return Replayed(self._tell_workers(job), number)

    def check_purge(self, job: Job, *, leave_batches: bool = False) -> None:
        """Raise what ``purge`` would raise, for doors that ask before it."""
        if not job.state.final:
            raise _not_now(job, "purge")
        reader = needed_by(self._database, job.job_id)
        if reader is not None:
            raise JobRefused(Refusal.NEEDED, job.job_key, by=reader)
        sums = [] if leave_batches else BatchFigures(self._database).sums(job.job_id)
        open_ones = [one for one in sums if one.state != BatchState.SETTLED]
        if open_ones:
            number = sum(one.batches for one in open_ones)
            providers = ", ".join(sorted({one.provider for one in open_ones}))
            raise JobRefused(Refusal.OPEN_BATCHES, job.job_key, batches=number, providers=providers)

    def purge(self, job: Job, *, leave_batches: bool = False) -> int:
        """Forget a job that has ended; returns how many outcomes were deleted.

        ``leave_batches`` forgets batches, too, that still run at a provider, which charges for
        them. What was begun goes on when it is asked for again."""
        self.check_purge(job, leave_batches=leave_batches)
        self._remove_images(job)  # first: once the job is forgotten, none would look for them
        outcomes = purge_job(self._database, job.job_id)
        if self._hot is not None:
            from redis import RedisError

            try:
                self._hot.forget(job.job_id)
            except RedisError as error:
                log.warning(
                    "job %s was purged, and its keys stay in Redis, which does not answer: %s",
                    job.job_id,
                    error,
                )
        return outcomes

    def _remove_images(self, job: Job) -> None:
        """Remove the images of its answers. Raises SinkError where they cannot be removed."""
        place = self._settings.images_place
        if place is None:
            return
        folder, s3 = f"{place.rstrip('/')}/{job.job_id}", self._settings.s3_endpoint_url
        try:
            remove_files(folder, IMAGE_FILE, s3_endpoint_url=s3)
        except SinkError as error:
            if job.spec.get("endpoint") in (IMAGES, IMAGE_EDITS):
                raise
            # of other jobs only lines that name these endpoints themselves have images
            log.warning("job %s is purged; images of it in %s stay: %s", job.job_id, folder, error)

    def _set_state(self, job: Job, to: JobState, operation: str, note: str | None) -> Changed:
        why = None if note is None else by_hand(note)
        moved = self._jobs.set_state(job.job_id, to, why=why, expect=_FROM[to])
        now = self._tell_workers(job)
        if not moved and now.state not in _ALREADY[to]:
            raise _not_now(now, operation)
        return Changed(now, changed=moved and job.state is not to)

    def _check_not_spent(self, job: Job, budget_usd: float) -> None:
        spent = OutcomeStore(self._database).counts(job.job_id).cost_microusd / _MICRO
        if budget_usd <= spent:
            message = f"{budget_usd:g} USD is refused: {spent:.4f} USD are spent already"
            fix = "give a larger sum, of all that the job may cost"
            raise SpecError([Problem("invalid_value", "/budget_usd", message, fix)])

    def _tell_workers(self, job: Job) -> Job:
        """Tell workers where the job stands now, and return it.

        That it runs is for control to tell them, once it has lifted the hold of the job's provider:
        that would stop its items."""
        now = self._jobs.get(job.job_id)
        if self._hot is not None:
            from redis import RedisError

            with contextlib.suppress(RedisError):
                if now.state is not JobState.RUNNING:
                    self._hot.set_job_state(now.job_id, now.state)
                self._hot.set_job_lane(now)
        return now


def _not_now(job: Job, operation: str) -> JobRefused:
    return JobRefused(Refusal.STATE, job.job_key, state=str(job.state), operation=operation)
