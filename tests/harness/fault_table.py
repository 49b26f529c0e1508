"""The table of faults: `faults.play` does each row to a fleet.

Those with ``quick`` are in `make test`, all in `make soak`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from faults import CONCURRENCY, HOOKS, SLOTS, Scenario, Stage, start_provider
from fleet import until
from sqlalchemy import create_engine, make_url, text

from penstock_ledger import RedisLedger, keys, purge_job
from penstock_ledger.model import ItemKey, JobState
from penstock_producer.feed.wire import encode_item

QUEUE = "penstock.api"
ASIDE_S = 3600.0  # how far a clock steps back


# -- what the provider does ------------------------------------------------------------------------


def answers(kinds: str, *, seconds: float = 4.0, share: float = 1.0) -> Callable[[Stage], None]:
    return lambda stage: stage.hostile(kinds, seconds, share)


def account_error(stage: Stage) -> None:
    stage.fleet.provider.tell(hostile="nul-account", hostile_share=1)
    stage.fleet.wait_for(stage.job, JobState.PAUSED, 30)
    stage.fleet.provider.tell(hostile=None)


def dripping(stage: Stage) -> None:
    """Calls that were cut off by our own deadline may have been answered all the same."""
    stage.hostile("drip", 8)


def bad_certificate(stage: Stage) -> None:
    """The provider's certificate has run out; the screen says so while it lasts."""
    stage.fleet.provider.kill()
    start_provider(stage.fleet, "expired", stage.seed)
    stage.hold(12)
    shown = stage.shown()
    assert "certificate" in shown, f"what fails is not said: {shown}"
    stage.fleet.provider.kill()
    start_provider(stage.fleet, "good", stage.seed)
    stage.notes["ambiguous"] = 2 * SLOTS


# -- what processes do -----------------------------------------------------------------------------


def _has_called(stage: Stage, times: int) -> bool:
    return stage.fleet.provider_calls() >= times


def two_kills_of_all(stage: Stage) -> None:
    for _ in range(2):
        called = stage.fleet.provider_calls()
        until(partial(_has_called, stage, called + CONCURRENCY), 60, "calls are in flight")
        stage.kill(*stage.workers())
        stage.fleet.replace_dead(stage.start_worker)
        stage.fleet.ready(*stage.workers())


def hooks_at_work(stage: Stage) -> None:
    """One document's hook ends its process, whenever it is called."""
    stage.hold(8)


def thawed_after_a_purge(stage: Stage) -> None:
    """A worker sleeps while its job is cancelled and forgotten; what it writes afterwards belongs
    to no job."""
    fleet = stage.fleet
    gone = fleet.submit(60, key=f"{stage.job.job_key}-gone", timeout_s=60)
    fleet.wait_for_outcomes(gone, 1)
    asleep = stage.luck.choice(stage.workers())
    asleep.send(signal.SIGSTOP)
    stage.died += 1
    try:
        assert fleet.producer.cancel(gone.job_id)
        fleet.wait_for(gone, JobState.CANCELLED, 60)
        purge_job(fleet.producer._database, gone.job_id)
        RedisLedger(fleet.redis.client(), "").forget(gone.job_id)
    finally:
        asleep.send(signal.SIGCONT)
    stage.hold(3)
    with create_engine(_sync_url(stage)).connect() as connection:
        left = connection.execute(
            text("select count(*) from outcomes where job_id = :job"), {"job": gone.job_id}
        )
        assert left.scalar() == 0, "outcomes of a forgotten job"
    keys_left = list(fleet.redis.client().scan_iter(f"{keys.job_scope(gone.job_id)}:*"))
    assert keys_left == [keys.job_state(gone.job_id).encode()], "keys of a forgotten job"


# -- what Redis does -------------------------------------------------------------------------------


def slow_redis(stage: Stage) -> None:
    for _ in range(2):
        stage.fleet.redis.client().client_pause(6_000, all=True)
        stage.hold(8)
    stage.notes["ambiguous"] = 2 * SLOTS  # leases of 3 s end meanwhile


def stopped_redis(stage: Stage) -> None:
    os.kill(stage.fleet.redis.pid, signal.SIGSTOP)
    try:
        stage.hold(12)
    finally:
        os.kill(stage.fleet.redis.pid, signal.SIGCONT)
    stage.notes["ambiguous"] = 2 * SLOTS


def readonly_redis(stage: Stage) -> None:
    client = stage.fleet.redis.client()
    client.config_set("replica-serve-stale-data", "yes")
    client.replicaof("127.0.0.1", "1")
    try:
        stage.hold(10)
    finally:
        client.replicaof("NO", "ONE")
    stage.notes["ambiguous"] = 2 * SLOTS


