"""Decides which feeds this process leads.

Each feed has one leader at a time, by a lease in SQL with a fence. Each round reads all leases
together with the jobs, so a leader needs no statement of its own: one write takes the free leases,
and one write renews all leases of a process when a third of their time is gone. The cursor is
protected by the fence, which is compared at each write.

A source that is split has a leader for each of its shards as well, and the processes share them
evenly (`shares.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic

from penstock_ledger import JobStore, LiveFeed, LiveJob
from penstock_ledger.model import Feed, Job, JobState
from penstock_producer.feed.feeder import Feeder
from penstock_workers.control.feeds.reconcile import Reconciler
from penstock_workers.control.feeds.shares import given_up, taken_on

FEED_LEASE_S = 15.0  # a dead leader is replaced after this
# of what is left: two renewals may fail before a leader loses its feeds
RENEW_BELOW_S = FEED_LEASE_S * 2 / 3

# leases per round: the transaction lasts some tenths of a second, and the next round takes more
TAKEN_MAX = 500

FeedName = tuple[str, int, int]  # job id, generation and shard


@dataclass(slots=True)
class LedFeed:
    """A feed, or a shard of one, that this process leads. Touched only by the control thread."""

    feeder: Feeder
    reconciler: Reconciler
    next_round: float  # monotonic time of the next reconciliation
    lane: str  # that it is fed to


class Leadership:
    """Takes, renews and hands over the leases of one process. Belongs to the control thread."""

    def __init__(
        self, jobs: JobStore, owner: str, open_led: Callable[[Job, Feed], LedFeed]
    ) -> None:
        self._jobs = jobs
        self._owner = owner
        self._open_led = open_led
        self._led: dict[FeedName, LedFeed] = {}
        self._taken: dict[FeedName, Feed] = {}  # by the latest ``take``
        self._given_up = frozenset[FeedName]()  # by the latest ``share``
        self._renew_at, self._leads_shards = math.inf, False  # monotonic time, of the latest look

    def __len__(self) -> int:
        """Return how many feeds and shards this process leads."""
        return len(self._led)

    def concerns(self, live: Iterable[LiveJob]) -> bool:
        """Return whether this process leads a feed of these, or could as no process leads it."""
        return any(feed.free or feed.led_by(self._owner) for feed in _with_shards(live))

    def others_lead(self, live: Iterable[LiveJob]) -> bool:
        """Return whether another process leads a feed of these, or led it and its lease runs."""
        return not all(feed.free or feed.led_by(self._owner) for feed in _with_shards(live))

    def renew(self, live: Iterable[LiveJob]) -> None:
        """Renew all leases of this process, as soon as one of them has lost a third of its time."""
        led = [feed for feed in _with_shards(live) if feed.led_by(self._owner)]
        lost_in_s = min((feed.lease_s for feed in led), default=math.inf)
        self._renew_at = monotonic() + lost_in_s - RENEW_BELOW_S
        self._leads_shards = any(feed.feed.shard for feed in led)
        self.renew_if_due()

    def renew_if_due(self) -> None:
        """Renew without a look at the jobs, so that a look which follows finds nothing to write."""
        if monotonic() >= self._renew_at:
            self._jobs.renew_feeds(self._owner, FEED_LEASE_S, shards=self._leads_shards)
            self._renew_at = monotonic() + FEED_LEASE_S - RENEW_BELOW_S

    def take(self, live: Collection[LiveJob], processes: int = 1) -> None:
        """Lease feeds that no process leads, in one transaction.

        It leases at most ``TAKEN_MAX`` in each round. Of each source that is split it leases a
        shard as well, as long as this process has fewer than its part among ``processes`` control
        processes.
        """
        free = [(feed.feed.job_id, feed.feed.generation) for feed in _worked_on(live) if feed.free]
        leased = self._jobs.lease_feeds(free[:TAKEN_MAX], self._owner, FEED_LEASE_S)
        wanted = [
            shard
            for feed in _worked_on(live)
            for shard in taken_on(feed.shards, self._owner, processes)
        ]
        shards = [(shard.feed.job_id, shard.feed.generation, shard.feed.shard) for shard in wanted]
        leased += self._jobs.lease_shards(shards[:TAKEN_MAX], self._owner, FEED_LEASE_S)
        self._taken = {_name(feed): feed for feed in leased}

    def share(self, live: Collection[LiveJob], processes: int) -> None:
        """Let go of one shard of each source of which this process leads more than its part.

        Another process takes it then."""
        surplus = [
            shard.feed
            for feed in _worked_on(live)
            for shard in given_up(feed.shards, self._owner, processes)
        ]
        for shard in surplus:
            self._jobs.release_feed(shard, self._owner)
        self._given_up = frozenset(map(_name, surplus))

    def jobs(self, live: Iterable[LiveJob]) -> set[str]:
        """Return the jobs of which this process leads a feed, after ``take``."""
        held = {feed.feed.job_id for feed in _with_shards(live) if feed.led_by(self._owner)}
        return held | {job_id for job_id, _, _ in self._taken}

    def lead(self, job: Job, live: LiveFeed) -> LedFeed | None:
        """Return the feed or shard as this process leads it.

        None while another process leads it, or while none does yet."""
        name = _name(live.feed)
        led_here = live.led_by(self._owner) and name not in self._given_up
        feed = live.feed if led_here else self._taken.get(name)
        led = self._led.get(name)
        if feed is None:
            self._led.pop(name, None)
            return None
        if led is not None and led.feeder.feed.fence == feed.fence and led.lane == job.lane:
            led.feeder.lead(feed)
            return led
        led = self._led[name] = self._open_led(job, feed)
        return led

    def hand_back(self, live: LiveFeed) -> None:
        """Release a feed that is read by others now, since the job's lane has changed."""
        if live.led_by(self._owner):
            self._jobs.release_feed(live.feed, self._owner)
            self.forget(live.feed)

    def forget(self, feed: Feed) -> None:
        """Forget a feed that another process has taken, or that was rewound."""
        self._led.pop(_name(feed), None)

    def keep_only(self, live: Collection[LiveJob]) -> None:
        """Let go of feeds of jobs that are over, and of shards that are read to their end."""
        names = {job.job_id for job, _ in live}
        unread = {_name(shard.feed) for _, feeds in live for feed in feeds for shard in feed.shards}
        self._led = {
            name: led
            for name, led in self._led.items()
            if name[0] in names and (name in unread or not led.feeder.feed.shard)
        }

    def release_all(self) -> None:
        """Hand the leases over at once instead of letting them run out."""
        for led in self._led.values():
            self._jobs.release_feed(led.feeder.feed, self._owner)
        self._led.clear()


def _name(feed: Feed) -> FeedName:
    return feed.job_id, feed.generation, feed.shard


def _worked_on(live: Iterable[LiveJob]) -> Iterator[LiveFeed]:
    """Yield the feeds of jobs that run or are being cancelled.

    A paused job needs no leader."""
    for job, feeds in live:
        if job.state is not JobState.PAUSED:
            yield from feeds


def _with_shards(live: Iterable[LiveJob]) -> Iterator[LiveFeed]:
    for feed in _worked_on(live):
        yield feed
        yield from feed.shards
