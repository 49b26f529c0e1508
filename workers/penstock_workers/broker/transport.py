"""kombu's Redis transport, with messages claimed in bulk and leased by the server's clock.

Stock kombu takes one message per round trip and records it as unacked in a second one: a process killed in between
loses it. Here one script takes up to 64 messages and records them. The keys are kombu's own, so stock producers, workers
and Flower share the broker. Redis Cluster is not supported: the keys of one step lie in different slots.

Redis cannot wait inside a script, so an idle worker asks again every ``idle_poll_s``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty
from time import monotonic
from typing import Any, Literal

import redis
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as kombu_redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry
from redis.sentinel import SentinelManagedConnection

from penstock_ledger import RedisAddress
from penstock_workers.broker.claims import Claim, Claimed, ClaimScript
from penstock_workers.broker.lease_scripts import PARKED_KEY, Keys
from penstock_workers.broker.leases import BROKER_ERRORS, Fate, Leases
from penstock_workers.broker.messages import Message, payload_of

log = logging.getLogger(__name__)

ALIASES = ("penstock", "redisbulk")  # broker URLs: penstock+redis://…, penstock+rediss://…, penstock+socket://…
BULK_MAX = 64  # messages per claim: some 5 ms of the hub, after which control commands get their turn
BULK_LIMIT = 500  # for the option `bulk_max`: a script may pass some thousand arguments at once
IDLE_POLL_S = 0.05  # an idle worker costs Redis 20 small scripts per second
KEEPER_TIMEOUT_MIN_S = 1.0


def register() -> None:
    """Make the broker URL schemes known to kombu."""
    for alias in ALIASES:
        TRANSPORT_ALIASES[alias] = f"{__name__}:Transport"


class QoS(kombu_redis.QoS):  # type: ignore[misc]  # kombu is untyped
    """Counts and concludes messages through the leases: these outlive the channel that claimed them."""

    channel: Channel

    def can_consume(self) -> bool:
        return bool(self.channel._in_poll) or self.channel.room() > 0

    def can_consume_max_estimate(self) -> int:
        return max(0, self.channel.room())

    def append(self, message: Message, delivery_tag: str) -> None:
        """The claim has recorded it already."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.leases.conclude([delivery_tag], Fate.ACK)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Without ``requeue`` the message is kept aside: nothing is dropped here."""
        self.channel.leases.conclude([delivery_tag], Fate.GIVE_BACK if requeue else Fate.PARK)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """A closed channel gives nothing back: what is in flight goes on, and its end is told over the leases."""
        self._on_collect.cancel()

    def restore_visible(self, *_: Any, **__: Any) -> None:
        """The lease keeper sweeps."""


