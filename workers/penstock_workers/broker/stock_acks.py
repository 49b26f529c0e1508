"""Acknowledgements over kombu's own transports: its stock Redis transport, and any other."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

from penstock_workers.broker.leases import BROKER_ERRORS

log = logging.getLogger(__name__)


def ack_stock_messages(messages: Iterable[Any]) -> list[str]:
    """Returns the tags whose acknowledgement may not have arrived: a redelivered copy of these may
    come."""
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
    """In one transaction on stock Redis, message by message elsewhere."""
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
        virtual.QoS.ack(
            channel.qos, message.delivery_tag
        )  # kombu's own count of what is prefetched
        message._state = "ACK"
