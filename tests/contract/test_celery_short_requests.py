"""A short request is what Celery's own would be, and behaves as it does in the worker's books."""

from __future__ import annotations

import json
from collections.abc import Iterator
from time import monotonic
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from attempts import dead
from celery import Celery
from celery.worker import request as celery_request
from celery.worker import state, strategy
from celery_worker import Settings, no_engine
from kombu.transport import virtual

from penstock_ledger.model import ItemKey
from penstock_producer.feed.wire import encode_item
from penstock_workers.broker.acks import Ack, Acks
from penstock_workers.broker.leases import Leases
from penstock_workers.broker.messages import JSON_TYPE, Message, payload_of
from penstock_workers.celery_app.app import create_app
from penstock_workers.celery_app.events import celery_result
from penstock_workers.celery_app.requests import ItemRequest, ShortRequest

BODY = json.dumps({"messages": []}).encode()


class Pool:
    """Keeps what a strategy hands over to be run."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def apply_async(self, target: Any, **options: Any) -> None:
        self.requests.append(options["accept_callback"].__self__)


@pytest.fixture(scope="module")
def app() -> Celery:
    return create_app(Settings("redis://127.0.0.1:1/0").for_app(), no_engine)


@pytest.fixture
def consumer(app: Celery) -> Any:
    """As much of a consumer as a strategy asks for."""
    pool = Pool()
    return SimpleNamespace(
        hostname="w@here",
        connection_errors=(OSError,),
        event_dispatcher=None,
        pool=pool,
        disable_rate_limits=True,
        timer=SimpleNamespace(call_at=None),
        apply_eta_task=None,
        task_buckets={},
        _limit_task=None,
        _limit_post_eta=None,
        on_task_request=lambda request: request.execute_using_pool(pool),
        controller=SimpleNamespace(state=state),
    )


@pytest.fixture(autouse=True)
def fresh_books() -> Iterator[None]:
    state.reset_state()
    yield
    state.reset_state()


def message(doc: str = "doc-1", **more: Any) -> Message:
    raw = encode_item(ItemKey("job", 1, doc), queue="penstock.api", body=BODY, ref=None, **more)
    made = Message(
        payload_of(raw), channel=SimpleNamespace(decode_body=lambda body, _encoding: body.encode())
    )
    made.accept = {"application/json"}
    return made


def ack(*_: Any) -> None:
    """Stands for what acknowledges."""


def celerys(app: Celery, consumer: Any, given: Message) -> Any:
    """The request that Celery's own strategy makes of a message."""
    handle = strategy.default(app.tasks["penstock.item"], app, consumer)
    handle(given, None, ack, given.reject_log_error, [])
    return consumer.pool.requests[-1]


def short(app: Celery, consumer: Any, given: Message) -> ShortRequest:
    request = ShortRequest.of_consumer(app.tasks["penstock.item"], app, consumer)(given, ack)
    request.reserve()
    return request


@pytest.mark.parametrize("more", [{}, {"retries": 2}, {"calls": 3}])
def test_a_short_request_knows_all_that_celerys_knows(
    app: Celery, consumer: Any, more: dict[str, Any]
) -> None:
    """Each field that Celery gives a request is there and the same: one that a new Celery adds is
    noticed here."""
    given = message(**more)
    assert ShortRequest.suits(given)
    whole, made = celerys(app, consumer, given), short(app, consumer, given)
    names = {
        name
        for name in celery_request.Request.__slots__
        if name not in ("__weakref__", "__dict__", "__payload")
    }
    names |= {name for name in vars(whole) if name != "_apply_result"} | {"_Request__payload"}
    assert {"_message", "_delivery_info", "_ignore_result", "id"} <= names
    for name in sorted(names):
        assert getattr(made, name) == getattr(whole, name), name
    assert made.info() == whole.info()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"headers": {"compression": "application/x-gzip"}},
        {"properties": {"body_encoding": "base64"}},
        {"body": "\ud800"},
        {"body": None},
        {"headers": []},
        {"content-type": None},
    ],
)
def test_a_message_is_what_kombu_makes_of_it(change: dict[str, Any]) -> None:
    """Whether a message is read the short way or by kombu itself, each of its fields is the
    same."""
    item = json.loads(
        encode_item(ItemKey("job", 1, "doc-1"), queue="penstock.api", body=BODY, ref=None)
    )
    for name, value in change.items():
        item[name] = item[name] | value if isinstance(value, dict) else value
    channel = SimpleNamespace(
        decode_body=lambda body, encoding: body if encoding is None else f"decoded from {encoding}"
    )

    def made(kind: type[Any]) -> dict[str, Any]:
        found = kind(json.loads(json.dumps(item)), channel=channel)
        names = [name for name in virtual.Message.__mro__[1].__slots__ if name != "__dict__"]
        return {name: getattr(found, name) for name in names} | {
            "raw": found._raw,
            "errors": len(found.errors),
        }

    assert made(Message) == made(virtual.Message)