class Channel(kombu_redis.Channel):  # type: ignore[misc]  # kombu is untyped
    """Claims in bulk where stock kombu pops one."""

    QoS = QoS
    Message = Message
    bulk_max = BULK_MAX
    idle_poll_s = IDLE_POLL_S
    from_transport_options = (*kombu_redis.Channel.from_transport_options, "bulk_max", "idle_poll_s")

    def __init__(self, connection: Transport, **options: Any) -> None:
        self.leases = connection.leases
        self._unrecorded: set[str] = set()  # queues whose consumers need no acknowledgement
        self._claims = ClaimScript()
        self._next_claim_at = 0.0
        super().__init__(connection, **options)

    def room(self) -> int:
        """How many messages the prefetch limit leaves. Counted is what the process holds, over all channels it has had."""
        limit: int = self.qos.prefetch_count
        most = min(self.bulk_max, BULK_LIMIT)
        return min(most, limit - len(self.leases)) if limit else most

    def broker_keys(self) -> Keys:
        prefix = self.global_keyprefix
        return Keys(
            unacked=prefix + self.unacked_key,
            unacked_index=prefix + self.unacked_index_key,
            visibility_timeout_s=float(self.visibility_timeout),
            prefix=prefix,
            steps=tuple(self.priority_steps),
        )

    # -- consuming ---------------------------------------------------------------------------------------------------

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
        """One message, now. Raises queue.Empty."""
        self.leases.open(self._connect_keeper, self.broker_keys())
        script = ClaimScript()
        with self.conn_or_acquire() as client:
            claim = script.read(client.execute_command(*self._claim_command(script, [queue], 1)))
        self._note(claim)
        if not claim.messages:
            raise Empty
        return payload_of(claim.messages[0].raw)

    # -- claiming: kombu's poller calls these two in place of BRPOP ---------------------------------------------------

    def _brpop_start(self, timeout: float | None = None) -> None:
        room = self.room()
        if room <= 0 or monotonic() < self._next_claim_at:
            return
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        self._in_poll.send_command(*self._claim_command(self._claims, queues, room))

    def _brpop_read(self, **options: Any) -> Literal[True]:
        messages = self._read_claim(**options)
        if not messages:
            self._next_claim_at = monotonic() + self.idle_poll_s
            raise Empty
        self._queue_cycle.rotate(messages[0].queue)
        self._hand_over(messages)
        return True

    def _claim_command(self, script: ClaimScript, queues: Sequence[str], room: int) -> list[str | int]:
        lists = [(queue, self._q_for_pri(queue, step)) for step in self.priority_steps for queue in queues]
        return script.command(self.broker_keys(), lists, self._unrecorded, room)

    def _read_claim(self, **options: Any) -> list[Claimed]:
        try:
            reply = self.client.parse_response(self.client.connection, "EVAL", **options)
        except NoScriptError:
            self._claims.forget()
            return []
        except self.connection_errors:
            self.client.connection.disconnect()
            raise
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        claim = self._claims.read(reply)
        self._note(claim)
        return claim.messages

    def _note(self, claim: Claim) -> None:
        recorded = [claimed.tag for claimed in claim.messages if claimed.queue not in self._unrecorded]
        self.leases.claimed(recorded, claim.score, claim.dropped, claim.put_off)

    def _hand_over(self, messages: Sequence[Claimed]) -> None:
        waiting = deque(messages)
        try:
            while waiting:
                self._deliver(waiting.popleft())
        finally:  # the connection was lost, or the worker told to stop, in the middle
            self.leases.conclude([claimed.tag for claimed in waiting], Fate.GIVE_BACK)

    def _deliver(self, claimed: Claimed) -> None:
        """To the consumer of its queue. A message that makes the consumer fail must not take the worker with it."""
        try:
            self.connection._deliver(payload_of(claimed.raw), claimed.queue)
        except BROKER_ERRORS:
            raise
        except Exception:
            log.exception("message %s of queue %s cannot be taken; kept in %s", claimed.tag, claimed.queue, PARKED_KEY)
            self.leases.conclude([claimed.tag], Fate.PARK)

    def _take_back_claim(self) -> None:
        """What a claim under way brings, once nobody consumes any more, returns to its queue at once."""
        if not self._in_poll:
            return
        try:
            messages = self._read_claim()
        except BROKER_ERRORS:
            return  # what it brought returns when its lease ends
        self.leases.conclude([claimed.tag for claimed in messages], Fate.GIVE_BACK)

    # -- connecting --------------------------------------------------------------------------------------------------

    @property
    def connection_class(self) -> type[Any]:
        """What kombu derives its own connections from; TLS and unix sockets it finds out by itself."""
        address = self.connection.address
        if address is None or not address.sentinels:
            return redis.SSLConnection if address is not None and address.over_tls else redis.Connection
        return kombu_redis.SentinelManagedSSLConnection if address.over_tls else SentinelManagedConnection

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        parameters: dict[str, Any] = dict(super()._connparams(asynchronous))
        address = self.connection.address
        if address is None:
            return parameters
        for name in ("host", "port", "username", "password"):
            parameters.pop(name, None)
        return {**parameters, **address.parameters}

    def _get_pool(self, asynchronous: bool = False) -> Any:
        address = self.connection.address
        if address is None:
            return super()._get_pool(asynchronous)
        parameters = self._connparams(asynchronous)
        self.keyprefix_fanout: str = self.keyprefix_fanout.format(db=parameters["db"])
        return address.pool(parameters.pop("connection_class"), parameters)

    def _connect_keeper(self) -> redis.Redis:
        """A client for the lease keeper: it must notice a dead peer well before a lease ends."""
        parameters = self._connparams()
        patience_s = max(KEEPER_TIMEOUT_MIN_S, float(self.visibility_timeout) / 6)
        parameters["socket_timeout"] = min(parameters.get("socket_timeout") or patience_s, patience_s)
        parameters["retry"] = Retry(NoBackoff(), 0)  # the keeper has retries of its own
        address = self.connection.address
        if address is None:
            return redis.Redis(connection_pool=redis.ConnectionPool(**parameters))
        return redis.Redis(connection_pool=address.pool(parameters.pop("connection_class"), parameters))


class Poller(kombu_redis.MultiChannelPoller):  # type: ignore[misc]  # kombu is untyped
    """For consumers without an event loop: they wake up in time to ask again."""

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        return super().get(callback, IDLE_POLL_S if timeout is None else min(timeout, IDLE_POLL_S))


class Transport(kombu_redis.Transport):  # type: ignore[misc]  # kombu is untyped
    """Option ``leases`` lends it those of a worker, which outlive connections; else it has its own, and ends them."""

    Channel = Channel

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.address = _address(client)
        lent: Leases | None = client.transport_options.get("leases")
        self.leases = Leases() if lent is None else lent
        self.cycle = Poller()
        self._owns_leases = lent is None
        self._leave_loop: list[Callable[[], object]] = []

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        before = set(loop.on_tick)
        super().register_with_event_loop(connection, loop)
        for callback in loop.on_tick - before:  # kombu leaves one behind per connection
            self._leave_loop.append(partial(loop.on_tick.discard, callback))
        idle_poll_s = self.client.transport_options.get("idle_poll_s", IDLE_POLL_S)
        wake_up = loop.call_repeatedly(idle_poll_s, _nothing)  # each turn of the loop asks for messages
        self._leave_loop.append(wake_up.cancel)

    def close_connection(self, connection: Any) -> None:
        while self._leave_loop:
            self._leave_loop.pop()()
        super().close_connection(connection)
        if self._owns_leases:
            self.leases.close()


def _address(client: Any) -> RedisAddress | None:
    """Lent as the option ``address``, or what stands behind the plus of penstock+redis://…, which kombu would take for a
    host name. Of unix sockets (penstock+socket://…) it knows by itself: None."""
    lent: RedisAddress | None = client.transport_options.get("address")
    if lent is not None:
        return None if lent.url.startswith("unix:") else lent
    url = client.hostname or ""
    return RedisAddress.parse(url) if url.startswith(("redis://", "rediss://")) else None


def _nothing() -> None:
    return None
