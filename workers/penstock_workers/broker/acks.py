"""Telling the broker what became of messages: in groups, from the hub thread, over whichever transport brought them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

from penstock_workers.broker.leases import BROKER_ERRORS, Fate, Leases
from penstock_workers.broker.messages import Message

log = logging.getLogger(__name__)


class Acks:
    """Collects messages during a turn of the hub and concludes them at its end.

    Our transport takes groups of delivery tags. On kombu's stock Redis transport one transaction does what would be one
    per message; any other broker is told message by message. ``on_unsure`` hears of tags whose acknowledgement may not
    have arrived, so that a redelivered copy can be recognised.
    """

    def __init__(self, leases: Leases, soon: Callable[[Callable[[], None]], object]) -> None:
        self.on_unsure: Callable[[Iterable[str]], None] = lambda _tags: None
        self.acked = 0
        self.groups = 0
        self._leases = leases
        self._soon = soon
        self._waiting: list[Any] = []  # kombu messages; bounded by prefetch, emptied each turn of the hub

    def bind(self, message: Any) -> Callable[..., None]:
        """What a Celery request calls to acknowledge its message."""
        return partial(self._add, message)

    def give_back(self, message: Any) -> None:
        """To the front of its queue, at once."""
        if isinstance(message, Message):
            self._leases.conclude([str(message.delivery_tag)], Fate.GIVE_BACK)
        elif not message.acknowledged and not _is_closed(message.channel):
            message.reject_log_error(log, BROKER_ERRORS, requeue=True)

    def flush(self) -> None:
        messages, self._waiting = self._waiting, []
        if not messages:
            return
        self.acked += len(messages)
        self.groups += 1
        ours = [str(message.delivery_tag) for message in messages if isinstance(message, Message)]
        if ours:
            self._leases.conclude(ours, Fate.ACK)
        if len(ours) < len(messages):
            self._flush_stock([message for message in messages if not isinstance(message, Message)])

    def _add(self, message: Any, *_: Any) -> None:
        self._waiting.append(message)
        if len(self._waiting) == 1:
            self._soon(self.flush)

    def _flush_stock(self, messages: list[Any]) -> None:
        by_channel: dict[Any, list[Any]] = defaultdict(list)
        for message in messages:
            by_channel[message.channel].append(message)
        for channel, group in by_channel.items():
            try:
                self._ack_group(channel, group)
            except BROKER_ERRORS as error:
                log.warning(
                    "%d messages could not be acknowledged (%s); they will be delivered again", len(group), error
                )
                self.on_unsure([message.delivery_tag for message in group])

    def _ack_group(self, channel: Any, group: list[Any]) -> None:
        if _is_closed(channel):
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
            virtual.QoS.ack(channel.qos, message.delivery_tag)  # kombu's own count of what is prefetched
            message._state = "ACK"


def _is_closed(channel: Any) -> bool:
    return channel is None or bool(channel.closed)
