"""Real workers on a real Redis: what happens to messages when workers, connections and the broker
die."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery_worker import DONE, QUEUE, Fleet, WorkerProcess, fleet_on, until
from envelopes import decode_envelope
from servers import RedisServer, as_bytes

from penstock_ledger.model import ItemKey
from penstock_producer.feed.wire import encode_item


@pytest.fixture
def fleet(redis_server: RedisServer, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_on(redis_server, tmp_path) as fleet:
        yield fleet


def test_items_run_once_and_leave_nothing(fleet: Fleet) -> None:
    """Each published item runs once, and the broker holds nothing afterwards."""
    fleet.start()
    tags = fleet.publish(500)
    until(lambda: fleet.done() == set(tags))
    until(fleet.is_empty)
    assert fleet.runs() == dict.fromkeys(tags, 1)


def test_an_idle_worker_asks_quietly(fleet: Fleet) -> None:
    """With nothing to do a worker asks some twenty times a second by the server's own clock, and
    not much more."""
    fleet.start()
    client = fleet.server.client()
    client.config_resetstat()
    began = server_seconds(client)
    until(lambda: scripts_run(client) >= 20)
    asked, seconds = scripts_run(client), server_seconds(client) - began
    assert asked <= 10 + 30 * seconds  # a busy machine only makes it ask less often


def scripts_run(client: Any) -> int:
    return sum(
        int(stats["calls"]) for name, stats in client.info("commandstats").items() if "eval" in name
    )


def server_seconds(client: Any) -> float:
    seconds, microseconds = client.time()
    return float(seconds + microseconds / 1e6)


def test_bulk_and_stock_workers_share_a_queue(fleet: Fleet) -> None:
    """Workers on our transport and on kombu's stock one work side by side on the same keys."""
    fleet.start(seconds=0.05, name="ours")
    fleet.start(seconds=0.05, name="stock", broker_transport="redis")
    tags = fleet.publish(2_000)
    until(lambda: fleet.done() == set(tags), 60)
    until(fleet.is_empty)
    assert fleet.runs() == dict.fromkeys(tags, 1)


def test_nothing_is_lost_when_a_worker_is_killed(fleet: Fleet) -> None:
    """What a SIGKILLed worker held comes back after the lease, and all of it is done by the other
    one."""
    victim = fleet.start(seconds=60, name="victim")
    tags = fleet.publish(100)
    until(lambda: fleet.held() == 64)
    victim.kill()
    fleet.start(name="heir")
    until(lambda: fleet.done() == set(tags), 15)
    until(fleet.is_empty)


def test_what_an_older_worker_held_comes_back(fleet: Fleet) -> None:
    """A worker from before lanes had keys of their own died in the middle of an upgrade: any worker
    returns its messages."""
    client = fleet.server.client()
    tags = fleet.publish(3)
    popped: Any = client.rpop(QUEUE, 3)
    for raw in map(as_bytes, popped):
        client.hset("unacked", decode_envelope(raw).tag, b'[%b,"","%b"]' % (raw, QUEUE.encode()))
    client.zadd("unacked_index", dict.fromkeys(tags, time.time() - 2))
    fleet.start(name="heir")
    until(lambda: fleet.done() == set(tags), 15)
    assert not client.exists("unacked", "unacked_index")


def test_lanes_do_not_count_each_other(fleet: Fleet) -> None:
    """What a lane's workers hold lies under its own key: a scaler that adds queued and unacked
    counts this lane only."""
    client = fleet.server.client()
    other = encode_item(ItemKey("other", 1, "d"), queue="penstock.gpu", body=b"{}", ref=None)
    client.lpush("penstock.gpu", other)
    fleet.start(lane="gpu", seconds=60)
    fleet.start(seconds=60)
    fleet.publish(5)
    until(lambda: (client.hlen("unacked.api"), client.hkeys("unacked.gpu")) == (5, [b"other:d"]))
    leases = {name: client.zcard(name) for name in client.keys("unacked_index*")}
    assert leases == {b"unacked_index.api": 5, b"unacked_index.gpu": 1}


