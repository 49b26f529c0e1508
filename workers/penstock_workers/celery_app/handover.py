"""The hand-over: a claimed message becomes a delivery on the item loop, and an outcome becomes the broker's action.

The way in: ``item_handler`` gets the message from Celery's consumer, ``item_strategy`` makes it Celery's request, and
``HandOver.accept`` a ``Delivery``, which the item loop gives to its engine. The way back: ``conclude`` on the item loop,
``deliver`` on the hub thread, which tells Celery and acknowledges. What crosses goes through deques with one wake-up each:
many items per thread switch when the worker is busy.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from celery.concurrency.base import BasePool
from celery.exceptions import ImproperlyConfigured, InvalidTaskError
from celery.worker import strategy as celery_strategy
from celery.worker.state import task_ready, task_reserved
from kombu.exceptions import ContentDisallowed, DecodeError

from penstock_producer.wire import TASK_NAME
from penstock_workers.broker.held import BrokerAction
from penstock_workers.broker.leases import BROKER_ERRORS, Leases
from penstock_workers.broker.messages import Message
from penstock_workers.broker.stock_acks import ack_stock_messages, is_closed
from penstock_workers.celery_app.bridge import Delivery
from penstock_workers.celery_app.engine_thread import EngineThread
from penstock_workers.celery_app.events import gather_events
from penstock_workers.celery_app.reports import celery_result
from penstock_workers.celery_app.running_items import LateAcks, RunningItem, RunningItems
from penstock_workers.celery_app.sampling import EventSample
from penstock_workers.celery_app.short_requests import ShortRequest
from penstock_workers.item.outcome import Dead, Done, Outcome, Parked, Released, Retry, Skipped, Unreadable

log = logging.getLogger(__name__)

STARTS_LINGER_S = 0.02  # starts are reported to Celery this late, in groups: for task-started and revoking
_CELERY_HANDLES = (InvalidTaskError, ContentDisallowed, DecodeError)

Handler = Callable[[Any], None]


class ItemPool(BasePool):  # type: ignore[misc]  # Celery is untyped
    """What the consumer and the strategy ask of the worker's pool."""

    handover: HandOver
    sample: EventSample

    def connected(self, consumer: Any) -> None:
        """The consumer has a connection to the broker, for the first time or again."""
        raise NotImplementedError

    def reconnecting(self) -> None:
        """An attempt to reach the broker has failed, and another follows."""
        raise NotImplementedError


def item_handler(consumer: Any, pool: ItemPool, handle_task: Handler) -> Handler:
    """What the consumer calls with each message; ``handle_task`` gets those that are no items.

    Celery makes two promises per message, for brokers that acknowledge one by one: a tenth of an item's cost.
    """

    def on_message(message: Any) -> None:
        if not isinstance(message.headers, dict) or message.headers.get("task") != TASK_NAME:
            handle_task(message)
            return
        try:
            strategy = consumer.strategies[TASK_NAME]
            ack = pool.handover.acks.bind(message)
            strategy(message, None, ack, message.reject_log_error, consumer.on_task_message)
        except (InvalidTaskError, ContentDisallowed) as error:
            consumer.on_invalid_task(None, message, error)
        except DecodeError as error:
            consumer.on_decode_error(message, error)

    return on_message


def item_strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Any:
    """Celery calls this at start and after each reconnect. Unusual messages go through Celery's own strategy."""
    pool = consumer.pool
    if not isinstance(pool, ItemPool):
        raise ImproperlyConfigured(f"{task.name} runs in the pool that penstock configures: leave out -P/--pool")
    pool.connected(consumer)
    gather_events(consumer, pool.sample)
    handle = celery_strategy.default(task, app, consumer, **options)
    short = ShortRequest.of_consumer(task, app, consumer)

    def on_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
        if pool.handover.knows(message):
            return None
        try:
            if not callbacks and short.suits(message):
                request = short(message, ack)
                request.reserve()
                pool.handover.accept(request)
                return None
            return handle(message, body, ack, reject, callbacks)
        except _CELERY_HANDLES:
            raise
        except Exception as error:  # a message of a shape that Celery does not foresee would end the worker
            raise InvalidTaskError(f"{type(error).__name__}: {error}") from error

    return on_message


def broker_action(outcome: Outcome) -> BrokerAction:
    """What the broker does with the message of an attempt, once its outcome is stored."""
    match outcome:
        case Released(to=None):
            return BrokerAction.GIVE_BACK
        case Unreadable():
            return BrokerAction.SET_ASIDE
        case Done() | Dead() | Retry() | Skipped() | Parked() | Released():  # which is on its way to another queue
            return BrokerAction.ACK


