"""One feed's step in a round: how much of the job's room it fills.

A feed fills that room alone, or shares it with the other shards of its source.

A hundred outcomes say whether a job goes well. Until they are there, little more than a hundred
documents are fed, so that a job whose every answer is refused has paid for these and not for all
that the slots of a fleet hold. The batch lane has a first batch in place of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from penstock_ledger import (
    Database,
    JobSeen,
    LiveFeed,
    ProviderBatchStore,
    RedisLedger,
    RemainderStore,
)
from penstock_ledger.model import Feed, FeedKind, Job
from penstock_producer.feed.feeder import Feeder, FeedStep
from penstock_producer.feed.leased_feed import publish_waiting
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import AWAITED
from penstock_producer.reporting.reasons import FIRST
from penstock_producer.rows import Document
from penstock_workers.control.feeds.feed_windows import FeedWindows
from penstock_workers.control.feeds.leadership import LedFeed
from penstock_workers.control.feeds.shares import Share, room_of
from penstock_workers.control.feeds.specs import Specs
from penstock_workers.control.fleet_figures import Counters
from penstock_workers.control.job.limits import JobLimits
from penstock_workers.failpoints import Failpoints
from penstock_workers.item.settling.stop_loss import Bounds, accepted_of, decide

# documents published per job and round, so that no job holds up the others for long
FEED_MAX = 5_000
# of one round and job, for rows that are finished or queued: where a feed was rewound all of them
# come first, and its room may be a few documents
WALK_S = 0.05
# of reading what waits, one by one, per job and round: the leases of feeds are renewed between
# rounds
WAITING_S = 0.5
FED: Final = FIRST + 28
"""Documents of a generation that are fed at first. Those beyond the hundred may be slow, or wait to
be tried again: nothing waits for them."""
MORE_EVERY_S: Final = 60.0
"""Where the hundred take longer, as where documents wait for a model that no worker has, another
hundred is fed after each of these times: what stands still must not hold up the others for ever."""


PAUSED_WITHIN_S: Final = 5.0
"""The worker that stores the hundredth failure pauses its job within so long, or has died: then a
few more documents are fed, and the worker that stores these pauses it."""


class FirstHundred:
    """Holds jobs to a first hundred documents, on the control thread. Raises redis.RedisError."""

    def __init__(self, hot: RedisLedger, clock: Callable[[], float] = time.monotonic) -> None:
        self._hot = hot
        self._clock = clock
        # by job and generation: when its feed was first looked at; None once it has its hundred
        self._since: dict[tuple[str, int], float | None] = {}
        # and when its hundred were seen to be too bad
        self._stops: dict[tuple[str, int], float] = {}

    def room(
        self,
        job: Job,
        spec: JobSpec,
        generation: int,
        outstanding: int,
        room: int,
        *,
        unpaid: int = 0,
    ) -> int:
        """Return how many of ``room`` documents may be fed now.

        ``outstanding``: of this generation. ``unpaid``: so many at once cost nothing."""
        bounds, now = Bounds.of(spec), self._clock()
        if not any(bounds) or job.source.get(AWAITED) or not room:
            return room
        since = self._since.setdefault((job.job_id, generation), now)
        if since is None:
            return room
        lately = self._hot.lately(job.job_id, generation)
        seen = max(lately.ended, lately.answered)
        if seen >= FIRST:
            if decide(lately, bounds, accepted_of(job, generation)) is None:
                self._since[job.job_id, generation] = None
                return room
            seen_at = self._stops.setdefault((job.job_id, generation), now)
            if outstanding or now - seen_at < PAUSED_WITHIN_S:
                return 0
        most = max(FED, unpaid) + FIRST * int((now - since) / MORE_EVERY_S)
        return max(0, min(room, most - outstanding - min(lately.ended, FIRST)))

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._since = {name: since for name, since in self._since.items() if name[0] in live}
        self._stops = {name: at for name, at in self._stops.items() if name[0] in live}


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
            step = (
                partial(feeder.advance, most, partial(self._publish_new, feeder))
                if in_batches
                else partial(feeder.step, most)
            )
            fed = _first_new(step)
            self.windows.note_fed(job, fed.published)
            self._counters.add("fed", job.lane, fed.published)

    def _share(self, job: Job, feeder: Feeder, *, ordered: bool = False) -> Share:
        """Return what the job may add now, and where."""
        generation = feeder.feed.generation
        share = self.windows.for_feed(job, generation, ordered=ordered)
        outstanding = self.windows.outstanding(job, generation)
        room = self._first.room(
            job,
            self._specs.of(job),
            generation,
            outstanding,
            share.documents,
            unpaid=self.windows.unpaid(job),
        )
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
        affordable = self._limits.within_budget(job, room)
        documents = min(affordable, FEED_MAX)
        if is_open(feeder.feed):
            documents = (documents + 1) // 2
        rows = (
            self._remainders.unclaimed(job.job_id, feeder.feed.generation, documents)
            if documents
            else iter(())
        )
        waiting = list(islice(rows, documents))
        # what does not wait is left for what the feed reads
        self._limits.give_back(job, affordable - len(waiting))
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


def _first_new(step: Callable[[], FeedStep]) -> FeedStep:
    """Step over what is finished or queued, for ``WALK_S`` at most; return the last step."""
    until = time.monotonic() + WALK_S
    done = step()
    while done.read and not (done.published or done.exhausted) and time.monotonic() < until:
        done = step()
    return done
