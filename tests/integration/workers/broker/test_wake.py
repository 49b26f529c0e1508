"""An idle worker is woken by urgent messages, and by the first ones of a queue: kombu's event loop and our transport, on a real
Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from kombu.asynchronous.hub import Hub
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer
from servers import RedisServer

from penstock_ledger import Publish, RedisLedger, keys
from penstock_ledger.model import ItemKey
from penstock_producer.feed.wire import encode_item
from penstock_workers.broker import connections, transport

QUEUE = "penstock.api"
NEVER_S = 600.0  # between two looks of a worker that is not woken
BOUND_S = 10.0
EPOCH = "of-this-test"


class Worker:
    """A consumer on kombu's event loop, which asks by itself far too seldom for any test."""

    def __init__(self, connection: Connection) -> None:
        self.got: list[Any] = []
        self._hub = Hub()
        connection.register_with_event_loop(self._hub)
        channel = connection.channel()
        Consumer(channel, [Queue(QUEUE, routing_key=QUEUE)], on_message=self.got.append).consume()
        self._turns = self._hub.create_loop()

    def turn_until(self, is_so: Any) -> None:
        deadline = time.monotonic() + BOUND_S
        while not is_so():
            assert time.monotonic() < deadline, "it did not come"
            next(self._turns)


@pytest.fixture
def connection(redis_server: RedisServer) -> Iterator[Connection]:
    redis_server.client().set(keys.EPOCH, EPOCH)
    transport.register()
    options = {"visibility_timeout": 30, "idle_poll_s": NEVER_S}
    with Connection(f"penstock+{redis_server.url}", transport_options=options) as connection:
        yield connection


def publish(server: RedisServer, *doc_ids: str, urgent: bool = True) -> None:
    """Publish them one by one."""
    ledger = RedisLedger(server.client(), EPOCH)
    for doc_id in doc_ids:
        key = ItemKey("job_a", 1, doc_id)
        raw = encode_item(key, queue=QUEUE, body=b"{}", ref=None, urgent=urgent)
        ledger.publish(QUEUE, [Publish(key, "0", raw)], 8, urgent=urgent)


def waiting(server: RedisServer) -> list[str]:
    """Ids of the connections that wait for a mark."""
    return [one["id"] for one in server.client().client_list() if one["cmd"] == "blpop"]


def test_an_urgent_message_is_claimed_at_once(
    connection: Connection, redis_server: RedisServer
) -> None:
    """A worker that found nothing claims an urgent message when it comes, each time, and not when
    it would look again."""
    worker = Worker(connection)
    worker.turn_until(lambda: waiting(redis_server))
    for number in (1, 2):
        publish(redis_server, f"doc-{number}")
        worker.turn_until(lambda number=number: len(worker.got) == number)


def test_the_first_messages_of_a_queue_are_claimed_at_once(
    connection: Connection, redis_server: RedisServer
) -> None:
    """So are those that are not urgent where the queue was empty, again and again."""
    worker = Worker(connection)
    worker.turn_until(lambda: waiting(redis_server))
    for number in (1, 2):
        publish(redis_server, f"doc-{number}", urgent=False)
        worker.turn_until(lambda number=number: len(worker.got) == number)


def test_a_worker_that_finds_nothing_asks_less_often() -> None:
    """Each time a little later, up to half a second, and at its usual pace once it has found some
    or where no mark would wake it."""
    pause = connections.Pause()
    pauses = []
    for _ in range(20):
        pause.found_nothing(0.05, is_woken=True)
        pauses.append(round(pause.left_s(), 2))
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.05, 0.5)
    pause.found_some()
    pause.found_nothing(0.05, is_woken=True)
    assert pause.left_s() <= 0.05
    for _ in range(20):
        pause.found_nothing(0.05, is_woken=False)
    assert pause.left_s() <= 0.05


def test_a_worker_that_lost_its_place_waits_again(
    connection: Connection, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection that waits may be cut: the worker goes on, and is woken by the next message
    all the same."""
    monkeypatch.setattr(connections, "RETRY_S", 0.0)
    worker = Worker(connection)
    worker.turn_until(lambda: waiting(redis_server))
    (first,) = waiting(redis_server)
    redis_server.client().client_kill_filter(_id=first)
    worker.turn_until(lambda: waiting(redis_server) not in ([], [first]))
    publish(redis_server, "doc-1")
    worker.turn_until(lambda: len(worker.got) == 1)


def test_marks_that_no_one_waits_for_are_few_and_go(redis_server: RedisServer) -> None:
    """Without an idle worker at most 64 marks lie there, which expire; messages behind others leave
    none."""
    client = redis_server.client()
    client.set(keys.EPOCH, EPOCH)
    publish(redis_server, "first", "second", "third", urgent=False)
    assert client.llen(keys.wakes(QUEUE)) == 1
    publish(redis_server, *(f"doc-{number}" for number in range(80)))
    assert client.llen(keys.wakes(QUEUE)) == 64
    assert 0 < client.ttl(keys.wakes(QUEUE)) <= 5
