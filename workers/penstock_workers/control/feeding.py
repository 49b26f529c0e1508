"""One feed's step in a round: how much of the job's room it fills.

A feed fills that room alone, or shares it with the other shards of its source."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from penstock_ledger import Database, JobSeen, LiveFeed, ProviderBatchStore, RemainderStore
from penstock_ledger.model import Feed, FeedKind, Job
from penstock_producer.feed.feeder import Feeder
from penstock_producer.feed.leased_feed import publish_waiting
from penstock_producer.rows import Document
from penstock_workers.control.counters import Counters
from penstock_workers.control.feeds.even import room_of
from penstock_workers.control.feeds.feed_windows import FeedWindows
from penstock_workers.control.feeds.first_hundred import FirstHundred
from penstock_workers.control.feeds.leadership import LedFeed
from penstock_workers.control.feeds.shares import Share
from penstock_workers.control.feeds.specs import Specs
from penstock_workers.control.job.limits import JobLimits
from penstock_workers.failpoints import Failpoints

# documents published per job and round, so that no job holds up the others for long
FEED_MAX = 5_000
# of reading what waits, one by one, per job and round: the leases of feeds are renewed between
# rounds
WAITING_S = 0.5


class Part(NamedTuple):
    """A shard's part of what a job may add in a round."""

    place: int  # from 0, among those that share the room
    of: int
    led_here: int  # of them, by this process


WHOLE = Part(0, 1, 1)


def is_open(feed: Feed) -> bool:
    """Return whether documents may still be pushed into it."""
    return feed.kind is FeedKind.SPOOL and not feed.exhausted


class Feeding:
    """Fills the room of feeds in a round, on the control thread. Raises as ``Feeder.step`` does."""

    def __init__(
        self,
        database: Database,
        windows: FeedWindows,
        first: FirstHundred,
        limits: JobLimits,
        specs: Specs,
        counters: Counters,
        failpoints: Failpoints,
    ) -> None:
        self._remainders, self._batches = RemainderStore(database), ProviderBatchStore(database)
        self.windows, self._first, self._limits = windows, first, limits
        self._specs, self._counters, self._failpoints = specs, counters, failpoints

    def prepare(self, jobs: Sequence[Job], seen: Sequence[JobSeen], led: Collection[str]) -> None:
        """Share the queues among the jobs of a round; this process leads feeds of ``led``."""
        outstanding = {
            job.job_id: of_job.outstanding for job, of_job in zip(jobs, seen, strict=True)
        }
        self.windows.update(jobs, outstanding, led)

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._first.keep_only(live)

    def parts(
        self, job: Job, feed: LiveFeed, led: Sequence[LedFeed]
    ) -> Iterator[tuple[LedFeed, Part]]:
        """Yield the shards of ``feed`` that this process leads, each with its part of the room.

        ``led`` are the feeds and shards led here. Shards without a leader get no part."""
        here = {shard.feeder.feed.shard: shard for shard in led}
        sharing = [
            shard.feed.shard for shard in feed.shards if not shard.free or shard.feed.shard in here
        ]
        # what it still pays for is known to one process
        if self._specs.of(job).budget_usd is not None:
            sharing = [shard.feed.shard for shard in feed.shards[:1]]
        for place, number in enumerate(sharing):
            if number in here:
                yield here[number], Part(place, len(sharing), len(here))

    def feed(self, job: Job, led: LedFeed, part: Part = WHOLE) -> None:
        feeder = led.feeder
        in_batches = job.moves and not feeder.feed.cursor
        in_batches = in_batches and self._batches.holds_documents(
            job.job_id, feeder.feed.generation
        )
        if in_batches and feeder.feed.kind is not FeedKind.SPOOL:
            # Redis was lost: from the start on come documents that are in batches, which would be
            # paid twice
            return
        room, feeder.urgent = self._share(job, feeder, ordered=feeder.ordered)
        documents = self._limits.within_budget(job, room_of(part.place, part.of, room))
        if documents:
            most = min(documents, max(1, FEED_MAX // part.led_here))
            fed = (
                feeder.advance(most, partial(self._publish_new, feeder))
                if in_batches
                else feeder.step(most)
            )
            self.windows.note_fed(job, fed.published)
            self._counters.add("fed", job.lane, fed.published)

    def _share(self, job: Job, feeder: Feeder, *, ordered: bool = False) -> Share:
        """Return what the job may add now, and where."""
        generation = feeder.feed.generation
        share = self.windows.for_feed(job, generation, ordered=ordered)
        outstanding = self.windows.outstanding(job, generation)
        room = self._first.room(job, self._specs.of(job), generation, outstanding, share.documents)
        return share._replace(documents=room)

    def _publish_new(self, feeder: Feeder, documents: Sequence[Document]) -> tuple[int, int]:
        """Publish the new documents of an open job, but not those that wait in batches.

        Documents that were pushed since the batches were made are new."""
        known = self._remainders.known([feeder.key(document.doc_id) for document in documents])
        report = feeder.publish(
            [document for document in documents if feeder.key(document.doc_id) not in known]
        )
        return report.published, report.done + report.in_window + len(known)

    def feed_waiting(self, job: Job, led: LedFeed) -> bool:
        """Publish documents that another lane of the job left without an outcome.

        Return whether there were any. Half of the room of an open job stays free for what is pushed
        into it meanwhile.
        """
        feeder = led.feeder
        room, feeder.urgent = self._share(job, feeder)
        documents = min(self._limits.within_budget(job, room), FEED_MAX)
        if is_open(feeder.feed):
            documents = (documents + 1) // 2
        rows = (
            self._remainders.unclaimed(job.job_id, feeder.feed.generation, documents)
            if documents
            else iter(())
        )
        waiting = list(islice(rows, documents))
        if waiting:
            published, looked = publish_waiting(feeder, waiting, within_s=WAITING_S)
            self._failpoints.hit("move_arriving")
            self._batches.passed_on([one.key for one in looked])
            self.windows.note_fed(job, published)
            self._counters.add("fed", job.lane, published)
        return bool(waiting)

    def look(self, job: Job, led: LedFeed) -> None:
        """Tell a feed whose shards are read on their own where to publish documents again.

        It publishes them to the same place as its shards do."""
        _, led.feeder.urgent = self.windows.for_feed(job, led.feeder.feed.generation)
