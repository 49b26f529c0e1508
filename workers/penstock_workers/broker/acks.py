"""Acknowledgements, gathered during a turn of the hub and sent as one group at its end.

Used by the hub thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from penstock_workers.broker.held import BrokerAction
from penstock_workers.broker.leases import BROKER_ERRORS, Leases
from penstock_workers.broker.messages import Message
from penstock_workers.broker.stock_acks import ack_stock_messages, is_closed

log = logging.getLogger(__name__)

Unsure = Callable[
    [Sequence[str]], None
]  # gets tags whose acknowledgement the broker may not have seen


class Acks:
    """The transports of this package take groups of delivery tags; for other brokers see
    ``stock_acks.py``."""

    def __init__(
        self, leases: Leases, unsure: Unsure, soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self.acked = 0
        self.groups = 0
        self._leases = leases
        self._unsure = unsure
        self._soon = soon
        self._waiting: list[
            Any
        ] = []  # kombu messages; bounded by prefetch, emptied each turn of the hub

    def add(self, message: Any) -> None:
        self._waiting.append(message)
        if len(self._waiting) == 1:
            self._soon(self.flush)

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
            self._unsure(
                ack_stock_messages(
                    message for message in messages if not isinstance(message, Message)
                )
            )


class Ack:
    """What a Celery request calls to acknowledge its message.

    Another message takes its place when a redelivered copy is adopted by the run of the first."""

    __slots__ = ("_acks", "message")

    def __init__(self, acks: Acks, message: Any) -> None:
        self._acks = acks
        self.message = message

    def __call__(self, *_: object) -> None:
        self._acks.add(self.message)