class HandOver:
    """Implements ``bridge.Bridge``. Methods say which thread calls them."""

    def __init__(
        self, engine: EngineThread, acks: Acks, late: LateAcks, sample: EventSample, wake_hub: Callable[[], None]
    ) -> None:
        self.acks = acks
        self.commits = 0
        self.counts = dict.fromkeys(("failed", "retried", "given-back", "adopted", "late", "lost-leases"), 0)
        self.items = RunningItems()
        self._engine = engine
        self._late = late
        self._sample = sample
        self._wake_hub = wake_hub
        self._inbox: deque[Delivery] = deque()  # hub -> loop; bounded by prefetch
        self._outbox: deque[tuple[Delivery, Outcome | None]] = deque()  # loop -> hub; None = started; bounded likewise
        self._loop_is_called = False
        self._hub_is_called = False
        self._tell_starts: asyncio.TimerHandle | None = None  # touched on the loop thread only

    # -- the way in: hub thread ----------------------------------------------------------------------------------------

    def knows(self, message: Any) -> bool:
        """True when a claimed message needs no run of its own: it is a redelivered copy of one that was here before."""
        item = self.items.of_tag(message.delivery_tag)
        if item is not None:
            self._adopt(item, message)
            return True
        if self._late.recognise(message):
            self.counts["late"] += 1
            self.acks.bind(message)()
            return True
        return False

    def accept(self, request: Any) -> None:
        """Take charge of an item."""
        message, headers = request.message, request.request_dict
        retries = headers.get("retries")
        delivery = Delivery(
            task_id=request.id,
            kwargs=headers["kwargs"],
            headers=headers,
            retries=retries if isinstance(retries, int) else 0,
            redelivered=bool(request.delivery_info["redelivered"]),
            queue=request.delivery_info["routing_key"] or "",
            raw=getattr(message, "raw", None),
        )
        request.receive(self._sample)
        self.items.add(delivery, request)
        self._inbox.append(delivery)
        if not self._loop_is_called:
            self._loop_is_called = True
            self._engine.call(self._take_inbox)

    def _adopt(self, item: RunningItem, message: Any) -> None:
        """The lease was lost, or the connection: the broker sent what is still running here. The run goes on."""
        self.counts["adopted"] += 1
        item.message = message
        item.request._on_ack = self.acks.bind(message)
        task_reserved(item.request)

    # -- the item loop ---------------------------------------------------------------------------------------------------

    def _take_inbox(self) -> None:
        self._loop_is_called = False
        while self._inbox:
            delivery = self._inbox.popleft()
            try:
                self._engine.running.accept(delivery)
            except Exception:
                log.exception("item %s was not accepted, by an error of Penstock; it goes back", delivery.task_id)
                self.conclude([(delivery, Released("not accepted"))])

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

    # -- the way back: hub thread ----------------------------------------------------------------------------------------

    def deliver(self) -> None:
        """Work through what the engine has said since the last call, in its order."""
        self._hub_is_called = False
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
                log.exception("item %s was not concluded, by an error of Penstock; it goes back", delivery.task_id)
                self.acks.give_back(item.message)
        self.acks.flush()

    def _start(self, item: RunningItem) -> None:
        if item.request.revoked():  # while it waited here; ``revoked`` has acknowledged it
            self._abort(item, "it was revoked")
        else:
            item.request.on_accepted(item.pid, monotonic())

    def _conclude(self, item: RunningItem, outcome: Outcome) -> None:
        action = broker_action(outcome)
        if action is BrokerAction.GIVE_BACK:
            self.give_back(item)
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

    def give_back(self, item: RunningItem) -> None:
        """To its queue, without an event."""
        self.counts["given-back"] += 1
        self._let_go(item)
        self.acks.give_back(item.message)

    def revoke(self, pid: int) -> RunningItem | None:
        """Stop the running item that Celery has revoked, and return it."""
        item = self.items.of_pid(pid)
        if item is not None:
            self._abort(item, "it was revoked")
        return item

    def lose(self, tags: Iterable[str], leases: Leases) -> None:
        """Other workers may hold these by now: stop running them here."""
        for tag in tags:
            item = self.items.of_tag(tag)
            if item is not None and tag not in leases:  # else this process has claimed it again
                self.counts["lost-leases"] += 1
                self._let_go(item)
                self._engine.abort(item.delivery, "its lease was lost")

    def note_late(self, action: BrokerAction, tags: Sequence[str]) -> None:
        """These were concluded after their lease was lost: recognise their redelivered copies."""
        self.counts["lost-leases"] += len(tags)
        if action is BrokerAction.ACK:
            self._late.add(tags)

    def _abort(self, item: RunningItem, why: str) -> None:
        self.items.discard(item)
        self._engine.abort(item.delivery, why)

    def _let_go(self, item: RunningItem) -> None:
        """Celery forgets it; from here on nothing may acknowledge it."""
        self.items.discard(item)
        item.request.acknowledged = True
        task_ready(item.request)


class Acks:
    """Collects acknowledgements during a turn of the hub and sends them as a group at its end. Used by the hub thread.

    The transports of this package take groups of delivery tags; for other brokers see ``stock_acks.py``.
    """

    def __init__(self, leases: Leases, late: LateAcks, soon: Callable[[Callable[[], None]], object]) -> None:
        self.acked = 0
        self.groups = 0
        self._leases = leases
        self._late = late
        self._soon = soon
        self._waiting: list[Any] = []  # kombu messages; bounded by prefetch, emptied each turn of the hub

    def bind(self, message: Any) -> Callable[..., None]:
        """What a Celery request calls to acknowledge its message."""
        return partial(self._add, message)

    def give_back(self, message: Any) -> None:
        """To the front of its queue, at once."""
        if isinstance(message, Message):
            self._leases.conclude([str(message.delivery_tag)], BrokerAction.GIVE_BACK)
        elif not message.acknowledged and not is_closed(message.channel):
            message.reject_log_error(log, BROKER_ERRORS, requeue=True)

    def flush(self) -> None:
        messages, self._waiting = self._waiting, []
        if not messages:
            return
        self.acked += len(messages)
        self.groups += 1
        leased = [str(message.delivery_tag) for message in messages if isinstance(message, Message)]
        if leased:
            self._leases.conclude(leased, BrokerAction.ACK)
        if len(leased) < len(messages):
            self._late.add(ack_stock_messages(message for message in messages if not isinstance(message, Message)))

    def _add(self, message: Any, *_: Any) -> None:
        self._waiting.append(message)
        if len(self._waiting) == 1:
            self._soon(self.flush)
