"""The hand-built message against what the installed Celery and kombu send and accept."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from servers import RedisServer

from penstock_ledger.model import ItemKey
from penstock_producer.feed import wire, wire_frame

KEY = ItemKey("job_a", 2, "doc-1")
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
QUEUE = "penstock.api"
# Left out because their null or default means the same to a worker.
OMITTED_HEADERS: dict[str, Any] = {
    "shadow": None,
    "eta": None,
    "expires": None,
    "group_index": None,
    "timelimit": [None, None],
    "ignore_result": False,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}


@pytest.fixture
def app(redis_server: RedisServer) -> Celery:
    app = Celery("contract", broker=redis_server.url, backend=None, set_as_current=False)
    app.conf.update(
        task_serializer="json", accept_content=["json"], worker_hijack_root_logger=False
    )
    return app


def sent_by_celery(app: Celery, redis_server: RedisServer) -> dict[str, Any]:
    """The envelope of the same item as `apply_async` puts it into Redis."""
    kwargs = json.loads(json.loads(ours())["body"])[1]

    def body(**_: Any) -> None: ...

    item: Any = app.task(name=wire.TASK_NAME, shared=False)(body)

    item.apply_async(
        (),
        kwargs,
        task_id=wire.item_tag(KEY),
        queue=QUEUE,
        root_id=KEY.job_id,
        priority=0,
        argsrepr="()",
        kwargsrepr="<job_a doc-1>",
        origin=wire_frame.ORIGIN,
        headers={wire_frame.GENERATION_HEADER: 2},
    )
    raw: Any = redis_server.client().lpop(QUEUE)
    envelope: dict[str, Any] = json.loads(raw)
    return envelope


def ours() -> bytes:
    return wire.encode_item(KEY, queue=QUEUE, body=BODY, ref=None)


def test_equal_to_apply_async_field_by_field(app: Celery, redis_server: RedisServer) -> None:
    """Every field that we send equals Celery's, and every field that we leave out has the default
    there."""
    theirs, mine = sent_by_celery(app, redis_server), json.loads(ours())
    assert json.loads(base64.b64decode(theirs.pop("body"))) == json.loads(mine.pop("body"))
    their_properties, my_properties = theirs.pop("properties"), mine.pop("properties")
    their_headers, my_headers = theirs.pop("headers"), mine.pop("headers")
    assert mine == theirs
    assert {name: their_headers.pop(name) for name in OMITTED_HEADERS} == OMITTED_HEADERS
    assert my_headers == their_headers
    assert their_properties.pop("body_encoding") == "base64"
    # apply_async repeats its options here
    for option in ("reply_to", "argsrepr", "kwargsrepr", "origin"):
        del their_properties[option]
    # random there, deterministic here
    their_properties["delivery_tag"] = my_properties["delivery_tag"]
    assert my_properties == their_properties


def test_kombu_decodes_it(app: Celery, redis_server: RedisServer) -> None:
    """A real kombu channel on a real Redis delivers it with our tag, and acknowledging it leaves
    nothing behind."""
    client = redis_server.client()
    client.lpush(QUEUE, ours())
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue(QUEUE).get(timeout=5)
        assert message.delivery_tag == wire.item_tag(KEY)
        _, kwargs, embed = message.payload
        assert wire.decode_item(kwargs, {}) == wire.ItemMessage(KEY, BODY, None)
        assert embed == {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
        message.ack()
    assert client.hlen("unacked") == client.zcard("unacked_index") == client.llen(QUEUE) == 0


def test_a_stock_worker_runs_it(app: Celery, redis_server: RedisServer) -> None:
    """A stock Celery worker runs our message as task `penstock.item` with its id and kwargs."""
    ran = threading.Event()
    received: list[tuple[str, wire.ItemMessage]] = []

    def item(self: Any, **kwargs: Any) -> None:
        received.append((self.request.id, wire.decode_item(kwargs, {})))
        ran.set()

    app.task(name=wire.TASK_NAME, bind=True, shared=False)(item)
    app.conf.task_default_queue = QUEUE
    redis_server.client().lpush(QUEUE, ours())
    started: Any = start_worker  # a context manager, which Celery types as an iterable
    with started(
        app, loglevel="WARNING", pool="solo", perform_ping_check=False, shutdown_timeout=30
    ):
        assert ran.wait(20)
    assert received == [(wire.item_tag(KEY), wire.ItemMessage(KEY, BODY, None))]
