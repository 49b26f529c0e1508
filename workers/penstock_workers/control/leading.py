"""This process leads feeds and shards, by leases; only their leader feeds them.

Each step is bounded, none blocks.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock_ledger import (
    Database,
    FeedLost,
    JobSeen,
    LiveFeed,
    LiveJob,
    OutcomeStore,
    RedisForgot,
    RedisLedger,
)
from penstock_ledger.model import Feed, Job, JobState
from penstock_producer.feed.leased_feed import open_feeder
from penstock_producer.feed.queues import queue_name
from penstock_producer.job.lanes import packs
from penstock_workers.control.feeding import Feeding, is_open
from penstock_workers.control.feeds.leadership import Leadership, LedFeed
from penstock_workers.control.feeds.reconcile import Reconciler
from penstock_workers.control.feeds.shares import Processes
from penstock_workers.control.feeds.specs import Specs
from penstock_workers.control.fleet_figures import Counters
from penstock_workers.control.job.job_states import JobStates
from penstock_workers.control.leaving import Leaving
from penstock_workers.settings import WorkerSettings
from penstock_workers.tracing import Tracing

log = logging.getLogger(__name__)


class Led(NamedTuple):
    """The part of one job that this process leads."""

    feeds: Sequence[LedFeed]
    shards: Mapping[int, Sequence[LedFeed]]  # by the generation of their feed

    @property
    def every_shard(self) -> list[LedFeed]:
        return [part for parts in self.shards.values() for part in parts]


class Reconciliation:
    """The times to reconcile the feeds led here, and how often lost messages were found."""

    def __init__(self, counters: Counters, interval_s: float) -> None:
        self._counters, self._interval_s = counters, interval_s

    def next_at(self) -> float:
        return time.monotonic() + self._interval_s

    def round(self, job: Job, led: LedFeed, outstanding: int, held: Sequence[str]) -> None:
        """Publish lost documents again.

        ``outstanding`` is as this round found it, before it fed more; ``held`` are the queues of
        lanes that the job has left."""
        led.next_round = self.next_at()
        self._counters.add("reconciles", job.lane, 1)
        republished = led.reconciler.round(
            job, led.feeder.feed, led.feeder, queue_name(job.lane), outstanding, held
        )
        self._counters.add("republished", job.lane, republished)


class FeedOpener:
    """Opens the feeds that this process begins to lead."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: Database,
        hot: RedisLedger,
        specs: Specs,
        reconciliation: Reconciliation,
        *,
        owner: str,
        tracing: Tracing | None,
    ) -> None:
        self._settings, self._database, self._hot = settings, database, hot
        self._specs, self._reconciliation = specs, reconciliation
        self._owner, self._tracing = owner, tracing
        self._outcomes = OutcomeStore(database)

    def open(self, job: Job, feed: Feed) -> LedFeed:
        spans = None if self._tracing is None else self._tracing.of_feed(job, feed)
        feeder = open_feeder(
            self._database,
            self._hot,
            job,
            feed,
            owner=self._owner,
            settings=self._settings,
            spans=spans,
            spec=self._specs.of(job),
        )
        reconciler = Reconciler(self._outcomes, self._hot)
        return LedFeed(feeder, reconciler, self._reconciliation.next_at(), job.lane)


