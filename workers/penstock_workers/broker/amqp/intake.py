"""Deliveries from RabbitMQ that this worker has not taken yet.

Deliveries wait here, unacknowledged, until the worker has room. Then one script call in Redis takes
as many as fit, and RabbitMQ is asked to forget them, copies included. While that call is under way
more deliveries gather, so a busy worker takes them in groups. A worker that dies before leaves its
deliveries to RabbitMQ, one that dies after to its leases.

Messages that a Celery client has sent to RabbitMQ itself, such as `penstock.submit`: they are
written to Redis in kombu's format, and from then on are treated like any other message.
"""

from __future__ import annotations

import base64
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Any, NamedTuple
from uuid import uuid4

from kombu.utils.json import dumps

from penstock_workers.broker.amqp.relay_scripts import Arrived, Taken
from penstock_workers.broker.leases import (
    BROKER_ERRORS,
    FAILURES_LOGGED_EACH_S,
    BrokerAction,
    Leases,
)

_PROPERTIES = ("correlation_id", "reply_to", "priority", "expiration", "timestamp")


def arrived(queue: str, message: Any) -> Arrived:
    """Make a delivery of py-amqp's message.

    Its tag is the task's id, so a second delivery is recognised; each retry gets a tag of its own.
    """
    properties = message.properties
    headers = properties.get("application_headers") or {}
    tag = _tag(headers)
    body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    text = dumps(
        {
            "body": base64.b64encode(body).decode(),
            "content-type": properties.get("content_type"),
            "content-encoding": properties.get("content_encoding"),
            "headers": headers,
            "properties": {
                **{name: properties[name] for name in _PROPERTIES if name in properties},
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "body_encoding": "base64",
                "delivery_tag": tag,
            },
        }
    )
    return Arrived(queue, tag, text.encode(), f'[{text},"",{dumps(queue)}]')


def _tag(headers: dict[str, Any]) -> str:
    task_id, retries = headers.get("id"), headers.get("retries")
    if not isinstance(task_id, str) or not task_id:
        return str(uuid4())
    return f"{task_id}~r{retries}" if isinstance(retries, int) and retries else task_id


log = logging.getLogger(__name__)

# the AMQP property `type` of what a shovel has published; `message_id` is the tag
RELAYED_TYPE = "penstock.relayed"
PREFETCH_MAX = 64  # deliveries that wait here: one group, taken from Redis in one round trip
# at most one waits here for so many that the worker holds: other workers may have room for it
# sooner
PREFETCH_SHARE = 8
RETRY_S = 0.5  # while Redis cannot be reached


class Delivered(NamedTuple):
    """One delivery."""

    number: int  # RabbitMQ's delivery tag, rising on a channel
    consumer: str
    arrived: Arrived
    deliver: Callable[[Arrived], object]


