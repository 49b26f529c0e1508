"""What kombu asks of a channel about prefetched messages, answered by the leases."""

from __future__ import annotations

from typing import Any

from kombu.transport import redis as kombu_redis

from penstock_workers.broker.held import BrokerAction
from penstock_workers.broker.messages import Message


class QoS(kombu_redis.QoS):  # type: ignore[misc]  # kombu is untyped
    """Counts and concludes messages through the leases, which outlive the channel."""

    channel: Any  # a ``ClaimingChannel``

    def can_consume(self) -> bool:
        return bool(self.channel._in_poll) or self.channel.room() > 0

    def can_consume_max_estimate(self) -> int:
        return max(0, int(self.channel.room()))

    def append(self, message: Message, delivery_tag: str) -> None:
        """The claim has recorded it already."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.leases.conclude([delivery_tag], BrokerAction.ACK)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Without ``requeue`` the message is set aside: nothing is dropped here."""
        self.channel.leases.conclude(
            [delivery_tag], BrokerAction.GIVE_BACK if requeue else BrokerAction.SET_ASIDE
        )

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """A closed channel gives nothing back: what is in flight goes on, and is acknowledged
        through the leases."""
        self._on_collect.cancel()

    def restore_visible(self, *_: Any, **__: Any) -> None:
        """The lease keeper sweeps."""
