"""What becomes of RabbitMQ's deliveries in a worker: taken as there is room, kept while Redis is
away, never both lost and acknowledged."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import amqp
import pytest
from redis.exceptions import ConnectionError as RedisGone

from penstock_workers.broker.amqp import intake as module
from penstock_workers.broker.amqp.intake import RELAYED_TYPE, Intake, arrived
from penstock_workers.broker.amqp.relay_scripts import Arrived, Taken
from penstock_workers.broker.amqp.transport import LeaseChannel
from penstock_workers.broker.leases import BrokerAction, Leases
from penstock_workers.broker.messages import Message, payload_of


def new_message(body: str | bytes, **properties: Any) -> Any:
    """amqp says that a body is text; what the wire brings is bytes, or text for a client that says
    so."""
    make: Any = amqp.Message
    return make(body, **properties)


class Channel:
    """One channel: its RabbitMQ, its hub and its Redis, all of them controlled by the test."""

    def __init__(self) -> None:
        self.leases = Leases()
        self.limit = 100
        self.acked: list[int] = []
        self.rejected: list[int] = []
        self.asked: list[list[str]] = []
        self.delivered: list[str] = []
        self.copies: set[str] = set()
        self.is_redis_away = False
        self.soon: list[Callable[[], object]] = []
        self.intake = Intake(
            self.leases,
            self.take,
            room=lambda: self.limit - len(self.leases),
            soon=self.soon.append,
            ack=self.acked.append,
            reject=self.rejected.append,
            disconnect=str,
        )
        self.number = 0

    def take(self, group: Sequence[Arrived]) -> Taken:
        self.asked.append([message.tag for message in group])
        if self.is_redis_away:
            raise RedisGone("away")
        return Taken("1.0", [message.tag not in self.copies for message in group])

    def bring(self, *tags: str, consumer: str = "c1") -> None:
        for tag in tags:
            self.number += 1
            message = new_message(b"{}", message_id=tag, type=RELAYED_TYPE)
            message.delivery_info = {"delivery_tag": self.number, "consumer_tag": consumer}
            self.intake.add("penstock.api", lambda found: self.delivered.append(found.tag), message)

    def turn(self) -> None:
        """Of the hub, once the call under way has ended."""
        self.intake.tick()
        call = self.intake._call
        if call is not None:
            call.exception()
            self.intake._thread.submit(str).result()  # its callbacks have run
        while self.soon:
            self.soon.pop(0)()


@pytest.fixture
def channel() -> Iterator[Channel]:
    made = Channel()
    yield made
    made.intake._thread.shutdown()


def test_what_fits_is_taken_delivered_and_acknowledged(channel: Channel) -> None:
    """In one call; RabbitMQ hears of the last one, which covers those before."""
    channel.bring("a", "b", "c")
    channel.turn()
    assert (channel.asked, channel.delivered, channel.acked) == (
        [["a", "b", "c"]],
        ["a", "b", "c"],
        [3],
    )
    assert sorted(channel.leases.tags()) == ["a", "b", "c"]


def test_no_more_is_taken_than_there_is_room(channel: Channel) -> None:
    """The rest waits unacknowledged, and is taken when something is concluded."""
    channel.limit = 2
    channel.bring("a", "b", "c")
    channel.turn()
    channel.turn()
    assert (channel.delivered, channel.acked, len(channel.intake)) == (["a", "b"], [2], 1)
    channel.limit = 3
    channel.turn()
    assert (channel.delivered, channel.acked) == (["a", "b", "c"], [2, 3])


def test_copies_are_acknowledged_and_go_nowhere(channel: Channel) -> None:
    """A copy of what this very worker holds leaves that alone."""
    channel.bring("a")
    channel.turn()
    channel.copies = {"a"}
    channel.bring("a", "b")
    channel.turn()
    assert (channel.delivered, channel.acked, channel.leases.dropped) == (["a", "b"], [1, 3], 1)
    assert "a" in channel.leases


def test_deliveries_wait_while_redis_is_away(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is acknowledged, the order is kept, and it is not asked at every turn."""
    now = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    channel.is_redis_away = True
    channel.bring("a", "b")
    channel.turn()
    channel.turn()
    assert (channel.asked, channel.acked, len(channel.intake)) == ([["a", "b"]], [], 2)
    channel.is_redis_away, now = False, now + module.RETRY_S
    channel.bring("c")
    channel.turn()
    assert (channel.delivered, channel.acked) == (["a", "b", "c"], [3])


