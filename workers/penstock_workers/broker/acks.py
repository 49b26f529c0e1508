"""Acknowledgements, gathered during a turn of the hub and sent as one group at its end.

Used by the hub thread.

Acknowledgements over kombu's own transports: its stock Redis transport, and any other.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

from penstock_workers.broker.leases import BROKER_ERRORS, BrokerAction, Leases
from penstock_workers.broker.messages import Message

log = logging.getLogger(__name__)


def ack_stock_messages(messages: Iterable[Any]) -> list[str]:
    """Acknowledge messages one by one; return the tags of which this may be lost.

    Redelivered copies of these may come."""
    by_channel: dict[Any, list[Any]] = defaultdict(list)
    for message in messages:
        by_channel[message.channel].append(message)
    unsure: list[str] = []
    for channel, group in by_channel.items():
        try:
            _ack_group(channel, group)
        except BROKER_ERRORS as error:
            log.warning(
                "%d messages could not be acknowledged (%s); they will be delivered again",
                len(group),
                error,
            )
            unsure += [message.delivery_tag for message in group]
    return unsure


def is_closed(channel: Any) -> bool:
    return channel is None or bool(channel.closed)


def _ack_group(channel: Any, group: list[Any]) -> None:
    """Acknowledge messages in one transaction on stock Redis, one by one elsewhere."""
    if is_closed(channel):
        raise ConnectionError("their connection is gone")
    if not isinstance(channel.qos, kombu_redis.QoS):
        for message in group:
            message.ack_log_error(log, BROKER_ERRORS)
        return
    tags = [message.delivery_tag for message in group]
    with channel.conn_or_acquire() as client, client.pipeline(transaction=True) as pipe:
        pipe.zrem(channel.unacked_index_key, *tags)
        pipe.hdel(channel.unacked_key, *tags)
        pipe.execute()
    for message in group:
        # kombu's own count of what is prefetched
        virtual.QoS.ack(channel.qos, message.delivery_tag)
        message._state = "ACK"


# gets tags whose acknowledgement the broker may not have seen
Unsure = Callable[[Sequence[str]], None]


class Acks:
    """Acknowledges messages in groups of delivery tags, as the transports of this package do.

    For other brokers see ``ack_stock_messages``."""

    def __init__(
        self, leases: Leases, unsure: Unsure, soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self.acked = 0
        self.groups = 0
        self.leases = leases
        self._unsure = unsure
        self._soon = soon
        # kombu messages; bounded by prefetch, emptied each turn of the hub
        self._waiting: list[Any] = []

    def add(self, message: Any) -> None:
        self._waiting.append(message)
        if len(self._waiting) == 1:
            self._soon(self.flush)

    def give_back(self, message: Any) -> None:
        """Return a message to the front of its queue at once."""
        if isinstance(message, Message):
            self.leases.conclude([str(message.delivery_tag)], BrokerAction.GIVE_BACK)
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
            self.leases.conclude(leased, BrokerAction.ACK)
        if len(leased) < len(messages):
            self._unsure(
                ack_stock_messages(
                    message for message in messages if not isinstance(message, Message)
                )
            )


class Ack:
    """The call by which a Celery request acknowledges its message.

    Another message takes its place when a redelivered copy is adopted by the run of the first."""

    __slots__ = ("_acks", "message")

    def __init__(self, acks: Acks, message: Any) -> None:
        self._acks = acks
        self.message = message

    def __call__(self, *_: object) -> None:
        self._acks.add(self.message)
