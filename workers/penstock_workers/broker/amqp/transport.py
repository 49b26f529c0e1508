"""kombu's pyamqp transport, with messages leased in Redis as the Redis transport leases them.

With the options ``leases``, ``address`` and ``keys`` (a worker has them) each queue that is
consumed with acknowledgements goes through an ``Intake``. RabbitMQ's own prefetch is small and
fixed; the worker's is counted over its leases, so it can grow and shrink. Control commands, events
and publishing are pyamqp's.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from amqp.exceptions import RecoverableConnectionError
from kombu.transport import pyamqp
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock_ledger import RedisAddress
from penstock_workers.broker.amqp.intake import PREFETCH_MAX, PREFETCH_SHARE, Intake
from penstock_workers.broker.amqp.relay_scripts import Arrived, TakeScript
from penstock_workers.broker.connections import KEEPER_TIMEOUT_MIN_S
from penstock_workers.broker.lease_scripts import PARKED_KEY, Keys
from penstock_workers.broker.leases import BROKER_ERRORS, BrokerAction, Leases
from penstock_workers.broker.messages import Message, payload_of

log = logging.getLogger(__name__)

# a worker that was full looks for room this often, and at each turn of its hub besides
TURN_S = 0.05
ANSWER_TIMEOUT_S = 10.0  # a connection on which RabbitMQ does not answer for longer is closed
ASK_EACH_S = 5.0  # an idle worker asks whether messages are ready
FRAMES_PER_TURN = 3 * PREFETCH_MAX  # a message has three; then the hub serves its other callbacks
TAKE_TIMEOUT_S = 5.0  # of the connection that takes messages; the hub waits for it only at shutdown


class LeaseChannel:
    """Stands in for the channel of a leased message, which may outlive its connection."""

    no_ack_consumers = None

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        self._leases.conclude([delivery_tag], BrokerAction.ACK)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return a message to its queue, or set it aside without ``requeue``.

        Nothing is dropped here."""
        self._leases.conclude(
            [delivery_tag], BrokerAction.GIVE_BACK if requeue else BrokerAction.SET_ASIDE
        )

    def decode_body(self, body: str, encoding: str | None = None) -> str | bytes:
        return base64.b64decode(body) if encoding == "base64" else body