def test_a_document_may_have_a_field_that_kombu_reads_as_a_type() -> None:
    """A request body is passed on as it is: what kombu makes a UUID of, a date or a decimal is data
    in an item."""
    body = {"metadata": {"__type__": "uuid", "__value__": {"hex": "0" * 32}}}
    raw = encode_item(
        ItemKey("job", 1, "doc-1"), queue="penstock.api", body=json.dumps(body).encode(), ref=None
    )
    payload: Any = Message(payload_of(raw), channel=None).payload
    assert payload[1]["body"] == body
    stock = json.dumps([[], {"at": {"__type__": "uuid", "__value__": {"hex": "0" * 32}}}, {}])
    other = Message(
        {
            "headers": {},
            "properties": {"delivery_tag": "t"},
            "body": stock,
            "content-type": JSON_TYPE,
        }
    )
    payload = other.payload
    assert isinstance(payload[1]["at"], UUID)


def test_an_acknowledgement_is_of_the_message_that_its_run_has_now(
    app: Celery, consumer: Any
) -> None:
    """A redelivered copy that is adopted takes the place of the first message, whose lease or
    connection is lost."""
    leases = Leases()
    leases.claimed(["job:doc-1", "job:doc-2"], "1.0")
    acks = Acks(leases, lambda _: None, lambda _: None)
    first = message()
    request = ShortRequest.of_consumer(app.tasks["penstock.item"], app, consumer)(
        first, Ack(acks, first)
    )
    request.on_ack.message = message("doc-2")
    request.acknowledge()
    request.acknowledge()
    acks.flush()
    assert (leases.tags(), acks.acked) == (["job:doc-1"], 1)


def books() -> tuple[Any, ...]:
    return (
        sorted(state.requests),
        len(state.reserved_requests),
        len(state.active_requests),
        dict(state.total_count),
        state.all_total_count[0],
    )


@pytest.mark.parametrize("ends_well", [True, False])
def test_the_workers_books_say_the_same_of_both(
    app: Celery, consumer: Any, ends_well: bool
) -> None:
    """`inspect reserved`, `active` and `stats` show a short request from its arrival to its end as
    they show any."""
    seen: list[list[tuple[Any, ...]]] = []
    for make in (celerys, short):
        state.reset_state()
        request = make(app, consumer, message())
        lines = [books()]
        request.on_accepted(7, monotonic())
        lines.append(books())
        failed = celery_result(dead("no"))
        request.on_success((0, None, 0.1) if ends_well else failed)
        lines.append(books())
        assert request.acknowledged
        seen.append(lines)
    assert seen[0] == seen[1]
    assert seen[1][0] == (["job:doc-1"], 1, 0, {}, 0)
    assert seen[1][2] == ([], 0, 0, {"penstock.item": 1}, 1)


def test_an_item_that_was_revoked_while_it_waited_does_not_run(app: Celery, consumer: Any) -> None:
    """`control revoke` reaches a short request, which acknowledges its message."""
    request = short(app, consumer, message())
    assert not request.revoked()
    state.revoked.add(request.id)
    assert request.revoked()
    assert request.acknowledged


@pytest.mark.parametrize(
    "header",
    [
        {"expires": "2026-01-01T00:00:00"},
        {"eta": "2036-01-01T00:00:00"},
        {"timelimit": [5, None]},
        {"shadow": "another"},
        {"stamped_headers": ["group"]},
        {"ignore_result": False},
    ],
)
def test_what_more_than_an_item_says_goes_through_celery(
    app: Celery, header: dict[str, Any]
) -> None:
    """Dates, limits, stamps and results are Celery's own strategy's to see to."""
    given = message()
    given.headers.update(header)
    assert not ShortRequest.suits(given)


def test_a_revoked_item_goes_through_celery(app: Celery) -> None:
    """Which says so in its log and its event, and acknowledges it."""
    given = message()
    state.revoked.add("job:doc-1")
    assert not ShortRequest.suits(given)
    state.revoked.clear()
    assert ShortRequest.suits(given)
    state.revoked_stamps["group"] = ["a"]
    assert not ShortRequest.suits(given)


def test_the_request_that_is_shortened_is_the_items_own(app: Celery) -> None:
    """What it hides from events and from `inspect` stays hidden."""
    assert issubclass(ShortRequest, ItemRequest)
    assert app.tasks["penstock.item"].Request.endswith(":ItemRequest")