def test_a_thawed_worker_leaves_its_successor_alone(fleet: Fleet) -> None:
    """A worker frozen beyond its lease cannot acknowledge, renew or return what another worker
    holds by now."""
    frozen = fleet.start(seconds=4, name="frozen")
    tags = fleet.publish(10)
    until(lambda: len(fleet.runs()) == 10)
    frozen.send(signal.SIGSTOP)
    fleet.start(seconds=6, name="successor")
    until(lambda: sum(fleet.runs().values()) == 20, 15)
    frozen.send(signal.SIGCONT)
    # longer than the frozen worker's items would still have run: it slept for a lease of 3 s
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        assert fleet.held() == 10
    until(lambda: fleet.done() == set(tags), 15)
    until(fleet.is_empty)
    assert sum(fleet.runs().values()) == 20


def test_a_thawed_worker_starts_nothing_that_others_have(fleet: Fleet) -> None:
    """What waited in a worker that was frozen beyond its lease is not started there again: what it
    ran when it froze is all that runs twice."""
    frozen = fleet.start(seconds=2, concurrency=10, name="frozen")
    tags = fleet.publish(20)
    until(lambda: (len(fleet.runs()), fleet.held()) == (10, 20))
    frozen.send(signal.SIGSTOP)
    fleet.start(seconds=6, concurrency=20, name="successor")
    until(lambda: sum(fleet.runs().values()) == 30, 15)
    frozen.send(signal.SIGCONT)
    until(lambda: fleet.done() == set(tags), 15)
    assert sum(fleet.runs().values()) == 30


def test_leases_are_renewed_while_items_run(fleet: Fleet) -> None:
    """An item that takes longer than the visibility timeout is run once, with other workers
    sweeping."""
    fleet.start(seconds=5, name="slow")
    tags = fleet.publish(20)
    until(lambda: len(fleet.runs()) == 20)
    fleet.start(name="idle")
    until(lambda: fleet.done() == set(tags), 20)
    until(fleet.is_empty)
    assert fleet.runs() == dict.fromkeys(tags, 1)


def test_sigterm_returns_everything_at_once(fleet: Fleet) -> None:
    """SIGTERM gives waiting items back at once and unfinished ones at the deadline, and the worker
    exits with 0."""
    worker = fleet.start(seconds=60, drain_seconds=1.5, concurrency=32)
    fleet.publish(100)
    until(lambda: len(fleet.runs()) == 32)
    worker.send(signal.SIGTERM)
    until(lambda: fleet.queued() == 68, 2, worker.text)
    assert worker.process.wait(10) == 0
    assert fleet.queued() == 100
    assert fleet.held() == 0
    (last,) = fleet.server.client().lrange(QUEUE, -1, -1)
    assert b'"delivery_info":{"redelivered":true,' in as_bytes(last)


def test_a_worker_claims_as_many_as_its_engine_says(fleet: Fleet) -> None:
    """An engine that is up and runs more than the settings said gets as many messages as it runs,
    and those that wait (H7)."""
    fleet.start(seconds=60, drain_seconds=0.5, concurrency=2, finds_slots=16)
    fleet.publish(100)
    until(lambda: len(fleet.runs()) == 16)
    until(lambda: fleet.held() == 32)


def test_sigterm_lets_running_items_end(fleet: Fleet) -> None:
    """Items that fit into the drain are finished and acknowledged; the worker does not wait longer
    than they do."""
    worker = fleet.start(seconds=1.0, drain_seconds=20, concurrency=32)
    fleet.publish(100)
    until(lambda: len(fleet.runs()) == 32)
    began = time.monotonic()
    assert worker.end() == 0
    assert time.monotonic() - began < 10
    assert len(fleet.done()) == 32
    assert (fleet.queued(), fleet.held()) == (68, 0)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_second_signal_ends_the_drain(fleet: Fleet, second: signal.Signals) -> None:
    """A second signal means now: everything is back in the queue within seconds."""
    worker = fleet.start(seconds=60, drain_seconds=30)
    fleet.publish(50)
    until(lambda: len(fleet.runs()) == 32)
    worker.send(signal.SIGTERM)
    until(lambda: fleet.queued() == 18, 30, worker.text)
    worker.send(second)
    worker.process.wait(8)
    assert (fleet.queued(), fleet.held()) == (50, 0), worker.text()


