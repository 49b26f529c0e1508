"""The hand-over: messages become deliveries on the item loop, outcomes the broker's actions.

The way in: ``item_strategy`` makes the message Celery's request, and ``HandOver.accept`` a
``Delivery``, which the item loop gives to its engine. The way back: ``conclude`` on the item loop,
``deliver`` on the hub thread, which tells Celery and acknowledges. What crosses goes through deques
with one wake-up each: many items per thread switch when the worker is busy.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from celery.concurrency.base import BasePool
from celery.exceptions import ImproperlyConfigured, InvalidTaskError
from celery.worker import strategy as celery_strategy
from celery.worker.state import task_ready
from kombu.exceptions import ContentDisallowed, DecodeError

from penstock_workers.broker.acks import Acks
from penstock_workers.broker.leases import BrokerAction
from penstock_workers.celery_app.engine_thread import EngineThread
from penstock_workers.celery_app.events import EventSample, celery_result, gather_events
from penstock_workers.celery_app.requests import ShortRequest
from penstock_workers.celery_app.running_items import (
    LateAcks,
    RunningItem,
    RunningItems,
    Withdrawals,
)
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.outcome import (
    Dead,
    Done,
    Outcome,
    Parked,
    Released,
    Retry,
    Skipped,
    Unreadable,
)

log = logging.getLogger(__name__)

# starts are reported to Celery this late, in groups: for task-started and revoking
STARTS_LINGER_S = 0.02
UNSURE_LOOK_S = 0.02  # between looks at leases that were not renewed in time
_CELERY_HANDLES = (InvalidTaskError, ContentDisallowed, DecodeError)


class ItemPool(BasePool, ABC):  # type: ignore[misc]  # Celery is untyped
    """The part of the worker's pool that the consumer and the strategy ask."""

    handover: HandOver
    sample: EventSample

    @abstractmethod
    def connected(self, consumer: Any) -> None:
        """Learn that the consumer has a connection to the broker, for the first time or again."""

    @abstractmethod
    def reconnecting(self) -> None:
        """Learn that an attempt to reach the broker has failed, and another follows."""


def item_strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Any:
    """Return what handles the messages of a task.

    Celery calls this at start and after each reconnect. Unusual messages go through Celery's own
    strategy.
    """
    pool = consumer.pool
    if not isinstance(pool, ItemPool):
        raise ImproperlyConfigured(
            f"{task.name} runs in the pool that penstock configures: leave out -P/--pool"
        )
    pool.connected(consumer)
    gather_events(consumer, pool.sample, app.parts.decided)
    handle = celery_strategy.default(task, app, consumer, **options)
    short = ShortRequest.of_consumer(task, app, consumer)

    def on_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
        if pool.handover.knows(message):
            return None
        try:
            if not callbacks and short.suits(message):
                request = short(message, ack)
                pool.handover.accept(request)
                request.reserve()
                return None
            return handle(message, body, ack, reject, callbacks)
        except _CELERY_HANDLES:
            raise
        # a message of a shape that Celery does not foresee would end the worker
        except Exception as error:
            raise InvalidTaskError(f"{type(error).__name__}: {error}") from error

    return on_message


def broker_action(outcome: Outcome) -> BrokerAction:
    """Return what the broker does with the message of an attempt whose outcome is stored."""
    match outcome:
        case Done() | Dead() | Retry() | Skipped() | Parked():
            return BrokerAction.ACK
        case Released():
            return BrokerAction.GIVE_BACK if outcome.to is None else BrokerAction.ACK
        case Unreadable():
            return BrokerAction.SET_ASIDE


