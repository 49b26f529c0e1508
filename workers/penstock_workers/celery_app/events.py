"""Task events as Flower reads them: in groups, of a sample of items, and of schedules.

Celery sends what has gathered at the end of each turn of the hub: nearly one PUBLISH per item,
which halves a worker's throughput. Half a second of delay in a dashboard does not matter.
``EventSample`` chooses the items that send events, by a hash of the task id, where the fleet is too
fast for Flower to receive all.

What came of the times of schedules is shown as tasks, as those of Celery beat are: a task
`penstock.schedule` has the key of the time's job as its id. One whose time passed without a job is
revoked (expired), which is what Celery calls a task that was not run in time.

An outcome is given to Celery's request in the form of its own pools: (failed, report or None,
runtime in s). A report has the shape of an ExceptionInfo, without a traceback to format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any
from zlib import crc32

from celery.exceptions import Retry as CeleryRetry
from redis.exceptions import RedisError

from penstock_ledger import Decision, FiringOutcome, Schedule, keys
from penstock_ledger.redaction import redact, several_lines
from penstock_producer.schedules.timetable import job_key
from penstock_workers.decided_times import DecidedTimes
from penstock_workers.item.outcome import Dead, Done, Outcome, Retry

EVENTS_PER_ITEM = 3  # received, started, succeeded
# 200 items a second in one process: above what providers answer, below what costs
WORKER_EVENTS_PER_S = 600.0
FLEET_EVENTS_PER_S = 1_800.0  # shared by the live workers: half a core of Flower on a slow machine
BURST_S = 5.0  # of events that may be sent at once: claims come in groups
PACE_HALF_LIFE_S = 1.0
HASHES = 2**32


def hash_of(task_id: str) -> int:
    """Return the hash of a task id: the same in every process, now and later."""
    return crc32(task_id.encode())


class EventSample:
    """Decides which items send events, once for each as it is received.

    ``fixed`` is the setting `event_sample`. Used by the hub thread.

    ``share`` follows the pace, so that the events chosen spread over time; the budget holds when
    the pace jumps.
    """

    def __init__(self, fixed: float | None, *, clock: Callable[[], float] = monotonic) -> None:
        self._fixed = fixed
        self._clock = clock
        self._pace = 0.0  # items received a second
        self._seen = 0
        self._turned_at = clock()
        self.items_per_s = WORKER_EVENTS_PER_S / EVENTS_PER_ITEM
        self.share = 1.0 if fixed is None else fixed
        self._budget = self._budget_max

    @property
    def _budget_max(self) -> float:
        return self.items_per_s * BURST_S

    def takes(self, task_id: str) -> bool:
        """Return whether the routine events of this item are sent."""
        self._seen += 1
        if self.share < 1.0 and hash_of(task_id) >= self.share * HASHES:
            return False
        if self._fixed is not None:
            return True
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        return True

    @property
    def is_settled(self) -> bool:
        """Return whether no item came since the last turn, and all of the next ones are taken."""
        return not self._seen and (self.share == 1.0 or self._fixed is not None)

    def turn(self) -> None:
        """Update the pace; called a few times a second while items come."""
        now = self._clock()
        took_s, self._turned_at = now - self._turned_at, now
        if took_s <= 0.0:
            return
        self._budget = min(self._budget_max, self._budget + self.items_per_s * took_s)
        memory = 0.5 ** (took_s / PACE_HALF_LIFE_S)
        self._pace = memory * self._pace + (1.0 - memory) * self._seen / took_s
        self._seen = 0
        if self._fixed is None:
            self.share = min(1.0, self.items_per_s / self._pace) if self._pace > 0.0 else 1.0

    def share_fleet(self, workers: int) -> None:
        """Share the fleet's event budget among this many workers.

        One Flower can then take all events."""
        self.items_per_s = (
            min(WORKER_EVENTS_PER_S, FLEET_EVENTS_PER_S / max(1, workers)) / EVENTS_PER_ITEM
        )


ERROR_MAX_CHARS = 300  # a provider's message may quote the request; the ledger has all of it


class ItemFailed(Exception):
    """The item is a dead letter."""


class ItemWillRetry(Exception):
    """The item waits for its next attempt."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Read by celery.worker.request.Request: an exception for the event, and the text under it."""

    exception: Exception
    traceback: str


