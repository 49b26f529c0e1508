"""Each outcome is written as rows in SQL and entries in Redis.

Called in a thread, a group at a time.

Notes what results are made with, before the first of them is stored and once a minute; else a
group costs some look-ups.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Container, Iterable, Sequence
from importlib import metadata
from typing import Final
from uuid import uuid4

from redis import RedisError

from penstock_ledger import (
    RENOTED_S,
    AskedAgain,
    ItemKey,
    JobNotFound,
    JobStore,
    MadeWith,
    OutcomeStore,
    PaidBeside,
    Provenance,
    RedisLedger,
    SettleBatch,
    SettledCrash,
    SettledDead,
    SettledDone,
    SettledRetry,
    keys,
)
from penstock_ledger.model import JobState, Paid
from penstock_ledger.reasons import Reason, explain
from penstock_producer.job.lanes import has_own_model, packs
from penstock_workers.item.attempt import Attempt, Item, Settled
from penstock_workers.item.outcome import Dead, Done, Parked, Released, Retry, Skipped, Unreadable
from penstock_workers.item.settling.rows import (
    has_budget,
    message_again,
    message_to,
    savings_in,
    settled_dead,
    settled_done,
    settled_retry,
)
from penstock_workers.item.settling.stop_loss import StopLoss, is_refused_first
from penstock_workers.item.spent import NOTHING_PAID
from penstock_workers.settings import ProviderSettings

# (job, generation, provider, model) that are noted; one that is forgotten is just written again
KEPT: Final = 2_000
# of one job, generation and provider that have entries of their own: a server may name another in
# each answer
MODELS: Final = 20

_Noted = tuple[str, int, str, str | None]

# why a job pauses, and after how many seconds that ends by itself
Pause = tuple[Reason, float | None]


class MadeWithNotes:
    """Notes what answers were made with, in the thread that settles."""

    def __init__(self, store: Provenance, engine: str, usd_per_hour: float) -> None:
        self._store, self._engine, self._usd_per_hour = store, engine, usd_per_hour
        self._noted: OrderedDict[_Noted, float] = OrderedDict()  # monotonic
        self._models: Counter[tuple[str, int, str]] = Counter()  # of those that are noted
        self._release = metadata.version("penstock")

    def note(self, group: Sequence[Settled]) -> None:
        """Note what items were made with, in a transaction of its own, rarely."""
        fresh: dict[_Noted, MadeWith] = {}
        now = time.monotonic()
        for attempt, outcome in group:
            if not isinstance(outcome, Done) or not isinstance(attempt, Attempt):
                continue
            spec, answered = attempt.job.spec, outcome.result.model
            mark = (attempt.key.job_id, attempt.key.generation, spec.provider, answered)
            if mark not in self._noted and self._models[mark[:3]] + len(fresh) >= MODELS:
                mark = (*mark[:3], None)
            if now - self._noted.get(mark, -RENOTED_S) >= RENOTED_S and mark not in fresh:
                fresh[mark] = self._made_with(
                    mark, spec.lane, mark[3] or spec.model, attempt.job.provider
                )
        if not fresh:
            return
        self._store.note((job_id, made) for (job_id, *_), made in fresh.items())
        self._models.update(mark[:3] for mark in fresh if mark not in self._noted)
        self._noted.update(dict.fromkeys(fresh, now))
        while len(self._noted) > KEPT:
            forgotten, _ = self._noted.popitem(last=False)
            self._models[forgotten[:3]] -= 1
        self._models = +self._models  # without those of which none is left

    def _made_with(
        self, mark: _Noted, lane: str, model: str | None, provider: ProviderSettings
    ) -> MadeWith:
        _, generation, name, told = mark
        if has_own_model(lane):
            return MadeWith(
                generation,
                lane,
                "",
                self._release,
                self._engine,
                None,
                None,
                self._usd_per_hour,
                told,
                notes_savings=True,
            )
        prices = provider.prices_of(model)
        if prices is None:
            return MadeWith(
                generation, lane, name, self._release, "", model=told, notes_savings=True
            )
        discount = prices.batch_discount if packs(lane) else None
        return MadeWith(
            generation,
            lane,
            name,
            self._release,
            "",
            prices.input,
            prices.output,
            model=told,
            batch_discount=discount,
            notes_savings=True,
        )


log = logging.getLogger(__name__)


class Records:
    """Writes outcomes to SQL and Redis. Every write may be repeated without harm."""

    def __init__(
        self, jobs: JobStore, outcomes: OutcomeStore, hot: RedisLedger, made_with: MadeWithNotes
    ) -> None:
        self._jobs = jobs
        self._outcomes = outcomes
        self._hot = hot
        self._made_with = made_with
        self._stop_loss = StopLoss(jobs, hot)
        self._token = uuid4().hex[:12]  # of this process, in the names of payments
        self._purged = set[str]()  # jobs that SQL has no more, from its write to that of Redis

    def write_sql(self, group: Sequence[Settled]) -> None:
        """Write results, dead letters and what was paid besides in one transaction.

        Then the answers that callers wait for are announced and, rarely, a job is paused."""
        results = [outcome.result for _, outcome in group if isinstance(outcome, Done)]
        others = without_results(group)
        letters = [outcome.letter for _, outcome in others if isinstance(outcome, Dead)]
        if results:
            self._made_with.note(group)
        lost = self._outcomes.settle(
            results,
            letters,
            earlier=earlier_in(group),
            retried=_retried(others, self._token),
            left=_left(others),
            savings=savings_in(group),
        )
        if answered := _answered(group):
            # it is durable, so its caller need not wait for what follows; without Redis the door
            # looks by itself
            with contextlib.suppress(RedisError):
                self._hot.tell_answered(answered)
        for job_id in {key.job_id for key in lost}:
            try:
                self._jobs.get(job_id)
            except JobNotFound:
                self._purged.add(job_id)
        for job_id, (why, ends_in_s) in pauses_of(others).items():
            resume_at = None if ends_in_s is None else time.time() + ends_in_s
            if self._jobs.set_state(
                job_id, JobState.PAUSED, why=why, expect={JobState.RUNNING}, resume_at=resume_at
            ):
                log.error("job %s is paused: %s", job_id, explain(why))

    def write_redis(self, group: Sequence[Settled]) -> None:
        """Write completed set, counters, window and delayed set in one script call.

        Then what waits for its job to be resumed."""
        others = without_results(group)
        # a Redis that has forgotten since the purge would keep what is written of it for ever
        for job_id in self._purged:
            self._hot.keep_out(job_id)
        self._purged.clear()
        for job_id in pauses_of(others):
            self._hot.set_job_state(job_id, JobState.PAUSED)
        report = self._hot.settle(_batch(group, self._without_room(others)))
        self._stop_loss.look(group, report.lately)
        for job_id, raws in _parked(others).items():
            self._hot.park(job_id, raws)
        for queue, messages in _moved(others).items():
            self._hot.queues.move(queue, messages)
        for settled in others:
            if isinstance(settled.outcome, Unreadable):
                log.error(
                    "message %s is set aside for a person: %s",
                    settled.delivery.task_id,
                    settled.outcome.why,
                )

    def _without_room(self, group: Iterable[Settled]) -> frozenset[str]:
        """Note the queues that items go on to; return those that have no room.

        Control loops look after them."""
        to = {
            outcome.to
            for _, outcome in group
            if isinstance(outcome, Retry) and outcome.to is not None
        }
        noted = (self._hot.queues.note(keys.lane_queue(queue), [queue]) for queue in to)
        return frozenset[str]().union(*noted)


def without_results(group: Sequence[Settled]) -> Sequence[Settled]:
    """Return what ended in something else than a result, which is little of most groups."""
    return [settled for settled in group if not isinstance(settled.outcome, Done)]


def _batch(group: Iterable[Settled], full: Container[str] = ()) -> SettleBatch:
    """Return what one settle call writes.

    ``full``: queues for which there is no room; what goes there waits in its lane's own, from where
    workers send it on."""
    done: list[SettledDone] = []
    dead: list[SettledDead] = []
    retries: list[SettledRetry] = []
    released, paid = list[ItemKey](), dict[ItemKey, int]()
    crashed: list[SettledCrash] = []
    again: list[AskedAgain] = []
    for attempt, outcome in group:
        if not isinstance(attempt, Attempt):
            continue  # it has not begun
        spent = attempt.spent
        asked = AskedAgain(attempt.key.job_id, spent.repairs, spent.fallbacks, spent.escalations)
        if any(asked[1:]):
            again.append(asked)
        match outcome:
            case Done(result):
                done.append(settled_done(attempt, result))
            case Dead(letter):
                dead.append(
                    settled_dead(attempt, letter, refused_first=is_refused_first(attempt, outcome))
                )
            case Retry():
                queue = outcome.to or attempt.delivery.queue
                queue = keys.lane_queue(queue) if queue in full else queue
                refused_first = is_refused_first(attempt, outcome)
                retries.append(settled_retry(attempt, outcome, queue, refused_first=refused_first))
            case Released(crashed=str(failure)):
                crashed.append(SettledCrash(attempt.key, failure))
            case Released() | Parked() if attempt.begun:
                released.append(attempt.key)
                if has_budget(attempt.job):
                    paid[attempt.key] = 0
            case _:
                pass
    return SettleBatch(done, dead, retries, released, paid, crashed, again)


def _answered(group: Iterable[Settled]) -> list[ItemKey]:
    """Return the finished items of jobs whose callers wait."""
    return [
        item.key
        for item, outcome in group
        if isinstance(item, Attempt) and item.job.awaited and isinstance(outcome, Done | Dead)
    ]


def pauses_of(group: Iterable[Settled]) -> dict[str, Pause]:
    """Return by job why it pauses, and after how many seconds that ends by itself.

    What lasts longest counts."""
    found: dict[str, Pause] = {}
    for item, outcome in group:
        if isinstance(outcome, Parked) and outcome.pauses and isinstance(item, Item):
            why = (outcome.pauses, outcome.ends_in_s)
            found[item.key.job_id] = max(found.get(item.key.job_id, why), why, key=_lasts_s)
    return found


def _lasts_s(pause: Pause) -> float:
    return math.inf if pause[1] is None else pause[1]


def _moved(group: Iterable[Settled]) -> dict[str, list[tuple[str, bytes]]]:
    """Return by queue the messages that another worker must take, by their tags."""
    messages: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
    for item, outcome in group:
        if isinstance(item, Item) and isinstance(outcome, Released) and outcome.to is not None:
            messages[outcome.to].append((item.tag, message_to(item, outcome.to)))
    return messages


def earlier_in(group: Iterable[Settled]) -> dict[ItemKey, Paid]:
    """Return what outcomes tell of earlier attempts that were paid for, as their messages do."""
    return {
        item.key: before
        for item, outcome in group
        if isinstance(outcome, Done | Dead)
        and isinstance(item, Item)
        and (before := item.paid_before) is not NOTHING_PAID
    }


def _retried(group: Iterable[Settled], token: str) -> list[tuple[str, PaidBeside]]:
    """Return what attempts used up that came to no outcome, under names that stay.

    A name is the same when it is written again. Their messages tell of most of it, and are lost
    with Redis."""
    return [
        (f"retried-{token}-{item.sent_at!r}", item.spent.beside(item.key, item.calls))
        for item, outcome in group
        if not isinstance(outcome, Done | Dead) and isinstance(item, Attempt) and any(item.spent)
    ]


def _left(group: Iterable[Settled]) -> list[PaidBeside]:
    """Return what earlier attempts used up on documents whose job has left the lane.

    Their messages, which said it, end here."""
    return [
        item.spent_in_all.beside(item.key, item.calls_in_all)
        for item, outcome in group
        if isinstance(item, Item)
        and isinstance(outcome, Skipped)
        and outcome.left_lane
        and item.calls_in_all
    ]


def _parked(group: Iterable[Settled]) -> dict[str, list[bytes]]:
    """Return by job the messages that wait until it is resumed."""
    raws: dict[str, list[bytes]] = defaultdict(list)
    for item, outcome in group:
        if isinstance(outcome, Parked) and isinstance(item, Item):
            raws[item.key.job_id].append(message_again(item, item.retries))
    return raws