class HandOver:
    """Implements ``deliveries.Bridge``. Methods say which thread calls them."""

    def __init__(
        self,
        engine: EngineThread,
        acks: Acks,
        late: LateAcks,
        sample: EventSample,
        wake_hub: Callable[[], None],
    ) -> None:
        self.acks = acks
        self.commits = 0
        self.counts: dict[str, int] = dict.fromkeys(
            ("failed", "retried", "given-back", "adopted", "late", "lost-leases"), 0
        )
        self.items = RunningItems()
        self.withdrawals = Withdrawals(engine, self.items, acks, late, self.counts)
        self._engine = engine
        self._late = late
        self._sample = sample
        self._wake_hub = wake_hub
        self._inbox: deque[Delivery] = deque()  # hub -> loop; bounded by prefetch
        # loop -> hub; None = started; bounded likewise
        self._outbox: deque[tuple[Delivery, Outcome | None]] = deque()
        # loop -> hub: starts that wait until what was lost is aborted; bounded by the slots
        self._unsure: deque[asyncio.Event] = deque()
        self._aborted_losses = 0  # of ``Leases.losses``; touched on the loop thread only
        self._loop_is_called = False
        self._hub_is_called = False
        self._tell_starts: asyncio.TimerHandle | None = None  # touched on the loop thread only

    # -- the way in: hub thread --------------------------------------------------------------------

    def knows(self, message: Any) -> bool:
        """Return whether a message needs no run: it is a copy of one that was here before."""
        item = self.items.of_tag(message.delivery_tag)
        if item is not None:
            self.withdrawals.adopt(item, message)
            return True
        if self._late.recognise(message):
            self.counts["late"] += 1
            self.acks.add(message)
            return True
        return False

    def accept(self, request: Any) -> None:
        """Take charge of an item."""
        message = request.message
        headers, info = message.headers, message.delivery_info
        retries = headers.get("retries")
        delivery = Delivery(
            task_id=request.id,
            kwargs=request.kwargs,
            headers=headers,
            retries=retries if isinstance(retries, int) else 0,
            redelivered=bool(info.get("redelivered")),
            queue=info.get("routing_key") or "",
            raw=getattr(message, "raw", None),
        )
        request.receive(self._sample)
        self.items.add(delivery, request)
        self._inbox.append(delivery)
        if not self._loop_is_called:
            self._loop_is_called = True
            self._engine.call(self._take_inbox)

    # -- the item loop -----------------------------------------------------------------------------

    def _take_inbox(self) -> None:
        self._loop_is_called = False
        while self._inbox:
            delivery = self._inbox.popleft()
            try:
                self._engine.running.accept(delivery)
            except Exception:
                log.exception(
                    "item %s was not accepted, because of an error in Penstock; it goes back to "
                    "its queue",
                    delivery.task_id,
                )
                self.conclude([(delivery, Released("not accepted"))])

    async def sure(self, *, anew: bool = False) -> None:
        leases = self.acks.leases
        if anew:
            leases.doubt()
        if leases.are_kept() and leases.losses == self._aborted_losses:
            return
        while not leases.are_kept():  # noqa: ASYNC110 -- a thread keeps them
            await asyncio.sleep(UNSURE_LOOK_S)
        losses = leases.losses  # the hub has heard of them, and comes to this after it
        aborted = asyncio.Event()
        self._unsure.append(aborted)
        self._wake_hub()
        await aborted.wait()
        self._aborted_losses = losses

    def started(self, delivery: Delivery) -> None:
        """Report starts to the hub in groups: one wake-up per item would cost too much."""
        self._outbox.append((delivery, None))
        if not self._hub_is_called and self._tell_starts is None:
            self._tell_starts = self._engine.loop.call_later(STARTS_LINGER_S, self._call_hub)

    def conclude(self, pairs: Sequence[tuple[Delivery, Outcome]]) -> None:
        self.commits += 1
        self._outbox.extend(pairs)
        self._call_hub()

    def _call_hub(self) -> None:
        if self._tell_starts is not None:
            self._tell_starts.cancel()
            self._tell_starts = None
        if not self._hub_is_called:
            self._hub_is_called = True
            self._wake_hub()

    # -- the way back: hub thread ------------------------------------------------------------------

    def deliver(self) -> None:
        """Work through what the engine has said since the last call, in its order."""
        self._hub_is_called = False
        while self._unsure:
            self._engine.call(self._unsure.popleft().set)
        while self._outbox:
            delivery, outcome = self._outbox.popleft()
            item = self.items.of_delivery(delivery)
            if item is None:  # aborted: another worker runs it
                continue
            try:
                if outcome is None:
                    self._start(item)
                else:
                    self._conclude(item, outcome)
            except Exception:
                log.exception(
                    "item %s was not concluded, because of an error in Penstock; it goes back to "
                    "its queue",
                    delivery.task_id,
                )
                self.acks.give_back(item.message)
        self.acks.flush()

    def _start(self, item: RunningItem) -> None:
        if item.request.revoked():  # while it waited here; ``revoked`` has acknowledged it
            self.withdrawals.abort(item, "it was revoked")
        else:
            item.request.on_accepted(item.pid, monotonic())

    def _conclude(self, item: RunningItem, outcome: Outcome) -> None:
        action = broker_action(outcome)
        if action is BrokerAction.GIVE_BACK:
            self.withdrawals.give_back(item)
            return
        self.items.discard(item)
        if action is BrokerAction.SET_ASIDE:
            item.request.reject(requeue=False)
            task_ready(item.request)
            return
        if isinstance(outcome, Retry):
            self.counts["retried"] += 1
        elif isinstance(outcome, Dead):
            self.counts["failed"] += 1
        item.request.on_success(celery_result(outcome))
