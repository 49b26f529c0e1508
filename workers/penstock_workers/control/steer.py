"""What one job needs now: feeding, writing off, pausing, reconciling, finishing. Each step is bounded, none blocks."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from penstock_ledger import Database, FeedLost, JobStore, OutcomeStore, RedisAddress, RedisForgot, RedisLedger
from penstock_ledger.model import Feed, Job, JobState
from penstock_ledger.redaction import redact
from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_producer.feeder import Feeder, open_feeder
from penstock_producer.repair import write_off
from penstock_producer.spec import JobSpec
from penstock_producer.wire import item_tag, queue_name
from penstock_ratelimit.quota_hash import lift_hold
from penstock_workers.control.books import Books, Unbalanced
from penstock_workers.control.budget import MICROUSD, affordable, mean_cost
from penstock_workers.control.counted import Counted
from penstock_workers.control.finish import Finisher
from penstock_workers.control.reconcile import Reconciler
from penstock_workers.control.recover import stats_from
from penstock_workers.control.room import Room
from penstock_workers.settings import DEFAULT_PROVIDER, WorkerSettings
from penstock_workers.stores import REDIS_TIMEOUT_S
from penstock_workers.tracing import Tracing

log = logging.getLogger(__name__)

FEED_LEASE_S = 15.0  # a dead leader is replaced after this; renewed at every tick
FEED_MAX = 5_000  # documents published per job and tick, so that no job holds up the others for long
UNPARK_MAX = 2_000  # messages of a resumed job brought back per tick
CANCEL_WAIT_S = (
    900.0  # for calls under way of a cancelled job: longer than any call, its retries in the worker included
)
WRITE_OFF_MAX = 2_000  # documents of a cancelled job written off per tick


@dataclass(slots=True)
class _Led:
    """A feed that this process leads. Touched only by the control thread."""

    feeder: Feeder
    reconciler: Reconciler
    next_round: float  # monotonic time of the next reconciliation


class Steering:
    """Leads the feeds whose leases this process holds; looks at every live job all the same."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: Database,
        hot: RedisLedger,
        counted: Counted,
        *,
        owner: str,
        tracing: Tracing | None = None,
    ) -> None:
        self._settings = settings
        self._tracing = tracing
        self._counted = counted
        self._database = database
        self._jobs = JobStore(database)
        self._outcomes = OutcomeStore(database)
        self._hot = hot
        self._owner = owner
        self._room = Room(hot, settings.window)
        self._finisher = Finisher(settings, self._outcomes)
        self._books = Books(self._jobs, self._outcomes)
        self._cancelling: dict[str, float] = {}  # jobs that are being cancelled -> monotonic time of our first look
        self._led: dict[tuple[str, int], _Led] = {}
        self._affordable: dict[
            str, int | None
        ] = {}  # documents that a live job's budget still pays for; None: no bound
        self._paused: dict[
            str, float | None
        ] = {}  # jobs that were paused when last looked at -> when that ends by itself
        self._running: set[str] = set()  # jobs that ran when last looked at
        self._quotas = RedisAddress.parse(settings.redis_url).connect(socket_timeout=REDIS_TIMEOUT_S)

    def steer(self, job: Job) -> None:
        """One bounded step for one job."""
        self._lift_hold(job)  # before workers hear that it runs: its items would meet the hold and pause it again
        self._hot.set_job_state(job.job_id, job.state)
        if job.state is JobState.PAUSED:
            self._paused[job.job_id] = job.resume_at
            self._resume_when_over(job)
            return
        feeds = [(feed, led) for feed in self._jobs.feeds(job.job_id) if (led := self._lead(job, feed)) is not None]
        if job.state is JobState.CANCELLING:
            self._cancel(job, feeds)
            return
        if self._over_limits(job):
            return
        if feeds:  # the leader
            self._hot.unpark(job.job_id, self._queue(job), UNPARK_MAX)
        for feed, led in feeds:
            self._advance(job, feed, led)
        if any(feed.generation == job.generation for feed, _ in feeds):  # one process counts, and writes the outputs
            self._finish(job)

    def _resume_when_over(self, job: Job) -> None:
        """The provider said how long to stay away, and that is over. Any control process may find it; one of them does it."""
        if job.resume_at is None or time.time() < job.resume_at:
            return
        if self._move(job, JobState.RUNNING, None):
            log.info("job %s goes on by itself: its pause is over (%s)", job.job_id, job.reason)

    def _lift_hold(self, job: Job) -> None:
        """Whoever resumes a job says that its provider's account is in order.

        Redis still calls the job paused until a control process sees that it was resumed, so one that has started since
        knows it as well. A job that went on by itself says nothing of the account: somebody else's hold stays.
        """
        if job.state is not JobState.RUNNING:
            self._running.discard(job.job_id)
            return
        if job.job_id in self._running:
            return
        self._running.add(job.job_id)
        ends_at = self._paused.pop(job.job_id, None)
        if ends_at is not None and time.time() >= ends_at:
            return
        if not self._hot.is_paused(job.job_id) or self._jobs.get(job.job_id).state is not JobState.RUNNING:
            return  # the second: it was paused after this tick had read it
        provider = str(job.spec.get("provider", DEFAULT_PROVIDER))
        if lift_hold(self._quotas, provider):
            log.info("job %s was resumed: the hold on provider %s is lifted", job.job_id, provider)

    @property
    def leads(self) -> int:
        """Feeds that this process leads."""
        return len(self._led)

    def windows(self) -> dict[str, int]:
        return self._room.windows()

    def look_around(self, live: Collection[Job]) -> None:
        """Let go of feeds whose jobs are no longer live, and see who shares the queues."""
        self._room.look_around(live)
        names = {job.job_id for job in live}
        self._affordable = {job_id: left for job_id, left in self._affordable.items() if job_id in names}
        self._books.forget_others(names)
        self._cancelling = {job_id: since for job_id, since in self._cancelling.items() if job_id in names}
        self._running &= names
        self._paused = {job_id: ends_at for job_id, ends_at in self._paused.items() if job_id in names}
        for job_id, generation in [name for name in self._led if name[0] not in names]:
            del self._led[(job_id, generation)]

    def release_all(self) -> None:
        """Hand the leases over at once instead of letting them run out."""
        self._finisher.close()
        self._quotas.close()
        for led in self._led.values():
            self._jobs.release_feed(led.feeder.feed, self._owner)
        self._led.clear()

    def _lead(self, job: Job, feed: Feed) -> _Led | None:
        """Take or renew the lease of a feed; None while another process leads it."""
        name = (feed.job_id, feed.generation)
        leased = self._jobs.lease_feed(feed.job_id, feed.generation, self._owner, FEED_LEASE_S)
        led = self._led.get(name)
        if leased is None:
            self._led.pop(name, None)
            return None
        if led is not None and led.feeder.feed.fence == leased.fence:
            led.feeder.lead(leased)
        else:
            led = self._led[name] = _Led(
                feeder=self._open_feeder(job, leased),
                reconciler=Reconciler(self._outcomes, self._hot),
                next_round=time.monotonic() + self._settings.reconcile_interval_s,
            )
        return led

    def _open_feeder(self, job: Job, feed: Feed) -> Feeder:
        spans = None if self._tracing is None else self._tracing.of_feed(job, feed)
        return open_feeder(
            self._database, self._hot, job, feed, owner=self._owner, settings=self._settings, spans=spans
        )

    def _advance(self, job: Job, feed: Feed, led: _Led) -> None:
        lane = str(job.spec["lane"])
        try:
            if not feed.exhausted:
                room, led.feeder.urgent = self._room.for_feed(job, feed.generation, ordered=led.feeder.ordered)
                room = self._within_budget(job, room)
                if room:
                    fed = led.feeder.step(min(room, FEED_MAX))
                    self._counted.add("fed", lane, fed.published)
            if time.monotonic() >= led.next_round:
                led.next_round = time.monotonic() + self._settings.reconcile_interval_s
                self._counted.add("reconciles", lane, 1)
                self._counted.add("republished", lane, led.reconciler.round(job, feed, led.feeder, queue_name(lane)))
        except FeedLost:
            self._led.pop((feed.job_id, feed.generation), None)
        except RedisForgot:
            log.warning("job %s: Redis forgot while it was fed; the next tick rebuilds it", job.job_id)
        except SourceUnavailable as error:
            self._move(job, JobState.PAUSED, str(error))
        except SourceError as error:
            self._move(job, JobState.FAILED, str(error))

    def _within_budget(self, job: Job, room: int) -> int:
        """At most what the budget pays for; several feeds of one job share that."""
        left = self._affordable.get(job.job_id)
        if left is None:
            return room
        room = min(room, left)
        self._affordable[job.job_id] = left - room
        return room

    def _over_limits(self, job: Job) -> bool:
        """Hold the job to its deadline and its budget."""
        spec = JobSpec.accepted(job.spec)
        if spec.deadline_s is not None and time.time() > job.created_at + spec.deadline_s:
            reason = f"deadline_exceeded: the job is older than its deadline of {spec.deadline_s:g} s"
            return self._move(job, JobState.CANCELLING, reason)
        if spec.budget_usd is None:
            self._affordable.pop(job.job_id, None)
            return False
        return self._over_budget(job, spec.budget_usd)

    def _over_budget(self, job: Job, budget_usd: float) -> bool:
        """Note what the budget still pays for; pause the job when that is nothing, unless it has all its outcomes."""
        stats = self._hot.stats(job.job_id)
        generations = range(1, job.generation + 1)
        under_way = sum(self._hot.outstanding_of([(job.job_id, generation) for generation in generations]))
        self._affordable[job.job_id] = affordable(budget_usd, stats, under_way)
        spent = stats.get("cost_microusd", 0) / MICROUSD
        if spent < budget_usd and (under_way or self._affordable[job.job_id] != 0):
            return False
        counts = self._outcomes.counts(job.job_id)
        if counts.succeeded + counts.dead == job.total:
            self._affordable[job.job_id] = None  # nothing is left to be paid: the feed finds its end
            return False
        mean = mean_cost(stats) or 0.0
        reason = (
            f"budget_exhausted: {spent:.4f} of {budget_usd:g} USD are spent, and a document costs about {mean:.4g}; "
            "resume with a higher budget_usd"
        )
        return self._move(job, JobState.PAUSED, reason)

    def _cancel(self, job: Job, feeds: list[tuple[Feed, _Led]]) -> None:
        """Give every document that has no outcome one: the dead letter `cancelled`."""
        if job.total is None:
            self._jobs.close(job.job_id)  # an open job takes no more documents; the next tick knows how many there are
            return
        self._hot.unpark(job.job_id, self._queue(job), UNPARK_MAX)  # for workers to see that they are cancelled
        lease_s = self._settings.visibility_timeout_s
        patient_until = self._cancelling.setdefault(job.job_id, time.monotonic()) + CANCEL_WAIT_S
        if time.monotonic() < patient_until and any(
            self._hot.under_way(self._queue(job), job.job_id, feed.generation, item_tag, lease_s) for feed, _ in feeds
        ):
            return  # what is being paid for may still have its result; nothing more starts
        try:
            if any(not write_off(led.feeder, WRITE_OFF_MAX).exhausted for _, led in feeds):
                return
        except SourceError as error:
            reason = f"{job.reason}; documents that were not started have no dead letter, because {error}"
            self._move(job, JobState.CANCELLED, reason)
            return
        except FeedLost:
            return  # somebody else leads now, or the feed was rewound; the next tick sees
        leads_newest = any(feed.generation == job.generation for feed, _ in feeds)  # one process counts
        if leads_newest and all(feed.exhausted for feed in self._jobs.feeds(job.job_id)):
            self._end_cancelled(job)

    def _end_cancelled(self, job: Job) -> None:
        """A cancel always ends: books that do not balance are told in its reason."""
        closed = self._books.close(job)
        if closed is None:
            return  # read once more; the missing documents are written off then
        reason = f"{job.reason}; {closed.reason}" if isinstance(closed, Unbalanced) else job.reason
        self._hot.reset_stats(job.job_id, stats_from(self._outcomes.counts(job.job_id)))
        self._move(job, JobState.CANCELLED, reason)

    def _move(self, job: Job, to: JobState, reason: str | None) -> bool:
        """Change the state that this tick found, in SQL and then for the workers; False when somebody else did."""
        moved = self._jobs.set_state(job.job_id, to, reason=reason and redact(reason), expect={job.state})
        if moved:
            self._hot.set_job_state(job.job_id, to)
        return moved

    def _finish(self, job: Job) -> None:
        """A job is complete when SQL counts one outcome for every document; Redis is only asked when it is time to count."""
        feeds = self._jobs.feeds(job.job_id)
        if job.total is None or not all(feed.exhausted for feed in feeds):
            return
        if any(self._hot.outstanding(feed.job_id, feed.generation) for feed in feeds):
            return
        closed = self._books.close(job)
        if isinstance(closed, Unbalanced):
            log.error("job %s: %s", job.job_id, closed.reason)
            self._move(job, closed.state, closed.reason)
        elif closed is not None and self._finisher.finished(job):
            if self._hot.stats(job.job_id).get("succeeded", 0) != closed.succeeded:  # drifted while Redis was rebuilt
                self._hot.reset_stats(job.job_id, stats_from(closed))
            self._move(job, JobState.COMPLETED, None)

    @staticmethod
    def _queue(job: Job) -> str:
        return queue_name(str(job.spec["lane"]))
