"""Connections to RabbitMQ outside of a worker's consumer, and publishing in groups.

Many messages are published and then confirmed together, in place of a round trip each. ``register``
tells kombu of Penstock's AMQP transports.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any, Final, NamedTuple

import amqp
from kombu.connection import Connection
from kombu.exceptions import KombuError
from kombu.transport import TRANSPORT_ALIASES, pyamqp

from penstock_workers.amqp_address import SCHEME_PREFIX, AmqpAddress
from penstock_workers.broker.amqp.intake import RELAYED_TYPE

__all__ = ["AMQP_ERRORS", "CHANNEL_ERRORS", "QUORUM", "Publisher", "connect"]


CONNECT_TIMEOUT_S: Final = 5.0  # to one node
CHANNEL_ERRORS: Final = pyamqp.Transport.channel_errors
AMQP_ERRORS: Final = (*pyamqp.Transport.connection_errors, *CHANNEL_ERRORS, KombuError, OSError)
_TRANSPORTS: Final = {"amqp": "Transport", "amqps": "TlsTransport"}


def register() -> None:
    """Register Penstock's AMQP schemes with kombu."""
    for scheme, name in _TRANSPORTS.items():
        TRANSPORT_ALIASES[SCHEME_PREFIX + scheme] = f"penstock_workers.broker.amqp.transport:{name}"


def connect(address: AmqpAddress) -> Any:
    """Connect with kombu to the first node that answers.

    Raises ``AMQP_ERRORS``."""
    register()
    options: Any = {"ssl": address.tls or False, "connect_timeout": CONNECT_TIMEOUT_S}
    broker = Connection(address.kombu_url, **options)
    try:
        broker.ensure_connection(max_retries=len(address.urls), interval_start=0, interval_step=0)
    except BaseException:
        broker.release()
        raise
    return broker


QUORUM: Final = {"x-queue-type": "quorum"}
_PERSISTENT: Final = 2


class QueueState(NamedTuple):
    """RabbitMQ's figures of a queue."""

    ready: int  # messages that no consumer has been sent
    consumers: int


class Publisher:
    """Publishes to one queue, over a channel of its own.

    Every method may raise py-amqp's errors and OSError; make a new one after that."""

    def __init__(self, channel: Any, queue: str) -> None:
        self._channel = channel
        self._queue = queue
        self._sent = 0
        # number -> tag of messages not yet confirmed or refused; one group at most
        self._open: dict[int, str] = {}
        self._left: set[str] = set()  # tags of the group that are not confirmed, sent or not
        self._returned: set[str] = set()  # tags that RabbitMQ confirmed but could not route
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._answered)
        channel.events["basic_return"].add(self._on_return)

    def look(self) -> QueueState:
        """Declare the queue, which may have been deleted, and return its state."""
        found = self._channel.queue_declare(
            self._queue, durable=True, auto_delete=False, arguments=QUORUM
        )
        return QueueState(found.message_count, found.consumer_count)

    def publish(self, messages: Sequence[tuple[str, bytes]], timeout_s: float) -> None:
        """Publish messages, which are pairs of tag and text.

        Returns when each was confirmed or refused; raises when that takes too long."""
        until = monotonic() + timeout_s
        self._left = {tag for tag, _ in messages}
        for tag, raw in messages:
            self._sent += 1
            self._open[self._sent] = tag
            self._channel.basic_publish(
                _message(tag, raw), routing_key=self._queue, mandatory=True, timeout=timeout_s
            )
        while self._open:
            self._channel.connection.drain_events(timeout=max(0.001, until - monotonic()))

    def unconfirmed(self) -> set[str]:
        """Return the tags of the last group that RabbitMQ may not have."""
        left = self._left | self._returned
        self._left, self._returned = set(), set()
        self._open.clear()
        return left

    def close(self) -> None:
        self._channel.close()

    def _on_ack(self, number: int, multiple: bool) -> None:
        self._left.difference_update(self._answered(number, multiple))

    def _on_return(
        self, _error: Exception, _exchange: str, _routing_key: str, message: Any
    ) -> None:
        """Note that the queue was deleted since the last look.

        RabbitMQ returns the message, and still confirms it."""
        self._returned.add(message.properties["message_id"])

    def _answered(self, number: int, multiple: bool) -> list[str]:
        numbers = [sent for sent in self._open if sent <= number] if multiple else [number]
        return [self._open.pop(sent) for sent in numbers if sent in self._open]


def _message(tag: str, raw: bytes) -> Any:
    make: Any = amqp.Message
    return make(
        raw,
        message_id=tag,
        type=RELAYED_TYPE,
        content_type="application/json",
        delivery_mode=_PERSISTENT,
    )