def full_disk_of_redis(stage: Stage) -> None:
    """Redis cannot save, and refuses every write (MISCONF): what a full disk does, by a folder in
    its file's place."""
    client, blocked = stage.fleet.redis.client(), stage.fleet.redis.folder / "dump.rdb"
    blocked.mkdir()
    (blocked / "in the way").touch()
    client.config_set("save", "1 1")
    try:
        until(
            lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err",
            30,
            "Redis cannot save",
        )
        stage.hold(8)
    finally:
        client.config_set("save", "")
        shutil.rmtree(blocked)
    stage.notes["ambiguous"] = 2 * SLOTS


def full_memory_of_redis(stage: Stage) -> None:
    client = stage.fleet.redis.client()
    client.config_set("maxmemory", 1024)
    try:
        stage.hold(8)
    finally:
        client.config_set("maxmemory", 0)
    stage.notes["ambiguous"] = 2 * SLOTS


def clock_of_redis_steps_back(stage: Stage) -> None:
    """As after a failover to a server whose clock is an hour behind: all times in its sets lie in
    the future."""
    victim = stage.luck.choice(stage.workers())
    stage.kill(victim)
    client: Any = stage.fleet.redis.client()
    for name in (keys.unacked_index(QUEUE), keys.delayed(QUEUE), keys.WORKERS):
        held = client.zrange(name, 0, -1, withscores=True)
        if held:
            client.zadd(name, {member: score + ASIDE_S for member, score in held})
    # the leases of the other worker, too, are of no time that can be believed
    stage.notes["ambiguous"] = SLOTS
    stage.fleet.replace_dead(stage.start_worker)


def strays(stage: Stage) -> None:
    """Messages that Penstock would not send: all are set aside, and the documents behind them are
    answered."""
    client, job = stage.fleet.redis.client(), stage.job
    good = json.loads(
        encode_item(ItemKey(job.job_id, 1, "doc-1"), queue=QUEUE, body=b"{}", ref=None)
    )

    def send(**headers: object) -> None:
        client.lpush(QUEUE, json.dumps(good | {"headers": good["headers"] | headers}))

    for generation in (2**31, 2**63, -1, 7):
        client.lpush(QUEUE, _stray(good, job.job_id, generation, "doc-2"))
    for document in ("no-such-document", "x" * 9_000, "with\0nul", "\ud800", ""):
        client.lpush(QUEUE, _stray(good, job.job_id, 1, document))
    client.lpush(QUEUE, _stray(good, job.job_key, 1, "doc-3"))
    send(priority=2**40)
    client.lpush(QUEUE, "[]", "{}", "\xff")
    stage.hold(3)


def _stray(good: dict[str, object], job: str, generation: int, document: str) -> str:
    raw = encode_item(
        ItemKey("STRAYJOB", 1, "STRAYDOC"), queue=QUEUE, body=b'{"model":"sim"}', ref=None
    )
    message = json.loads(raw)
    headers = message["headers"]
    known = {"STRAYJOB": job, "STRAYDOC": document}

    def changed(value: object) -> object:
        if isinstance(value, dict):
            return {
                name: generation if name in ("gen", "generation") else changed(part)
                for name, part in value.items()
            }
        if isinstance(value, list):
            return [changed(part) for part in value]
        if isinstance(value, str):
            for name, new in known.items():
                value = value.replace(name, new)
        return value

    return json.dumps(
        message | {"headers": changed(headers), "properties": changed(message["properties"])}
    )


# -- what the database does ------------------------------------------------------------------------


def database_away(stage: Stage) -> None:
    """SQLite is locked by another writer; PostgreSQL takes no connections and ends those that there
    are."""
    if stage.fleet.database_url.startswith("sqlite"):
        with sqlite3.connect(
            stage.fleet.database_url.removeprefix("sqlite:///"), isolation_level=None
        ) as other:
            other.execute("begin immediate")
            stage.hold(12)
            other.execute("rollback")
        return
    url = make_url(_sync_url(stage))
    name = url.database
    engine = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as other:
        other.execute(text(f'alter database "{name}" allow_connections false'))
        try:
            end = time.monotonic() + 8
            while time.monotonic() < end:
                other.execute(
                    text(
                        "select pg_terminate_backend(pid) from pg_stat_activity where datname = :n"
                    ),
                    {"n": name},
                )
                stage.hold(0.5)
        finally:
            other.execute(text(f'alter database "{name}" allow_connections true'))
    stage.notes["ambiguous"] = 2 * SLOTS


def _sync_url(stage: Stage) -> str:
    return stage.fleet.database_url.replace("postgresql://", "postgresql+psycopg://")


ONE_DOCUMENT = frozenset(
    {"bad_request", "http_400", "forbidden", "not_found", "invalid_answer", "answer_too_large"}
)
MANY_TRIES = (("max_attempts", 20), ("timeout_s", 3))

