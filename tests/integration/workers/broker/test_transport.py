"""Our transport under plain kombu, without a worker."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery_worker import until
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer
from redis.connection import AbstractConnection
from servers import RedisServer

from penstock_workers.broker import transport
from penstock_workers.broker.lease_scripts import PARKED_KEY


@pytest.fixture
def connection(redis_server: RedisServer) -> Iterator[Connection]:
    transport.register()
    with Connection(
        f"penstock+{redis_server.url}", transport_options={"visibility_timeout": 30}
    ) as connection:
        yield connection


PLAIN = Queue("plain", routing_key="plain")


def put(connection: Connection, number: int, queue: str = "plain") -> None:
    producer = connection.Producer()
    for n in range(number):
        producer.publish({"n": n}, routing_key=queue)


def test_a_simple_queue_works(connection: Connection, redis_server: RedisServer) -> None:
    """put, get, ack and requeue do what kombu's own transport does."""
    with connection.SimpleQueue("simple") as queue:
        queue.put({"n": 1})
        message = queue.get(timeout=5)
        message.requeue()
        again = queue.get(timeout=5)
        assert again.payload == {"n": 1}
        assert again.delivery_info["redelivered"] is True
        again.ack()
        until(lambda: redis_server.client().hlen("unacked") == 0)


def test_prefetch_bounds_what_is_claimed(connection: Connection, redis_server: RedisServer) -> None:
    """No more than the prefetch count is held; an acknowledgement makes room for the next."""
    put(connection, 10)
    got: list[Any] = []
    channel = connection.channel()
    channel.basic_qos(0, 3, False)
    with Consumer(channel, [PLAIN], on_message=got.append):
        drain(connection)
        assert len(got) == 3
        assert redis_server.client().hlen("unacked") == 3
        got[0].ack()
        until(lambda: redis_server.client().hlen("unacked") == 2)
        drain(connection)
        assert len(got) == 4


def test_closing_the_connection_returns_what_it_holds(redis_server: RedisServer) -> None:
    """A connection with leases of its own gives everything back when it is closed."""
    transport.register()
    with Connection(f"penstock+{redis_server.url}") as connection:
        put(connection, 5)
        got: list[Any] = []
        with Consumer(connection.channel(), [PLAIN], on_message=got.append):
            drain(connection)
        assert len(got) == 5
    assert redis_server.client().llen("plain") == 5
    assert redis_server.client().hlen("unacked") == 0


def test_single_messages_can_be_fetched(connection: Connection, redis_server: RedisServer) -> None:
    """basic_get brings one message or none; with no_ack it is gone at once."""
    put(connection, 2)
    queue = PLAIN(connection.default_channel)
    first = queue.get()
    assert first is not None
    assert redis_server.client().hlen("unacked") == 1
    first.ack()
    assert queue.get(no_ack=True) is not None
    until(lambda: redis_server.client().hlen("unacked") == 0)
    assert queue.get() is None


def test_a_message_that_ends_its_consumer_is_set_aside(
    connection: Connection, redis_server: RedisServer
) -> None:
    """It is kept for a person, and those behind it are delivered."""
    put(connection, 3)
    got: list[int] = []

    def take(message: Any) -> None:
        if message.payload["n"] == 1:
            raise ValueError("a defect of the consumer")
        got.append(message.payload["n"])

    with Consumer(connection.channel(), [PLAIN], on_message=take):
        drain(connection)
    assert got == [0, 2]
    until(lambda: redis_server.client().llen(PARKED_KEY) == 1)


def test_what_a_lost_connection_leaves_undelivered_goes_back(
    connection: Connection, redis_server: RedisServer
) -> None:
    """A claim brings many messages at once; those behind the failure stay with no worker."""
    put(connection, 5)
    got: list[Any] = []

    def take(message: Any) -> None:
        got.append(message)
        if len(got) == 2:
            raise redis.ConnectionError("the broker is gone")

    with Consumer(connection.channel(), [PLAIN], on_message=take):
        with pytest.raises(redis.ConnectionError):
            drain(connection)
        until(lambda: redis_server.client().llen("plain") == 3)


def test_a_server_that_has_lost_the_script_is_given_it_again(
    connection: Connection, redis_server: RedisServer
) -> None:
    """As after its restart: the next claim brings what waits."""
    got: list[Any] = []
    with Consumer(connection.channel(), [PLAIN], on_message=got.append):
        put(connection, 1)
        drain(connection)
        redis_server.client().script_flush()
        put(connection, 1)
        drain(connection)
    assert len(got) == 2


def test_a_claim_that_is_not_answered_comes_back_with_its_lease(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis gave messages to a consumer that never heard of them: after the visibility timeout
    each is delivered once, and none stays with the consumer that is still there."""
    transport.register()
    with Connection(
        f"penstock+{redis_server.url}", transport_options={"visibility_timeout": 0.5}
    ) as connection:
        put(connection, 3)
        got: list[Any] = []
        with Consumer(connection.channel(), [PLAIN], on_message=got.append):
            lose_the_next_claim(monkeypatch)
            with pytest.raises(redis.ConnectionError):
                drain(connection)
            assert redis_server.client().hlen("unacked") == 3, "the claim did not happen"
            until(lambda: is_drained(connection, got, 3))
        assert sorted(message.payload["n"] for message in got) == [0, 1, 2]


def lose_the_next_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut this thread's connection after Redis has done the next claim."""
    read = AbstractConnection.read_response
    thread, lost = threading.get_ident(), list[Any]()

    def read_response(self: Any, *given: Any, **options: Any) -> Any:
        answer = read(self, *given, **options)
        if threading.get_ident() == thread and isinstance(answer, list) and not lost:
            lost.append(answer)
            self.disconnect()
            raise redis.ConnectionError("the answer is lost")
        return answer

    monkeypatch.setattr(AbstractConnection, "read_response", read_response)


def test_queues_are_served_in_turns(connection: Connection) -> None:
    """A queue that always has messages leaves the next claim to another."""
    put(connection, 4)
    put(connection, 2, "other")
    order: list[str] = []
    channel = connection.channel()
    channel.basic_qos(0, 2, False)

    def take(message: Any) -> None:
        order.append(message.delivery_info["routing_key"])
        message.ack()

    with Consumer(channel, [PLAIN, Queue("other", routing_key="other")], on_message=take):
        drain(connection)
    assert order == ["plain"] * 2 + ["other"] * 2 + ["plain"] * 2


def is_drained(connection: Connection, got: list[Any], number: int) -> bool:
    drain(connection)
    return len(got) >= number


def drain(connection: Connection) -> None:
    """Until nothing comes any more."""
    while True:
        try:
            connection.drain_events(timeout=0.3)
        except socket.timeout:  # noqa: UP041  # kombu's word for it
            return