def test_a_cold_shutdown_returns_everything(fleet: Fleet) -> None:
    """SIGQUIT does not drain: what was in flight is back in the queue at once."""
    worker = fleet.start(seconds=60, drain_seconds=30)
    fleet.publish(50)
    until(lambda: len(fleet.runs()) == 32)
    worker.send(signal.SIGQUIT)
    worker.process.wait(10)
    assert (fleet.queued(), fleet.held()) == (50, 0), worker.text()


def _has_run(fleet: Fleet, worker: WorkerProcess, items: int) -> bool:
    return worker.is_alive() and len(fleet.runs()) >= items


def kill_connections(fleet: Fleet, worker: WorkerProcess, times: int) -> None:
    """Each time all of them, and not again before the worker has started another item."""
    client = fleet.server.client()
    for _ in range(times):
        ran = len(fleet.runs())
        client.client_kill_filter(_type="normal", skipme=True)
        client.client_kill_filter(_type="pubsub", skipme=True)
        until(partial(_has_run, fleet, worker, ran + 1), 30, worker.text)


def test_lost_connections_cost_nothing(fleet: Fleet) -> None:
    """While all its connections are killed again and again, a worker neither stops, loses an item
    nor runs one twice."""
    worker = fleet.start(seconds=0.5)
    tags = fleet.publish(600)
    kill_connections(fleet, worker, times=6)
    until(lambda: fleet.done() == set(tags), 60, worker.text)
    until(fleet.is_empty, 30, worker.text)
    assert fleet.runs() == dict.fromkeys(tags, 1)


def test_the_stock_transport_goes_on_after_lost_connections(fleet: Fleet) -> None:
    """On kombu's transport a killed connection may lose a message, which the ledger notices.

    The worker goes on, and adopts what is delivered again while it runs."""
    worker = fleet.start(seconds=0.2, broker_transport="redis")
    tags = fleet.publish(600)
    kill_connections(fleet, worker, times=4)
    until(lambda: fleet.queued() == 0, 60, worker.text)
    until(lambda: len(fleet.done()) >= len(tags) - 8, 30, worker.text)
    assert set(fleet.runs().values()) == {1}


def test_work_resumes_after_the_broker_was_killed(own_redis: RedisServer, tmp_path: Path) -> None:
    """A Redis that is killed and comes back from its AOF finds its worker waiting, and every item
    gets done."""
    with fleet_on(own_redis, tmp_path) as fleet:
        worker = fleet.start(seconds=0.5)
        tags = fleet.publish(200)
        until(lambda: len(fleet.done()) >= 30)
        own_redis.kill()
        time.sleep(2)
        own_redis.restart()
        until(lambda: fleet.done() == set(tags), 60, worker.text)
        until(fleet.is_empty, 30, worker.text)
        assert sum(fleet.runs().values()) < 400


def test_a_restarted_redis_without_scripts_is_served(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    """SCRIPT FLUSH, as after a failover, does not stop the claims."""
    with fleet_on(own_redis, tmp_path) as fleet:
        worker = fleet.start()
        fleet.publish(10)
        until(lambda: len(fleet.done()) == 10)
        own_redis.client().script_flush()
        fleet.publish(10, first=10)
        until(lambda: len(fleet.done()) == 20, 30, worker.text)
        until(fleet.is_empty)


def test_fleet_keys_are_the_tests_own() -> None:
    """The recording engine writes where no broker key lies."""
    assert {DONE}.isdisjoint({QUEUE, "unacked.api", "unacked_index.api"})
