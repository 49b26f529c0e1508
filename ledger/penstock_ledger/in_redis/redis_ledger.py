"""The hot half of the ledger: what is finished, fed, started and delayed, in Redis.

All of it can be rebuilt from SQL.

Every change is one atomic script call of at most 500 items; longer batches are cut, so a batch as a
whole is not atomic. Reads that walk over large keys do so in bounded steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final
from uuid import uuid4

import redis

from penstock_ledger import keys
from penstock_ledger.errors import RedisForgot
from penstock_ledger.in_redis import job_counters, redis_address, seen
from penstock_ledger.in_redis.batches import (
    Begin,
    Begun,
    Depth,
    Drained,
    Drains,
    JobSeen,
    Lately,
    Memory,
    Publish,
    PublishReport,
    SettleBatch,
    SettleReport,
    WorkerSeen,
)
from penstock_ledger.in_redis.budget_book import BudgetBook
from penstock_ledger.in_redis.lost import find_missing, held_by
from penstock_ledger.in_redis.queue_book import QueueBook
from penstock_ledger.in_redis.redis_scripts import (
    BATCH_MAX,
    TAGS_MAX,
    FleetScripts,
    ItemScripts,
    chunks,
    feed_chunks,
    settle_chunks,
    until_short,
)
from penstock_ledger.in_redis.seen import CauseBook
from penstock_ledger.model import ItemKey, Job, JobState

SCAN_STEP: Final = 1_000  # keys or fields per step of a scan
LONGEST_DELAY_S: Final = 90_000.0  # of a retry, as a default: no setting allows more than a day
HELD_S: Final = 1.0  # how much longer a due retry waits while its last delivery is not acknowledged
PURGED_S: Final = 604_800  # a worker that was frozen for longer than a week is not expected back
# longer than any rebuild takes: the mark of one whose process died is gone after it
REBUILD_MAX_S: Final = 86_400

_STATES: Final = {
    JobState.PAUSED: b"paused",
    JobState.CANCELLING: b"cancelled",
    JobState.CANCELLED: b"cancelled",
    JobState.FAILED: b"cancelled",
}


class RedisLedger:
    """``client`` answers in bytes (``decode_responses=False``).

    Safe to share between threads, as the client is.

    A lane may have queues per model (``queues``): where a call takes the name of a lane's own
    queue, it looks at all of them. Besides RedisForgot and RedisUnfit, calls raise
    redis.RedisError.
    """

    def __init__(self, client: redis.Redis, epoch: str) -> None:
        # redis-py types the sync and async client as one: each answer would need a cast
        self._client: Any = client
        self._redis = client
        self._epoch = epoch
        self._scripts = ItemScripts(client)
        self._fleet = FleetScripts(client)
        self.failing = CauseBook(client)
        self.queues = QueueBook(client)
        self.budgets = BudgetBook(client)
        self._run_seen: str | None = None  # written by check_epoch, read by install_epoch
        self._mark: str | None = None  # written by begin_rebuild, read by install_epoch
        # names of rebuilds, read by publish: at the look before the last one, which is before its
        # caller looked at the jobs; and at the last one. None: this process never looks
        self._rebuild: str | None = None
        self._rebuild_seen: str | None = None

    # -- the life of an item -----------------------------------------------------------------------

    def publish(
        self,
        queue: str,
        docs: Iterable[Publish],
        buckets: int,
        *,
        urgent: bool = False,
        again: bool = False,
    ) -> PublishReport:
        """Queue documents that are neither finished nor in the window.

        Calls have at most BATCH_MAX documents and PUBLISH_BYTES_MAX bytes.

        ``urgent`` ones, whose messages must say so, go behind earlier urgent ones at the consuming
        end. ``again`` is for documents in the window whose message is lost: they are queued again
        and stay in the window all the while. Raises RedisForgot when the sentinel is missing or
        another, or Redis was rebuilt since this process last looked but one; earlier calls have
        been published then.
        """
        rebuild = "*" if self._rebuild is None else self._rebuild
        published = done = in_window = 0
        for feed, chunk in feed_chunks(docs):
            report = self._scripts.publish(
                queue, feed, chunk, buckets, self._epoch, urgent, again, rebuild
            )
            if isinstance(report, bytes):
                raise RedisForgot(report.decode() or None, self._epoch)
            published += report.published
            done += report.done
            in_window += report.in_window
        return PublishReport(published, done, in_window)

    def begin(
        self,
        items: Sequence[Begin],
        lane: str = "",
        call: tuple[str, str] | None = None,
        rebuilt: str = "*",
    ) -> list[Begun]:
        """Count the starts of items, in their order, unless they may not start.

        They may not where they are finished, paused, cancelled, in no window or beyond the budget
        of their job, or it has moved to another lane than the caller's.

        ``call`` is who asks, and what names this call, for BATCH_MAX items at most: the latest call
        of its caller that comes again by its name counts no start twice.

        ``rebuilt`` names the rebuild of Redis after which the caller last renewed its leases, ""
        for none: messages from before a later one may have a second copy, and are not to start. A
        caller without leases says "*"."""
        return [
            begun
            for chunk in chunks(items)
            for begun in self._scripts.begin(chunk, self._epoch, lane, call, rebuilt)
        ]

    def settle(self, batch: SettleBatch) -> SettleReport:
        """Conclude items, then put others off.

        Works in a full Redis too, because it is what frees memory."""
        new = delayed = 0
        lately = dict[tuple[str, int], Lately]()
        for chunk in settle_chunks(batch, BATCH_MAX):
            if chunk.done or chunk.dead:
                number, found = self._scripts.settle(chunk.done, chunk.dead)
                new, lately = new + number, lately | found
            if chunk.retries or chunk.released:
                number, found = self._scripts.put_off(chunk.retries, chunk.released, chunk.paid)
                delayed, lately = delayed + number, lately | found
        job_counters.count_crashed(self._client, batch.crashed)
        job_counters.count_asked_again(self._client, batch.asked_again)
        lately |= job_counters.count_tried_again(self._client, batch.tried_again)
        return SettleReport(new, delayed, lately)

    def promote(
        self, queue: str, limit: int = BATCH_MAX, *, longest_s: float = LONGEST_DELAY_S
    ) -> int:
        """Queue up to ``limit`` messages of each queue of a lane whose time has come.

        Returns how many moved.

        None waits longer than ``longest_s`` seconds from now: a server's clock may have stepped
        back since it was delayed.
        """
        queues = self.queues.of(queue)
        moved = 0
        for name in self._with_delayed(queues):
            due = partial(self._scripts.promote, name, queues, held_s=HELD_S, longest_s=longest_s)
            moved += until_short(limit, due)
        return moved

    def tell_answered(self, items: Iterable[ItemKey]) -> None:
        """Tell those who wait for them that these items have outcomes.

        A message that is lost costs time only."""
        self._client.publish(
            keys.ANSWERED, "\n".join(f"{job_id} {doc_id}" for job_id, _, doc_id in items)
        )

    def park(self, job_id: str, raws: Sequence[bytes]) -> None:
        """Keep messages of a paused job outside the queue."""
        if job_counters.purged(self._client, [job_id]):
            return
        for chunk in chunks(raws):
            self._client.rpush(f"{keys.job_scope(job_id)}:parked", *chunk)

    def unpark(self, job_id: str, queue: str, limit: int = BATCH_MAX) -> int:
        """Return up to ``limit`` parked messages to their queues, of the lane with this one.

        Returns how many moved. Call it for every running job now and then: a worker may park a
        message just after the job was resumed."""
        queues = self.queues.of(queue)
        return until_short(limit, lambda step: self._scripts.unpark(job_id, queue, queues, step))

    def bind(self, job_id: str, queue: str) -> str:
        """Bind a job that names no model to the queue of one.

        Returns the queue that it is bound to, by whichever came first."""
        if not job_counters.purged(self._client, [job_id]):
            self._client.set(keys.bound_queue(job_id), queue, nx=True)
        return self.bound(job_id) or queue

    def bound(self, job_id: str) -> str | None:
        """Return the queue that ``bind`` has written; None where the job is not bound."""
        found = self._client.get(keys.bound_queue(job_id))
        return None if found is None else found.decode("utf-8", "replace")

    # -- the window --------------------------------------------------------------------------------

    def outstanding(self, job_id: str, generation: int) -> int:
        """Return how many documents were fed and are not finished."""
        return self.outstanding_of([(job_id, generation)])[0]

    def outstanding_of(self, feeds: Sequence[tuple[str, int]]) -> list[int]:
        """Return ``outstanding`` of many feeds (job and generation) in one round trip."""
        with self._client.pipeline(transaction=False) as pipe:
            for feed in feeds:
                pipe.hlen(_window(*feed))
            return [int(length) for length in pipe.execute()]

    def window(self, job_id: str, generation: int) -> Iterator[tuple[str, str]]:
        """Yield (document id, position) of all that were fed and are not finished.

        One may come twice while it changes."""
        for doc, position in self._client.hscan_iter(_window(job_id, generation), count=SCAN_STEP):
            yield doc.decode(), position.decode()

    def held(
        self, queue: str, items: Iterable[ItemKey], tag_of: Callable[[ItemKey], str]
    ) -> set[ItemKey]:
        """Return those of ``items`` that workers of the lane with this queue hold."""
        tags = {tag_of(key): key for key in items}
        return held_by(self._client, self.queues.of(queue), tags)

    def missing(
        self,
        queue: str,
        job_id: str,
        generation: int,
        tag_of: Callable[[ItemKey], str],
        *,
        besides: Iterable[str] = (),
    ) -> list[tuple[str, str]]:
        """Return those in the window that are neither queued nor unacked, delayed or parked.

        Each is (document id, position).

        ``besides``: queues of lanes that the job has left; what their workers hold still is not
        missing.
        A document that moves between two places during the look may be named by mistake: act on
        those that are named twice.
        """
        window = {
            ItemKey(job_id, generation, doc): position
            for doc, position in self.window(job_id, generation)
        }
        lost = find_missing(
            self._client, self._scripts, self.queues.of(queue), {tag_of(key): key for key in window}
        )
        for left in besides:
            lost = sorted(set(lost) - self.held(left, lost, tag_of))
        still = self.in_window(job_id, generation, [key.doc_id for key in lost])
        return [(key.doc_id, window[key]) for key in lost if key.doc_id in still]

    def in_window(self, job_id: str, generation: int, docs: Sequence[str]) -> set[str]:
        """Return those of these documents that are fed and not settled."""
        found: set[str] = set()
        for chunk in chunks(docs, SCAN_STEP):
            positions = self._client.hmget(_window(job_id, generation), chunk)
            found.update(
                doc for doc, position in zip(chunk, positions, strict=True) if position is not None
            )
        return found

    def under_way(
        self,
        queue: str,
        job_id: str,
        generation: int,
        tag_of: Callable[[ItemKey], str],
        lease_s: float,
    ) -> int:
        """Count items that were begun, and whose worker lives.

        Its lease is younger than ``lease_s`` seconds."""
        begun = self._client.hkeys(f"{keys.feed_scope(job_id, generation)}:starts")
        tags = [tag_of(ItemKey(job_id, generation, doc.decode())) for doc in begun]
        now = self._now()
        dead_before, lost_after = now - lease_s, now + lease_s
        leases = (
            at
            for index in (*map(keys.unacked_index, self.queues.of(queue)), keys.OLDER_UNACKED_INDEX)
            for chunk in chunks(tags)
            for at in self._client.zmscore(index, chunk)
        )
        # later: in RabbitMQ, or of a clock that stepped back
        return sum(at is not None and dead_before < at < lost_after for at in leases)

    def begun(self, items: Sequence[ItemKey]) -> list[bool]:
        """Say of each item whether a worker has begun and not concluded it.

        Then its call may be on its way."""
        with self._client.pipeline(transaction=False) as pipe:
            for job_id, generation, doc_id in items:
                pipe.hexists(f"{keys.feed_scope(job_id, generation)}:starts", doc_id)
            return [bool(is_there) for is_there in pipe.execute()]

    def drop_from_window(self, items: Iterable[ItemKey]) -> None:
        """Forget that items were fed, so that they may be published again.

        The same is done because they are finished."""
        with self._client.pipeline(transaction=False) as pipe:
            for job_id, generation, doc_id in items:
                pipe.hdel(_window(job_id, generation), doc_id)
            pipe.execute()

    # -- figures -----------------------------------------------------------------------------------

    def depth(self, queue: str) -> Depth:
        """Return the depth of all queues of a lane together."""
        return Depth(*map(sum, zip(*self.depths(queue).values(), strict=True)))

    def depths(self, queue: str) -> dict[str, Depth]:
        """Return the depth of each queue of a lane, its own first.

        What a worker holds counts for the queue of the model that it hosts.
        """
        names = self.queues.of(queue)
        with self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.llen(name)
                pipe.hlen(keys.unacked(name))
                pipe.zcard(keys.delayed(name))
                pipe.zcard(keys.relayed(name))
            counts = iter(pipe.execute())
        return {
            name: Depth(next(counts), next(counts), next(counts), next(counts)) for name in names
        }

    def stats(self, job_id: str) -> dict[str, int]:
        """Return counters since the job started, as far as Redis remembers.

        They are for people; what decides is counted in SQL.
        """
        return job_counters.stats(self._client, job_id)

    def lately(self, job_id: str, generation: int) -> Lately:
        """Return what became of the latest documents of a feed, as far as Redis remembers."""
        return job_counters.lately(self._client, keys.feed_scope(job_id, generation))

    def finished_of(self, job_ids: Collection[str]) -> list[int]:
        """Return how many documents of each job have an outcome, as its counters say.

        It takes one round trip.
        """
        return job_counters.finished_of(self._client, job_ids)

    def reset_stats(self, job_id: str, stats: Mapping[str, int]) -> None:
        """Replace the counters by what SQL knows; those that SQL does not know stay."""
        job_counters.reset(self._client, job_id, stats)

    def next_of(self, job_id: str, queue: str) -> int:
        """Count the messages of a job among the next in line of a queue, a few hundred at most."""
        _, tags = self._scripts.tags(queue, -TAGS_MAX, -1)
        return sum(tag.startswith(f"{job_id}:".encode()) for tag in tags)

    def front(self, queue: str) -> bytes | None:
        """Return the message that is next in line, left where it is."""
        raw: bytes | None = self._client.lindex(queue, -1)
        return raw

    def parked(self, job_ids: Sequence[str]) -> list[int]:
        """Return the messages of each paused job outside the queue."""
        with self._client.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.llen(f"{keys.job_scope(job_id)}:parked")
            return [int(length) for length in pipe.execute()]

    def parked_unknown(self) -> int:
        """Return how many messages no worker could read or place."""
        return int(self._client.llen(keys.PARKED_UNKNOWN))

    def note_drain(self, drained: Drained) -> None:
        """Count how a worker stopped, for the fleet's figures."""
        seen.note_drain(self._client, drained)

    def drains(self, lane: str) -> Drains:
        return seen.drains(self._client, lane)

    def memory(self) -> Memory:
        return redis_address.memory(self._redis)

    def heartbeat(self, worker: str, info: Mapping[str, str]) -> None:
        """Note that a worker lives, with a few short texts about it."""
        self._fleet.heartbeat(worker, seen.WORKER_FORGOTTEN_S, info or {"name": worker})

    def workers(self) -> list[WorkerSeen]:
        """Return the workers heard of in the last minute, by name."""
        return seen.workers(self._client, self._now())

    def controls(self, name: str, forget_s: float) -> int:
        """Say that the control process ``name`` turns.

        Returns how many have said so in the last ``forget_s`` seconds."""
        return self._fleet.present(name, forget_s)

    def control_left(self, name: str) -> None:
        """Note that the control process ``name`` turns no more."""
        self._client.zrem(keys.CONTROLS, name)

    # -- whether Redis lost what it held -----------------------------------------------------------

    def preflight(self) -> None:
        """Refuse a Redis that would lose work. Raises RedisUnfit, with the fix."""
        redis_address.check(self._redis)

    def check_epoch(self) -> bool:
        """Return whether Redis holds this database's epoch and has not restarted since."""
        # one round trip: every round of each control loop asks
        with self._client.pipeline(transaction=False) as pipe:
            pipe.info("server")
            pipe.mget(keys.EPOCH, keys.EPOCH_RUN, keys.EPOCH_NAME)
            server, (epoch, run, name) = pipe.execute()
        seen = (name or b"").decode()
        self._rebuild = seen if self._rebuild_seen is None else self._rebuild_seen
        self._rebuild_seen = seen
        self._run_seen = str(server["run_id"])
        return bool(epoch == self._epoch.encode() and run == self._run_seen.encode())

    def begin_rebuild(self) -> None:
        """Leave a mark by which ``install_epoch`` sees whether Redis has forgotten meanwhile."""
        self._mark = f"{keys.EPOCH_REBUILD}{uuid4().hex}"
        self._client.set(self._mark, "1", ex=REBUILD_MAX_S)

    def install_epoch(self) -> None:
        """Declare Redis rebuilt, as of the server that ``check_epoch`` saw.

        A restart since then is found next time. Where the mark of the rebuild is gone, so is a part
        of what was rebuilt: nothing is declared, and the next look finds that."""
        run, mark = self._run_seen or redis_address.run_id(self._redis), self._mark
        self._mark = None
        with self._client.pipeline() as pipe, contextlib.suppress(redis.WatchError):
            if mark is not None:
                pipe.watch(mark)
                if not pipe.exists(mark):
                    return
                pipe.multi()
                pipe.delete(mark)
            name = uuid4().hex
            pipe.set(keys.EPOCH_REBUILT, name, ex=keys.REBUILT_S)
            pipe.mset({keys.EPOCH: self._epoch, keys.EPOCH_RUN: run, keys.EPOCH_NAME: name})
            pipe.execute()
            self._rebuild = self._rebuild_seen = name

    def last_rebuild(self) -> str:
        """Return the name of the latest rebuild, "" where it was longer ago than ``REBUILT_S``."""
        return (self._client.get(keys.EPOCH_REBUILT) or b"").decode()

    def rehydrate(
        self, job_id: str, generation: int, docs: Iterable[tuple[str, bool]], buckets: int
    ) -> int:
        """Write (document id, is dead) into the completed set.

        Returns how many were missing there."""
        feed = (job_id, generation)
        return sum(self._scripts.rehydrate(feed, chunk, buckets) for chunk in chunks(docs))

    def set_job_state(self, job_id: str, state: JobState) -> None:
        """Write the state that workers see at begin.

        A job in a state that is nothing to them has no key."""
        seen_as = _STATES.get(state)
        if job_counters.purged(self._client, [job_id]):
            return
        if seen_as is None:
            self._client.delete(keys.job_state(job_id))
        else:
            self._client.set(keys.job_state(job_id), seen_as)

    def set_job_lane(self, job: Job) -> None:
        """Write the lane that workers see at begin. A job that has never moved has no key."""
        if job.moves and not job_counters.purged(self._client, [job.job_id]):
            self._client.set(f"{keys.job_scope(job.job_id)}:lane", job.lane)

    def see(self, jobs: Sequence[Job]) -> list[JobSeen]:
        """Return what is held of each job, in its order.

        One script call for up to BATCH_MAX of them.
        """
        seen: list[JobSeen] = []
        for chunk in chunks(jobs):
            answers = iter(self._fleet.see([(job.job_id, job.generation) for job in chunk]))
            seen += [_job_seen(job, answers) for job in chunk]
        return seen

    def keep_out(self, job_id: str) -> None:
        """Let late workers write nothing more of a job that was purged."""
        self._client.set(keys.job_state(job_id), keys.PURGED, ex=PURGED_S)

    def forget(self, job_id: str) -> None:
        """Delete all keys of a job but one, which keeps late workers out and expires.

        It walks over the whole key space in small steps: for jobs that are over."""
        state = keys.job_state(job_id)
        self.keep_out(job_id)  # first: what is deleted after it does not come back
        names = self._client.scan_iter(
            match=f"{_no_glob(keys.job_scope(job_id))}:*", count=SCAN_STEP
        )
        for chunk in chunks((name for name in names if name != state.encode()), SCAN_STEP):
            self._client.unlink(*chunk)

    def forget_ended(self, states: Callable[[Collection[str]], Mapping[str, JobState]]) -> int:
        """Let nothing start that an old copy has of jobs that are over.

        ``states`` says what is known of jobs by their ids. Of those that it leaves out, which were
        purged, every key is deleted but what keeps late workers out; of those that have ended what
        may start. Returns how many were purged. It walks over the whole key space in small steps.
        """
        names = self._client.scan_iter(match=f"{keys.job_scope(keys.JOB_ID)}*", count=SCAN_STEP)
        gone = set[str]()
        for chunk in chunks((name.decode() for name in names), SCAN_STEP):
            by_name = {name: name.removeprefix(keys.PREFIX).partition(":")[0] for name in chunk}
            known = states(set(by_name.values()))
            left = list[str]()
            for name, job_id in by_name.items():
                state = known.get(job_id)
                if state is None and name != keys.job_state(job_id):
                    left.append(name)
                    if job_id not in gone:
                        self._client.set(keys.job_state(job_id), keys.PURGED, ex=PURGED_S)
                        gone.add(job_id)
                elif state is not None and state.final and name.endswith(":window"):
                    left.append(name)
                    self.set_job_state(job_id, state)
            if left:
                self._client.unlink(*left)
        return len(gone)

    def _with_delayed(self, queues: Sequence[str]) -> list[str]:
        with self._client.pipeline(transaction=False) as pipe:
            for queue in queues:
                pipe.exists(keys.delayed(queue))
            return [
                queue for queue, is_there in zip(queues, pipe.execute(), strict=True) if is_there
            ]

    def _now(self) -> float:
        seconds, microseconds = self._client.time()
        return float(seconds) + float(microseconds) / 1e6


def _job_seen(job: Job, answers: Iterator[Any]) -> JobSeen:
    seen_as, lane, parked = next(answers) or None, next(answers), next(answers)
    outstanding = tuple(int(length) for length in islice(answers, job.generation))
    is_current = seen_as == _STATES.get(job.state) and lane == (
        job.lane.encode() if job.moves else b""
    )
    return JobSeen(is_current, seen_as == _STATES[JobState.PAUSED], int(parked), outstanding)


def _window(job_id: str, generation: int) -> str:
    return f"{keys.feed_scope(job_id, generation)}:window"


def _no_glob(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in text)
