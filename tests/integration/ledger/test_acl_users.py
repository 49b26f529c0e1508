"""The ACL users that docs/security.md advises, on each kind of server that a fleet may have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis.exceptions import NoPermissionError
from servers import RedisServer, acl_section, give_acl, old_redis_binary

from penstock_ledger import RedisAddress

PASSWORD = "the-password-of-this-test"
OLD_COMMANDS = Path(__file__).parents[2] / "contract" / "redis_7_0_commands.txt"


@pytest.fixture(params=["the environment's", "older than 7.2"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """The server of the tests, and an old one where the PATH has it."""
    binary = old_redis_binary() if request.param == "older than 7.2" else None
    if request.param == "older than 7.2" and binary is None:
        pytest.skip(
            "no redis-server older than 7.2 on PATH; the page's commands are held to a recorded "
            "list instead"
        )
    started = RedisServer.start(tmp_path, binary=binary)
    yield started
    started.stop()


def url_of(server: RedisServer, user: str) -> str:
    return f"redis://{user}:{PASSWORD}@127.0.0.1:{server.port}/0"


def test_each_granted_command_is_known_to_redis_7_0() -> None:
    """An ACL line that names a command which the server lacks is refused whole, so the page names
    none that 7.0 lacks."""
    known = {name for line in OLD_COMMANDS.read_text().splitlines()[1:] for name in line.split()}
    granted = set(re.findall(r"(?<=[\s`])[+-]([a-z_|]+)", acl_section()))
    # the search finds lines and prose
    assert {"lpush", "client|setname", "script|load", "subscribe"} <= granted
    assert granted - known == set()


def test_a_submitter_can_submit_and_nothing_else(server: RedisServer) -> None:
    """A Celery client can send penstock.submit, and reach no item and no worker (B30)."""
    give_acl(server, "submitter", PASSWORD)
    app = Celery(broker=url_of(server, "submitter"))
    app.conf.task_ignore_result = True
    app.send_task(
        "penstock.submit", args=["/sources/a.jsonl", {}], queue="penstock.control", retry=False
    )
    assert server.client().llen("penstock.control") == 1
    refuses(
        server,
        "submitter",
        ("LPUSH", "penstock.api", "{}"),
        ("LRANGE", "penstock.control", 0, -1),
        ("RPOP", "penstock.control"),
        ("KEYS", "*"),
        ("PUBLISH", "/0.celery.pidbox", "{}"),
        ("EVAL", "return 1", 0),
        ("CONFIG", "GET", "*"),
        ("CLIENT", "KILL", "SKIPME", "yes"),
        ("CLIENT", "LIST"),
    )


def test_a_watcher_counts_and_nothing_else(server: RedisServer) -> None:
    """A scaler reads how long queues are, and not what is in them (B30)."""
    give_acl(server, "watcher", PASSWORD)
    server.client().lpush("penstock.api", "a document")
    mine = server.client(username="watcher", password=PASSWORD)
    assert (mine.llen("penstock.api"), mine.hlen("unacked.penstock.api")) == (1, 0)
    refuses(
        server,
        "watcher",
        ("LRANGE", "penstock.api", 0, -1),
        ("LPUSH", "penstock.api", "{}"),
        ("DEL", "penstock.api"),
        ("KEYS", "*"),
    )


def test_a_fleet_logs_in_with_its_name_and_its_scripts(server: RedisServer) -> None:
    """A worker's client connects, names its connection, runs a script and reads INFO, and cannot
    empty the server."""
    give_acl(server, "fleet", PASSWORD)
    client = RedisAddress.parse(url_of(server, "fleet")).connect(client_name="worker")
    assert client.eval("return redis.call('INCR', KEYS[1])", 1, "penstock:{job}:count") == 1
    assert "redis_version" in client.info("server")
    refuses(server, "fleet", ("FLUSHALL",), ("CONFIG", "GET", "*"), ("GET", "another:key"))


def refuses(server: RedisServer, user: str, *commands: tuple[object, ...]) -> None:
    client: Any = server.client(username=user, password=PASSWORD)
    for command in commands:
        with pytest.raises(NoPermissionError):
            client.execute_command(*command)
