"""kombu's Redis transport, with messages claimed in bulk and leased by the server's clock.

``claim.py`` claims, ``leases.py`` leases. Redis Cluster is not supported: the keys of one step lie
in different slots.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any

import redis
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as kombu_redis

from penstock_ledger import RedisAddress
from penstock_workers.broker.claim import ClaimingChannel
from penstock_workers.broker.connections import IDLE_POLL_S, Turns, Wake
from penstock_workers.broker.lease_scripts import ClaimScript
from penstock_workers.broker.leases import BROKER_ERRORS, BrokerAction, Leases
from penstock_workers.broker.messages import payload_of

BINDINGS_EACH_S = 60.0  # as often as kombu would sweep those of queues that expire


class Channel(ClaimingChannel):
    """Keeps leases while it consumes.

    What a claim brings after its last consumer was cancelled is given back."""

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
        """Take one message, without waiting.

        Raises queue.Empty."""
        self.leases.open(self._connect_keeper, self.broker_keys())
        script = ClaimScript()
        with self.conn_or_acquire() as client:
            claim = script.read(client.execute_command(*self._claim_command(script, [queue], 1)))
        self._note(claim)
        if not claim.messages:
            raise Empty
        return payload_of(claim.messages[0].raw)

    def _take_back_claim(self) -> None:
        """Return the messages of a claim that ends after the last consumer was cancelled."""
        if not self._in_poll:
            return
        try:
            messages = self._read_claim()
        except BROKER_ERRORS:
            return  # its messages return when their lease ends
        self.leases.conclude([claimed.tag for claimed in messages], BrokerAction.GIVE_BACK)


# broker URLs: penstock+redis://…, penstock+rediss://…, penstock+socket://…
ALIASES = ("penstock", "redisbulk")


def register() -> None:
    """Make the broker URL schemes known to kombu."""
    for alias in ALIASES:
        TRANSPORT_ALIASES[alias] = f"{__name__}:Transport"


class Poller(kombu_redis.MultiChannelPoller):  # type: ignore[misc]  # kombu is untyped
    """Wakes consumers without an event loop in time for the next claim."""

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        return super().get(callback, IDLE_POLL_S if timeout is None else min(timeout, IDLE_POLL_S))


class Transport(kombu_redis.Transport):  # type: ignore[misc]  # kombu is untyped
    """Uses the leases of a worker, which outlive connections, from the option ``leases``.

    Without it the transport makes its own and closes them."""

    Channel = Channel

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.address = _address(client)
        lent: Leases | None = client.transport_options.get("leases")
        self.leases = Leases() if lent is None else lent
        self.cycle = Poller()
        self._owns_leases = lent is None
        self._leave_loop: list[Callable[[], object]] = []
        self._wake: Wake | None = None
        self._turns: Turns | None = None

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        before = set(loop.on_tick)
        super().register_with_event_loop(connection, loop)
        loop.on_tick &= before  # kombu's own asks the kernel for each socket in each turn
        # nor need it wake each second for tables that last an hour
        cycle: Any = self.cycle
        cycle._binding_expiry_tref.cancel()
        cycle._binding_expiry_tref = loop.call_repeatedly(
            BINDINGS_EACH_S, cycle.maybe_refresh_binding_expiry
        )

        def turn() -> None:
            """Claim, and plan the next turn behind that: the hub keeps no order."""
            self.cycle.on_poll_start()
            for fd in self.cycle.fds:
                reader = loop.readers.get(fd)
                if reader is None or reader[0] != self.on_readable:
                    loop.add_reader(fd, self.on_readable, fd)

            wake.turn()
            turns.turn()

        wake = self._wake = Wake(loop, self._connect_waiting, self._consumed, self._claim_soon)
        # keeps the loop turning: each turn claims messages
        turns = self._turns = Turns(loop, self._pause_s)
        loop.on_tick.add(turn)
        self._leave_loop += [partial(loop.on_tick.discard, turn), wake.close, turns.close]

    def is_woken(self) -> bool:
        """Return whether marks wake this connection to the broker."""
        return self._wake is not None and self._wake.is_waiting()

    def close_connection(self, connection: Any) -> None:
        while self._leave_loop:
            self._leave_loop.pop()()
        super().close_connection(connection)
        if self._owns_leases:
            self.leases.close()

    def _connect_waiting(self) -> redis.Redis:
        return next(
            channel for channel in self._channels() if channel.active_queues
        )._connect_keeper()

    def _consumed(self) -> list[str]:
        return [queue for channel in self._channels() for queue in channel.active_queues]

    def _claim_soon(self) -> None:
        for channel in self._channels():
            channel.pause.woken()
        if self._turns is not None:
            self._turns.close()

    def _pause_s(self) -> float:
        """Return how long the loop may rest: until the first channel asks again."""
        usual_s = self.client.transport_options.get("idle_poll_s", IDLE_POLL_S)
        left = [channel.pause.left_s() for channel in self._channels() if channel.active_queues]
        return max(min(left, default=0.0), 0.0) or usual_s

    def _channels(self) -> list[ClaimingChannel]:
        return self.channels or []


def _address(client: Any) -> RedisAddress | None:
    """Return the option ``address``, or what follows the plus in penstock+redis://….

    kombu would take that for a host name. None for unix sockets (penstock+socket://…), which kombu
    reads itself."""
    lent: RedisAddress | None = client.transport_options.get("address")
    if lent is not None:
        return None if lent.url.startswith("unix:") else lent
    url = client.hostname or ""
    return RedisAddress.parse(url) if url.startswith(("redis://", "rediss://")) else None