def celery_result(outcome: Outcome) -> tuple[int, ErrorReport | None, float]:
    """Return result, error and seconds for Celery, of an outcome whose message is acknowledged."""
    match outcome:
        case Done(result):
            return 0, None, result.latency_ms / 1000
        case Dead(letter):
            return (
                1,
                ErrorReport(ItemFailed(_cut(f"{letter.reason}: {letter.last_error}")), ""),
                0.0,
            )
        case Retry(after_s=after_s):
            words = _cut(outcome.error)
            return (
                1,
                ErrorReport(CeleryRetry(words, exc=ItemWillRetry(words), when=after_s), ""),
                0.0,
            )
        case _:  # nothing was run: it was finished before, or is parked
            return 0, None, 0.0


def _cut(text: str) -> str:
    return text if len(text) <= ERROR_MAX_CHARS else text[: ERROR_MAX_CHARS - 1] + "…"


TASK = "penstock.schedule"
TELL_EACH_S = 1.0


def tell_firings(consumer: Any, decided: DecidedTimes) -> None:
    """Send what came of schedules; called once per broker connection.

    Each has a dispatcher of its own, and ends its timers."""
    dispatcher = consumer.event_dispatcher
    if dispatcher is None:
        return

    def tell() -> None:
        """Send what is waiting.

        What is decided while events are off is not sent later: it is in `penstock schedule list`.
        """
        while decided:
            schedule, decision = decided.popleft()
            if dispatcher.enabled and (not dispatcher.groups or "task" in dispatcher.groups):
                _send(dispatcher, schedule, decision)

    consumer.timer.call_repeatedly(TELL_EACH_S, tell)


def _send(dispatcher: Any, schedule: Schedule, decision: Decision) -> None:
    task_id, why = job_key(schedule), _shown(decision.reason or "")
    told = {"schedule": schedule.name}
    if decision.outcome is FiringOutcome.SKIPPED:
        told["skipped"] = why
    dispatcher.send(
        "task-received",
        uuid=task_id,
        name=TASK,
        args="()",
        kwargs=repr(told),
        root_id=task_id,
        parent_id=None,
        retries=schedule.tries,
    )
    match decision.outcome:
        case FiringOutcome.STARTED:
            dispatcher.send(
                "task-succeeded", uuid=task_id, result=f"started {decision.job_id}", runtime=0.0
            )
        case FiringOutcome.NOTHING_NEW:
            dispatcher.send(
                "task-succeeded", uuid=task_id, result=f"nothing new: {why}", runtime=0.0
            )
        case FiringOutcome.FAILED:
            dispatcher.send("task-failed", uuid=task_id, exception=why, traceback="")
        case FiringOutcome.SKIPPED:
            dispatcher.send(
                "task-revoked", uuid=task_id, terminated=False, signum=None, expired=True
            )


def _shown(reason: str) -> str:
    text = several_lines(redact(reason))
    return text if len(text) <= ERROR_MAX_CHARS else text[: ERROR_MAX_CHARS - 1] + "…"


FLUSH_EACH_S = 0.5
BUFFER_MAX = 1_000  # events, some 300 bytes each; a full buffer is sent at once
UNSENT_MAX = 20  # groups that Redis would not take, kept until it is back: the oldest go first
FLEET_LOOK_EACH_S = 10.0


def gather_events(consumer: Any, sample: EventSample, decided: DecidedTimes | None = None) -> None:
    """Send task events in groups; called once per broker connection.

    Each has a dispatcher of its own, and ends its timers.

    ``decided``: times of schedules, which are shown as well."""
    dispatcher = consumer.event_dispatcher
    if dispatcher is None:
        return
    dispatcher.buffer_limit = BUFFER_MAX
    dispatcher._outbound_buffer = deque(dispatcher._outbound_buffer, maxlen=UNSENT_MAX)
    is_flushing = False

    def begin() -> None:
        """Flush from now on, until nothing happens any more: an idle worker sleeps."""
        nonlocal is_flushing
        if not is_flushing:
            is_flushing = True
            sample.turn()
            consumer.timer.call_after(FLUSH_EACH_S, flush)

    def flush() -> None:
        nonlocal is_flushing
        is_flushing = False
        sample.turn()
        dispatcher.flush()
        if dispatcher._outbound_buffer or not sample.is_settled:
            begin()

    dispatcher.on_send_buffered = begin
    begin()
    count_workers(dispatcher, sample)
    consumer.timer.call_repeatedly(FLEET_LOOK_EACH_S, count_workers, (dispatcher, sample))
    if decided is not None:
        tell_firings(consumer, decided)


def count_workers(dispatcher: Any, sample: EventSample) -> None:
    """Count the workers that send events; while Redis does not answer, the last count stays."""
    if not dispatcher.groups or "task" in dispatcher.groups:
        try:
            sample.share_fleet(
                int(dispatcher.connection.default_channel.client.zcard(keys.WORKERS))
            )
        except (RedisError, AttributeError):  # another broker has no such client
            return