class Intake:
    """The deliveries of one channel. Used by the hub thread; ``take`` runs in a thread of its own.

    ``soon`` runs a call on the hub thread; ``ack`` acknowledges all deliveries up to a number,
    ``reject`` returns one to its queue; ``disconnect`` closes the connection that ``take`` uses.
    """

    def __init__(
        self,
        leases: Leases,
        take: Callable[[Sequence[Arrived]], Taken],
        *,
        room: Callable[[], int],
        soon: Callable[[Callable[[], object]], object],
        ack: Callable[[int], object],
        reject: Callable[[int], object],
        disconnect: Callable[[], object],
    ) -> None:
        self._leases = leases
        self._take = take
        self._room = room
        self._soon = soon
        self._ack = ack
        self._reject = reject
        self._disconnect = disconnect
        self.delivered = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-take")
        # bounded by the prefetch that the channel has asked for
        self._waiting: deque[Delivered] = deque()
        self._group: list[Delivered] = []  # the deliveries that the call under way takes
        self._call: Future[Taken] | None = None
        self._not_before = self._failed_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._group)

    def add(self, queue: str, deliver: Callable[[Arrived], object], message: Any) -> None:
        """Take a message as py-amqp has it."""
        self.delivered += 1
        info, properties = message.delivery_info, message.properties
        if properties.get("type") == RELAYED_TYPE and properties.get("message_id"):
            body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
            found = Arrived(queue, properties["message_id"], body)
        else:
            found = arrived(queue, message)
        self._waiting.append(Delivered(info["delivery_tag"], info["consumer_tag"], found, deliver))

    def tick(self) -> None:
        """Move what waits; called at each turn of the hub."""
        if self._call is not None or monotonic() < self._not_before:
            return
        if not self._waiting:
            self._leases.listened()
            return
        room = min(self._room(), len(self._waiting), PREFETCH_MAX)
        if room <= 0:
            return
        self._group = [self._waiting.popleft() for _ in range(room)]
        call = self._call = self._thread.submit(
            self._take, [waiting.arrived for waiting in self._group]
        )
        call.add_done_callback(lambda _: self._soon(lambda: self._end(call)))

    def cancel(self, consumer: str) -> None:
        """Take no more deliveries for this consumer.

        Those that wait return to RabbitMQ, for workers that have room."""
        self._settle_call()
        kept = [waiting for waiting in self._waiting if waiting.consumer != consumer]
        unwanted = [waiting for waiting in self._waiting if waiting.consumer == consumer]
        self._waiting = deque(kept)
        for waiting in unwanted:
            self._reject(waiting.number)

    def close(self) -> None:
        """Forget what waits here: the channel is gone, and RabbitMQ delivers it again.

        What a call under way takes is given back."""
        self._waiting.clear()
        call, self._call = self._call, None
        if call is not None:
            group = list(self._group)
            call.add_done_callback(lambda ended: self._give_back(ended, group))
        self._group = []
        self._thread.submit(self._disconnect)  # after the call
        self._thread.shutdown(wait=False)

    # -- the end of a call -------------------------------------------------------------------------

    def _end(self, call: Future[Taken]) -> None:
        if call is not self._call:  # ``cancel`` or ``close`` has settled it
            return
        group, taken = self._ended(call)
        if taken is None:
            return
        self._note(group, taken)
        try:
            self._hand_over(
                waiting for waiting, is_held in zip(group, taken.held, strict=True) if is_held
            )
        finally:
            self._ack(group[-1].number)

    def _settle_call(self) -> None:
        """Wait for the call under way and give back what it took.

        It ends within the timeout of its connection."""
        if self._call is None:
            return
        group, taken = self._ended(self._call)
        if taken is not None:
            self._leases.conclude(self._note(group, taken), BrokerAction.GIVE_BACK)
            self._ack(group[-1].number)

    def _ended(self, call: Future[Taken]) -> tuple[list[Delivered], Taken | None]:
        group, self._group, self._call = self._group, [], None
        try:
            return group, call.result()
        except BROKER_ERRORS as error:
            self._waiting.extendleft(reversed(group))
            self._not_before = monotonic() + RETRY_S
            if monotonic() - self._failed_at >= FAILURES_LOGGED_EACH_S:
                self._failed_at = monotonic()
                log.warning(
                    "cannot take %d messages (%s); they wait until Redis answers", len(self), error
                )
            return group, None

    def _note(self, group: Sequence[Delivered], taken: Taken) -> list[str]:
        """Return the tags that this call has taken.

        The tag of a copy may be held already: never give it back."""
        held = [
            waiting.arrived.tag
            for waiting, is_held in zip(group, taken.held, strict=True)
            if is_held
        ]
        self._leases.claimed(held, taken.score, dropped=len(group) - len(held))
        return held

    def _give_back(self, call: Future[Taken], group: Sequence[Delivered]) -> None:
        """Return a group to RabbitMQ, on the thread of the call.

        If the call failed, nothing was taken, or its leases run out."""
        if call.cancelled() or call.exception() is not None:
            return
        self._leases.conclude(self._note(group, call.result()), BrokerAction.GIVE_BACK)

    def _hand_over(self, held: Iterable[Delivered]) -> None:
        rest = iter(held)
        try:
            for waiting in rest:
                waiting.deliver(waiting.arrived)
        finally:  # if the connection is lost or the worker stops in the middle
            self._leases.conclude([waiting.arrived.tag for waiting in rest], BrokerAction.GIVE_BACK)