def test_a_cancelled_consumer_leaves_its_deliveries_to_others(channel: Channel) -> None:
    """They are rejected into their queue; another consumer's stay."""
    channel.bring("a")
    channel.bring("b", consumer="c2")
    channel.intake.cancel("c1")
    assert channel.rejected == [1]
    channel.turn()
    assert channel.delivered == ["b"]


def test_a_call_under_way_when_the_consumer_is_cancelled_is_given_back(channel: Channel) -> None:
    """What it took is on its way back to the list, and RabbitMQ need not keep it."""
    channel.bring("a", "b")
    channel.copies = {"b"}
    channel.intake.tick()
    channel.intake.cancel("c1")
    assert (channel.delivered, channel.acked) == ([], [2])
    assert [lease.tag for lease in channel.leases._leaving[BrokerAction.GIVE_BACK]] == ["a"]


def test_a_call_under_way_when_the_connection_is_lost_is_given_back(channel: Channel) -> None:
    """RabbitMQ delivers it again, but Redis says that this worker holds it: so it must go back."""
    channel.bring("a", "b")
    channel.intake.tick()
    channel.intake.close()
    channel.intake._thread.shutdown(wait=True)
    for step in channel.soon:
        step()
    assert (channel.delivered, channel.acked, len(channel.intake)) == ([], [], 0)
    assert [lease.tag for lease in channel.leases._leaving[BrokerAction.GIVE_BACK]] == ["a", "b"]


def test_a_consumer_that_hears_nothing_because_there_is_nothing_counts_as_asking(
    channel: Channel,
) -> None:
    """The probe's file `alive` goes by it."""
    channel.turn()
    assert channel.leases.claim_heard_at is not None


def celery_message(body: str | bytes, **headers: Any) -> Any:
    return new_message(
        body,
        application_headers=headers,
        content_type="application/json",
        content_encoding="utf-8",
        correlation_id=headers.get("id"),
        delivery_mode=2,
    )


@pytest.mark.parametrize("body", ['[["ü"], {}, {}]', '[["ü"], {}, {}]'.encode()])
def test_a_celery_clients_message_is_as_kombu_reads_it_from_redis(body: str | bytes) -> None:
    """Body, headers, tag and the list that it goes back to."""
    found = arrived(
        "penstock.control", celery_message(body, id="t1", task="penstock.submit", retries=0)
    )
    message = Message(
        payload_of(found.raw), channel=LeaseChannel(Leases()), accept={"application/json"}
    )
    assert message.decode() == [["ü"], {}, {}]
    assert (message.delivery_tag, message.headers["task"]) == ("t1", "penstock.submit")
    raw, exchange, routing_key = json.loads(found.record)
    assert (raw, exchange, routing_key) == (json.loads(found.raw), "", "penstock.control")
    assert base64.b64decode(raw["body"]).decode() == '[["ü"], {}, {}]'


def test_a_retry_of_a_celery_task_is_no_copy_of_its_first_try() -> None:
    """It may come before the first try is acknowledged; a message that names no task has a tag of
    its own."""
    tags = [arrived("q", celery_message("[]", id="t1", retries=number)).tag for number in (0, 1, 2)]
    assert tags == ["t1", "t1~r1", "t1~r2"]
    assert arrived("q", celery_message("[]")).tag != arrived("q", celery_message("[]")).tag