class Leading:
    """The feeds that this process leads, and its steps in a round, on the control thread."""

    def __init__(
        self,
        leadership: Leadership,
        processes: Processes,
        feeding: Feeding,
        leaving: Leaving,
        reconciliation: Reconciliation,
        states: JobStates,
        specs: Specs,
    ) -> None:
        self.leadership, self._processes, self._feeding = leadership, processes, feeding
        self._leaving, self._reconciliation = leaving, reconciliation
        self._states, self._specs = states, specs

    def prepare(self, live: Sequence[LiveJob], seen: Sequence[JobSeen]) -> None:
        """Renew and share what is led, and note which jobs share the queues."""
        names = {job.job_id for job, _ in live}
        self._leaving.keep_only(names)
        self._feeding.keep_only(names)
        processes = self._processes.number(live)
        live = [LiveJob(job, _led_by_control(job, feeds)) for job, feeds in live]
        self.leadership.keep_only(live)
        self.leadership.renew(live)
        self.leadership.share(live, processes)
        self.leadership.take(live, processes)
        self._feeding.prepare([job for job, _ in live], seen, self.leadership.jobs(live))

    def place(self, live: LiveJob) -> float:
        """Return a job's place in the round: the lower it is, the sooner it has its step."""
        return self._feeding.windows.place(live.job)

    def windows(self) -> dict[str, int]:
        return self._feeding.windows.windows()

    def release_all(self) -> None:
        """Hand the leases over at once instead of letting them run out."""
        self.leadership.release_all()
        self._processes.leave()

    def of(self, live: LiveJob) -> Led:
        """Return what is led of a job, and hand back what workers have to pack."""
        job, feeds = live
        here = _led_by_control(job, feeds)
        for feed in feeds if len(here) < len(feeds) else ():
            if feed not in here:
                self.leadership.hand_back(feed)
        led = self._led(job, here)
        return Led(
            led,
            {feed.feed.generation: self._led(job, feed.shards) for feed in feeds if feed.shards},
        )

    def has_left(self, job: Job, outstanding: int) -> bool:
        """Return whether documents may be fed to the job's lane.

        They may once what waited in the lane before has been taken from there."""
        with self._states.of_source(job):
            if self._leaving.step(job, self._specs.of(job), outstanding):
                return True
        return False

    def held_elsewhere(self, job: Job) -> Sequence[str]:
        """Return the queues of lanes that the job has left and whose workers may hold items."""
        return self._leaving.held_elsewhere(job)

    def feed(self, live: LiveJob, led: Led, outstanding: Sequence[int]) -> None:
        """Feed what is led of a job; ``outstanding``: by generation, as the round found it."""
        job = live.job
        for feed in live.feeds:
            shards = led.shards.get(feed.feed.generation, ())
            for shard, part in self._feeding.parts(job, feed, shards):
                with self._faults_of(job, shard):
                    self._feeding.feed(job, shard, part)
        for led_feed in led.feeds:
            self._advance(job, led_feed, outstanding[led_feed.feeder.feed.generation - 1])

    def _led(self, job: Job, feeds: Sequence[LiveFeed]) -> list[LedFeed]:
        """Return those of these feeds, or shards of a feed, that this process leads."""
        return [led for feed in feeds if (led := self.leadership.lead(job, feed)) is not None]

    def _advance(self, job: Job, led: LedFeed, outstanding: int) -> None:
        feed = led.feeder.feed
        with self._faults_of(job, led):
            waits = job.moves > 0 and not packs(job.lane) and self._feeding.feed_waiting(job, led)
            if waits and not is_open(feed):
                pass  # what is new comes after it
            elif feed.shards:
                self._feeding.look(job, led)
            elif not feed.exhausted:
                self._feeding.feed(job, led)
            if time.monotonic() >= led.next_round:
                self._reconciliation.round(job, led, outstanding, self._leaving.held_elsewhere(job))

    @contextlib.contextmanager
    def _faults_of(self, job: Job, led: LedFeed) -> Iterator[None]:
        """Handle what may go wrong in a step of a job's feed."""
        try:
            with self._states.of_source(job):
                yield
        except FeedLost:
            self.leadership.forget(led.feeder.feed)
        except RedisForgot:
            log.warning(
                "job %s: Redis forgot while it was fed; the next round rebuilds it", job.job_id
            )


def _led_by_control(job: Job, feeds: Sequence[LiveFeed]) -> tuple[LiveFeed, ...]:
    """Return the feeds of a job that control processes lead.

    Where workers pack the documents, these are only the feeds that they have read to their end,
    until the job ends.
    """
    if job.state is JobState.CANCELLING or not packs(job.lane):
        return tuple(feeds)
    return tuple(feed for feed in feeds if feed.feed.exhausted)
