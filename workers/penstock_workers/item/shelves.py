"""Where each outcome goes: which rows in SQL, which entries in Redis. Called in a thread, a group at a time."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock_ledger import (
    JobStore,
    OutcomeStore,
    RedisLedger,
    SettleBatch,
    SettledDead,
    SettledDone,
    SettledRetry,
)
from penstock_ledger.model import DeadLetter, JobState
from penstock_producer.tracing import TRACEPARENT_HEADER, parse_traceparent
from penstock_producer.wire import FED_HEADER, URGENT_HEADER, encode_item
from penstock_workers.item.flight import Flight
from penstock_workers.item.outcome import Dead, Done, Outcome, Parked, Released, Retry, Unreadable

log = logging.getLogger(__name__)

REDIS_GROUP_MAX = 500  # conclusions per script call


class Settled(NamedTuple):
    """One item with its outcome, on its way to the stores."""

    flight: Flight
    outcome: Outcome


class Shelves:
    """The stores as settle needs them. Every write may be repeated without harm."""

    def __init__(self, jobs: JobStore, outcomes: OutcomeStore, hot: RedisLedger) -> None:
        self._jobs = jobs
        self._outcomes = outcomes
        self._hot = hot

    def write_sql(self, group: Sequence[Settled]) -> None:
        """Results and dead letters in one transaction; then, rarely, the pause of a job."""
        results = [outcome.result for _, outcome in group if isinstance(outcome, Done)]
        letters = [outcome.letter for _, outcome in group if isinstance(outcome, Dead)]
        if results or letters:
            self._outcomes.settle(results, letters)
        for job_id, (why, ends_in_s) in _pauses(group).items():
            resume_at = None if ends_in_s is None else time.time() + ends_in_s
            if self._jobs.set_state(
                job_id, JobState.PAUSED, reason=why, expect={JobState.RUNNING}, resume_at=resume_at
            ):
                log.error("job %s is paused: %s", job_id, why)

    def write_redis(self, group: Sequence[Settled]) -> None:
        """Completed set, counters, window and delayed set in one script call; then what is put aside."""
        for job_id in _pauses(group):
            self._hot.set_job_state(job_id, JobState.PAUSED)
        for start in range(0, len(group), REDIS_GROUP_MAX):
            self._hot.settle(_batch(group[start : start + REDIS_GROUP_MAX]))
        for job_id, raws in _parked(group).items():
            self._hot.park(job_id, raws)
        for flight, outcome in group:
            if isinstance(outcome, Unreadable):
                log.error("message %s is set aside for a person: %s", flight.delivery.task_id, outcome.why)


def _batch(group: Iterable[Settled]) -> SettleBatch:
    done: list[SettledDone] = []
    dead: list[SettledDead] = []
    retries: list[SettledRetry] = []
    released = []
    for flight, outcome in group:
        match outcome:
            case Done():
                done.append(_done(flight))
            case Dead(letter):
                dead.append(_dead(flight, letter))
            case Retry():
                retries.append(_retry(flight, outcome))
            case Released(crashed=False) | Parked() if flight.begun:
                released.append(flight.key)
            case _:
                pass
    return SettleBatch(done, dead, retries, released)


def _done(flight: Flight) -> SettledDone:
    return SettledDone(
        key=flight.key,
        buckets=flight.job.buckets,
        after_retry=flight.retries > 0 or flight.crashes > 0,
        prompt_tokens=flight.spent.prompt_tokens,
        completion_tokens=flight.spent.completion_tokens,
        cost_microusd=flight.spent.cost_microusd,
        calls=flight.calls,
    )


def _dead(flight: Flight, letter: DeadLetter) -> SettledDead:
    return SettledDead(
        key=flight.key,
        buckets=flight.job.buckets,
        reason=letter.reason,
        prompt_tokens=flight.spent.prompt_tokens,
        completion_tokens=flight.spent.completion_tokens,
        cost_microusd=flight.spent.cost_microusd,
        calls=flight.calls,
    )


def _retry(flight: Flight, retry: Retry) -> SettledRetry:
    return SettledRetry(
        key=flight.key,
        buckets=flight.job.buckets,
        queue=flight.delivery.queue,
        tag=flight.tag,
        raw=_message(flight, flight.retries + retry.counted),
        after_s=retry.after_s,
        rate_limited=retry.rate_limited,
        prompt_tokens=flight.spent.prompt_tokens,
        completion_tokens=flight.spent.completion_tokens,
        cost_microusd=flight.spent.cost_microusd,
        calls=flight.calls,
    )


def _message(flight: Flight, retries: int) -> bytes:
    """The item's message anew, with its retries; it travels as it came, whole or by reference."""
    message = flight.message
    return encode_item(
        message.key,
        queue=flight.delivery.queue,
        body=message.body,
        ref=message.ref,
        retries=retries,
        calls=flight.calls_in_all,
        spent=flight.spent_in_all,
        urgent=flight.delivery.headers.get(URGENT_HEADER) is True,
        fed=_fed(flight),
        trace=_trace(flight),
    )


def _fed(flight: Flight) -> int | None:
    """Headers come from outside: one of another shape is left out."""
    fed = flight.delivery.headers.get(FED_HEADER)
    return fed if isinstance(fed, int) and not isinstance(fed, bool) else None


def _trace(flight: Flight) -> str | None:
    """As it came, whether or not this worker traces: the next one may."""
    header = flight.delivery.headers.get(TRACEPARENT_HEADER)
    return header if parse_traceparent(header) is not None else None


def _pauses(group: Iterable[Settled]) -> dict[str, tuple[str, float | None]]:
    """By job: why it pauses, and after how many seconds that ends by itself. What lasts longest counts."""
    found: dict[str, tuple[str, float | None]] = {}
    for flight, outcome in group:
        if isinstance(outcome, Parked) and outcome.pauses:
            why = (outcome.why, outcome.ends_in_s)
            found[flight.key.job_id] = max(found.get(flight.key.job_id, why), why, key=_lasts_s)
    return found


def _lasts_s(pause: tuple[str, float | None]) -> float:
    return math.inf if pause[1] is None else pause[1]


def _parked(group: Iterable[Settled]) -> dict[str, list[bytes]]:
    raws: dict[str, list[bytes]] = defaultdict(list)
    for flight, outcome in group:
        if isinstance(outcome, Parked):
            raws[flight.key.job_id].append(_message(flight, flight.retries))
    return raws
