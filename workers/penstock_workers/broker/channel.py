"""A channel that claims (``claim.py``), whose consumers come and go."""

from __future__ import annotations

from queue import Empty
from typing import Any

from penstock_workers.broker.claim import ClaimingChannel
from penstock_workers.broker.claim_script import ClaimScript
from penstock_workers.broker.held import BrokerAction
from penstock_workers.broker.leases import BROKER_ERRORS
from penstock_workers.broker.messages import payload_of


class Channel(ClaimingChannel):
    """Keeps leases while it consumes, and gives back what a claim brings after its last consumer
    was cancelled."""

    def basic_consume(self, queue: str, no_ack: bool = False, *args: Any, **options: Any) -> Any:
        if no_ack:
            self._unrecorded.add(queue)
        else:
            self._unrecorded.discard(queue)
            self.leases.open(self._connect_keeper, self.broker_keys())
        return super().basic_consume(queue, no_ack, *args, **options)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        cancelled = super()._basic_cancel(consumer_tag)
        if not self.active_queues:
            self._take_back_claim()
        return cancelled

    def close(self) -> None:
        self._take_back_claim()
        super().close()

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        message = super().basic_get(queue, no_ack=False, **options)
        if message is not None and no_ack:
            self.qos.ack(message.delivery_tag)
        return message

    def _get(self, queue: str) -> dict[str, Any]:
        """One message, without waiting. Raises queue.Empty."""
        self.leases.open(self._connect_keeper, self.broker_keys())
        script = ClaimScript()
        with self.conn_or_acquire() as client:
            claim = script.read(client.execute_command(*self._claim_command(script, [queue], 1)))
        self._note(claim)
        if not claim.messages:
            raise Empty
        return payload_of(claim.messages[0].raw)

    def _take_back_claim(self) -> None:
        """Messages of a claim that ends after the last consumer was cancelled return to their
        queues at once."""
        if not self._in_poll:
            return
        try:
            messages = self._read_claim()
        except BROKER_ERRORS:
            return  # its messages return when their lease ends
        self.leases.conclude([claimed.tag for claimed in messages], BrokerAction.GIVE_BACK)
