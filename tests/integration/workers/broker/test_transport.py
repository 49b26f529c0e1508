"""Our transport under plain kombu, without a worker."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from celery_worker import until
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer
from servers import RedisServer

from penstock_workers.broker import transport


@pytest.fixture
def connection(redis_server: RedisServer) -> Iterator[Connection]:
    transport.register()
    with Connection(
        f"penstock+{redis_server.url}", transport_options={"visibility_timeout": 30}
    ) as connection:
        yield connection


def put(connection: Connection, number: int) -> None:
    producer = connection.Producer()
    for n in range(number):
        producer.publish({"n": n}, routing_key="plain")


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
    with Consumer(channel, [Queue("plain", routing_key="plain")], on_message=got.append):
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
        with Consumer(
            connection.channel(), [Queue("plain", routing_key="plain")], on_message=got.append
        ):
            drain(connection)
        assert len(got) == 5
    assert redis_server.client().llen("plain") == 5
    assert redis_server.client().hlen("unacked") == 0


def test_single_messages_can_be_fetched(connection: Connection, redis_server: RedisServer) -> None:
    """basic_get brings one message or none; with no_ack it is gone at once."""
    put(connection, 2)
    queue = Queue("plain", routing_key="plain")(connection.default_channel)
    first = queue.get()
    assert first is not None
    assert redis_server.client().hlen("unacked") == 1
    first.ack()
    assert queue.get(no_ack=True) is not None
    until(lambda: redis_server.client().hlen("unacked") == 0)
    assert queue.get() is None


def drain(connection: Connection) -> None:
    """Until nothing comes any more."""
    while True:
        try:
            connection.drain_events(timeout=0.3)
        except socket.timeout:  # noqa: UP041  # kombu's word for it
            return