SCENARIOS = (
    Scenario(
        "texts",
        "A4 B14 B15 B23",
        answers(
            "nul,surrogate,surrogate-bytes,log-injection,echo-key,long-message,nul-answer,surrogate-answer",
            share=0.4,
            seconds=3,
        ),
        documents=160,
        spec=MANY_TRIES,
        dead=ONE_DOCUMENT,
        most_dead=160,
        quick=True,
    ),
    Scenario(
        "account error with a NUL",
        "A4",
        account_error,
        documents=120,
        waits_for="unauthorized",
        quick=True,
    ),
    Scenario(
        "one page of 403",
        "A3",
        answers("html-403", share=0.03, seconds=4),
        spec=MANY_TRIES,
        dead=ONE_DOCUMENT,
        most_dead=20,
    ),
    Scenario(
        "403 for all",
        "A3",
        answers("html-403"),
        spec=MANY_TRIES,
        dead=ONE_DOCUMENT,
        most_dead=40,
        waits_for="403|forbidden|refused",
    ),
    Scenario(
        "pages",
        "A3",
        answers("html-200,html-502", share=0.4),
        spec=MANY_TRIES,
        dead=ONE_DOCUMENT,
        most_dead=40,
    ),
    Scenario(
        "retry-after an hour",
        "A2",
        answers("retry-after-hour", share=0.05, seconds=4),
        spec=MANY_TRIES,
        waits_for="rate_limited|wait",
    ),
    Scenario(
        "retry-after nonsense",
        "A2",
        answers(
            "retry-after-negative,retry-after-past,retry-after-garbage,retry-after-endless",
            share=0.3,
        ),
        spec=MANY_TRIES,
    ),
    Scenario("limits of one", "A11", answers("limit-requests", seconds=5), documents=400),
    Scenario("limits of ten tokens", "A11", answers("limit-tokens", seconds=5), documents=400),
    Scenario("limits of nonsense", "A11", answers("limit-nonsense", seconds=5)),
    Scenario(
        "redirects",
        "A7",
        answers("redirect-302,redirect-307,redirect-308,redirect-host", seconds=5),
        documents=240,
        dead=ONE_DOCUMENT | {"redirected", "http_302", "http_307", "http_308", "redirect"},
        most_dead=60,
        waits_for="redirect|30[278]|base-url|base_url",
        quick=True,
    ),
    Scenario(
        "not found",
        "A7 D9",
        answers("not-found", seconds=10),
        documents=400,
        dead=ONE_DOCUMENT,
        most_dead=60,
        waits_for="404|not_found|base-url|base_url",
    ),
    Scenario(
        "sizes",
        "A17 B22",
        answers(
            "large,large-chunked,gzip-bomb,gzip-twice,gzip-half,gzip-lie,deflate-lie", share=0.2
        ),
        spec=MANY_TRIES,
        dead=ONE_DOCUMENT,
        most_dead=240,
    ),
    Scenario(
        "wires",
        "4.4",
        answers(
            "hang,close,close-after-headers,length-long,length-twice,huge-header,no-http", share=0.3
        ),
        spec=MANY_TRIES,
    ),
    Scenario("drip", "4.4", dripping, spec=MANY_TRIES, documents=120),
    Scenario(
        "bodies",
        "4.4",
        answers(
            "error-200,empty,array,no-choices,nan,huge-number,deep,text-plain,usage-negative,usage-absurd,usage-text",
            share=0.4,
        ),
        spec=MANY_TRIES,
        dead=ONE_DOCUMENT,
        most_dead=40,
    ),
    Scenario("two kills of all", "A6", two_kills_of_all),
    Scenario(
        "postprocess ends its process",
        "A1",
        hooks_at_work,
        spec=(("postprocess", f"{HOOKS}:die_after"),),
        dead=frozenset({"worker_crashed"}),
        most_dead=1,
    ),
    Scenario(
        "preprocess ends its process",
        "A1",
        hooks_at_work,
        spec=(("preprocess", f"{HOOKS}:die_before"),),
        dead=frozenset({"worker_crashed"}),
        most_dead=1,
    ),
    Scenario("expired certificate", "A9", bad_certificate, https=True),
    Scenario("thawed after a purge", "A16", thawed_after_a_purge),
    Scenario("slow Redis", "A8", slow_redis),
    Scenario("stopped Redis", "A8", stopped_redis),
    Scenario("read-only Redis", "A14", readonly_redis),
    Scenario("full disk of Redis", "A10", full_disk_of_redis),
    Scenario("full memory of Redis", "A14", full_memory_of_redis),
    Scenario("clock of Redis steps back", "A12", clock_of_redis_steps_back),
    Scenario("strays", "B5 B6", strays, documents=160, quick=True),
    Scenario("database away", "A15", database_away),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
assert len(BY_NAME) == len(SCENARIOS), "two scenarios have one name"