class Channel(pyamqp.Channel):  # type: ignore[misc]  # kombu is untyped
    """Consumes through an intake where the connection has leases to keep."""

    connection: Connection | None

    def __init__(self, connection: Connection, *arguments: Any, **options: Any) -> None:
        self._worker_leases = connection.worker_leases
        self._limit = 0  # what the worker may hold; 0 = as many as come
        self._intake: Intake | None = None
        # consumer tags that go through the intake, and their queues
        self._consuming: dict[str, str] = {}
        # deliveries so far, when RabbitMQ had messages for this idle worker; -1 = it had none
        self._passed_over = -1
        self._ask_at = 0.0
        self._leave_hub: list[Callable[[], object]] = []
        super().__init__(connection, *arguments, **options)

    def basic_qos(
        self, prefetch_size: int, prefetch_count: int, a_global: bool, argsig: str = "lBb"
    ) -> Any:
        """Give RabbitMQ a part of the prefetch limit.

        What the worker holds is acknowledged to RabbitMQ already."""
        if self._worker_leases is None:
            return super().basic_qos(prefetch_size, prefetch_count, a_global, argsig)
        self._limit = prefetch_count
        share = (
            max(1, min(PREFETCH_MAX, prefetch_count // PREFETCH_SHARE))
            if prefetch_count
            else PREFETCH_MAX
        )
        return super().basic_qos(0, share, False)

    def basic_consume(
        self, queue: str, *arguments: Any, no_ack: bool = False, **options: Any
    ) -> str:
        if no_ack or self._worker_leases is None:
            return str(super().basic_consume(queue, *arguments, no_ack=no_ack, **options))
        callback = options.pop("callback")
        intake = self._open_intake(self._worker_leases)
        arrive = partial(intake.add, queue, partial(self._deliver, callback))
        tag = str(
            super().basic_consume(queue, *arguments, no_ack=False, callback=arrive, **options)
        )
        self._consuming[tag] = queue
        return tag

    def basic_cancel(self, consumer_tag: str, *arguments: Any, **options: Any) -> Any:
        cancelled = super().basic_cancel(consumer_tag, *arguments, **options)
        if consumer_tag in self._consuming and self._intake is not None:
            del self._consuming[consumer_tag]
            self._intake.cancel(consumer_tag)
        return cancelled

    def message_to_python(self, raw_message: Any) -> Any:
        if isinstance(raw_message, Arrived):
            assert self._worker_leases is not None, "only an intake makes these"
            return Message(payload_of(raw_message.raw), channel=self._worker_leases.lease_channel)
        return super().message_to_python(raw_message)

    def collect(self) -> None:
        """End the intake; py-amqp calls this once, however the channel ends."""
        self._consuming.clear()
        while self._leave_hub:
            self._leave_hub.pop()()
        if self._intake is not None:
            self._intake.close()
            self._intake = None
        super().collect()

    def room(self) -> int:
        """Return how many more messages the worker may hold, over all channels it has had."""
        assert self._worker_leases is not None, "asked by an intake"
        return self._limit - len(self._worker_leases.leases) if self._limit else PREFETCH_MAX

    def _on_basic_cancel(self, consumer_tag: str) -> None:
        """Note that RabbitMQ has cancelled a consumer, whose queue is deleted.

        Celery reconnects; until then this worker asks for nothing."""
        self._consuming.pop(consumer_tag, None)
        super()._on_basic_cancel(consumer_tag)

    def _open_intake(self, worker_leases: WorkerLeases) -> Intake:
        if self._intake is not None:
            return self._intake
        hub = self.connection.hub if self.connection is not None else None
        if hub is None:
            raise RuntimeError(
                "messages that are leased need Celery's event loop: start a worker, without -P"
            )
        worker_leases.leases.open(worker_leases.connect_keeper, worker_leases.keys)
        client = worker_leases.connect(TAKE_TIMEOUT_S)
        intake = self._intake = Intake(
            worker_leases.leases,
            TakeScript(client, worker_leases.keys).take,
            room=self.room,
            soon=hub.call_soon,
            ack=lambda number: self.basic_ack(number, multiple=True),
            reject=lambda number: self.basic_reject(number, requeue=True),
            disconnect=client.close,
        )
        hub.on_tick.add(self._turn)
        self._leave_hub += [
            partial(hub.on_tick.discard, self._turn),
            hub.call_repeatedly(TURN_S, lambda: None).cancel,
        ]
        return intake

    def _turn(self) -> None:
        if not self._consuming or self._intake is None:
            return
        self._intake.tick()
        if monotonic() >= self._ask_at:
            self._ask_at = monotonic() + ASK_EACH_S
            self._ask(self._intake)

    def _ask(self, intake: Intake) -> None:
        """Reconnect where the consumer gets nothing though messages are ready.

        So it is after its queue was declared anew."""
        delivered = intake.delivered
        if len(intake) or self.room() <= 0 or not any(map(self._ready, self._consuming.values())):
            self._passed_over = -1
        elif delivered != self._passed_over or intake.delivered != delivered:
            self._passed_over = intake.delivered
        else:
            raise RecoverableConnectionError(
                "RabbitMQ has messages for this worker, and does not deliver them"
            )

    def _ready(self, queue: str) -> int:
        found: Any = self.queue_declare(queue, passive=True)
        return int(found.message_count)

    def _deliver(self, callback: Callable[[Any], object], arrived: Arrived) -> None:
        """Deliver a message to the consumer of its queue.

        A message that makes the consumer fail must not take the worker with it."""
        try:
            callback(arrived)
        except (*BROKER_ERRORS, *pyamqp.Transport.connection_errors):
            raise
        except Exception:
            log.exception(
                "message %s of queue %s cannot be taken; kept in %s",
                arrived.tag,
                arrived.queue,
                PARKED_KEY,
            )
            assert self._worker_leases is not None, "only an intake delivers"
            self._worker_leases.leases.conclude([arrived.tag], BrokerAction.SET_ASIDE)


class WorkerLeases:
    """The leases of a worker, which its connections share, and where Redis keeps them."""

    def __init__(self, leases: Leases, address: RedisAddress, keys: Keys) -> None:
        self.leases = leases
        self.keys = keys
        self.lease_channel = LeaseChannel(leases)
        self._address = address

    def connect(self, timeout_s: float) -> Any:
        """Return a client without retries: its callers have their own."""
        return self._address.connect(
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )

    def connect_keeper(self) -> Any:
        """Return a client that notices a dead peer well before a lease ends."""
        return self.connect(max(KEEPER_TIMEOUT_MIN_S, self.keys.visibility_timeout_s / 6))


class Connection(pyamqp.Connection):  # type: ignore[misc]  # kombu is untyped
    """kombu passes the transport options here."""

    Channel = Channel

    def __init__(
        self,
        *arguments: Any,
        leases: Leases | None = None,
        address: RedisAddress | None = None,
        keys: Keys | None = None,
        **options: Any,
    ) -> None:
        self.hub: Any = None  # Celery's event loop; Transport writes it
        self.worker_leases = (
            None
            if leases is None or address is None or keys is None
            else WorkerLeases(leases, address, keys)
        )
        super().__init__(*arguments, **options)


class Transport(pyamqp.Transport):  # type: ignore[misc]  # kombu is untyped
    """The transport of ``penstockamqp://…``."""

    Connection = Connection

    def establish_connection(self) -> Any:
        connection: Any = super().establish_connection()
        connection.transport.sock.settimeout(ANSWER_TIMEOUT_S)
        return connection

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Read what has come, and take deliveries together.

        kombu itself reads one message per turn of the hub."""
        if not connection.connected:
            raise RecoverableConnectionError("RabbitMQ closed the connection")
        try:
            with connection.transport.having_timeout(0):
                for _ in range(FRAMES_PER_TURN):
                    connection.blocking_read()
        except TimeoutError:
            return
        loop.call_soon(self.on_readable, connection, loop)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Keep the loop: kombu forgets the current one after a reconnect."""
        super().register_with_event_loop(connection, loop)
        connection.hub = loop


class TlsTransport(Transport):
    """The transport of ``penstockamqps://…``."""

    default_port = pyamqp.DEFAULT_SSL_PORT

    def establish_connection(self) -> Any:
        """Connect, and check the certificate against the node that is tried.

        kombu keeps the first node's host name."""
        if self.client.ssl.get("server_hostname") is not None:
            self.client.ssl = {**self.client.ssl, "server_hostname": self.client.hostname}
        return super().establish_connection()
