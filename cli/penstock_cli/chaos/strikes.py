"""A fleet is struck by one function for each kind of fault, which the rows of `table` name.

Each returns when its fault is over, and counts in its stage what may have been paid for twice.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from penstock_cli.chaos import injections
from penstock_cli.chaos.bucket import Failing
from penstock_cli.chaos.processes import until
from penstock_cli.chaos.proxy import Way
from penstock_cli.chaos.stage import (
    BEGIN_S,
    CONCURRENCY,
    END_S,
    LEASE_PAST_S,
    SLOTS,
    WORKERS,
    Stage,
    start_provider,
)
from penstock_ledger import RedisLedger, keys, purge_job
from penstock_ledger.model import JobState

ALL_SLOTS = WORKERS * SLOTS  # leases of 3 s may end meanwhile, of both workers
MINUTE_S = 60.0  # between the planned times of a schedule, at least
PLANNED_DOCUMENTS = 20  # of each of its jobs
CLOCK_OFF_S = 3600.0
NOTICE_S = 1.0  # of a spot machine that goes: far less than a worker needs to drain

# -- processes -------------------------------------------------------------------------------------


def kill(stage: Stage) -> None:
    victim = stage.luck.choice(stage.workers())
    stage.did.append(f"killed {victim.name}")
    stage.kill(victim)
    stage.hold(1)


def two_kills_of_all(stage: Stage) -> None:
    for _ in range(2):
        called = stage.fleet.provider_calls()
        until(partial(_has_called, stage, called + CONCURRENCY), 60, "calls are in flight")
        stage.kill(*stage.workers())
        stage.fleet.ready(*stage.workers())


def _has_called(stage: Stage, times: int) -> bool:
    return stage.fleet.provider_calls() >= times or stage.fleet.state(stage.job).final


def freeze(stage: Stage) -> None:
    victim = stage.luck.choice(stage.workers())
    seconds = LEASE_PAST_S + stage.luck.uniform(0, 3)
    with injections.frozen(victim.popen.pid):
        stage.hold(seconds)
    stage.ambiguous += SLOTS
    stage.did.append(f"{victim.name} stood still for {seconds:.0f} s, past its leases")


def drain(stage: Stage) -> None:
    victim = stage.luck.choice(stage.workers())
    victim.send(signal.SIGTERM)
    stage.did.append(f"{victim.name} got SIGTERM and ended by itself")
    until(lambda: not victim.alive, 60, "the worker ends")
    stage.replace_dead()
    stage.deaths -= 1  # it gave back what it held


def spot(stage: Stage) -> None:
    victim = stage.luck.choice(stage.workers())
    victim.send(signal.SIGTERM)
    end = time.monotonic() + NOTICE_S
    until(lambda: not victim.alive or time.monotonic() > end, 60, "the notice is over")
    stage.did.append(f"{victim.name} got SIGTERM, and SIGKILL {NOTICE_S:g} s later")
    stage.kill(victim)
    stage.hold(1)


def wrong_clocks(stage: Stage) -> None:
    """Let the clock of one worker be an hour ahead, and that of the other one an hour behind."""
    stage.kill(*stage.workers(), off_s=(CLOCK_OFF_S, -CLOCK_OFF_S))
    stage.fleet.ready(*stage.workers())
    stage.hold(8)
    stage.kill(*stage.workers())


def times_that_pass(stage: Stage) -> None:
    """Let planned times of a schedule pass while no process is there to start their jobs."""
    fleet, schedules = stage.fleet, stage.fleet.producer.schedules
    name = f"often-{secrets.token_hex(4)}"
    source = fleet.source(PLANNED_DOCUMENTS, name)
    first = schedules.add(name, "* * * * *", source, fleet.spec(), catch_up="all").next_at
    victims = stage.workers()
    for victim in victims:
        victim.kill()
    try:
        until(lambda: time.time() > first + MINUTE_S, 3 * MINUTE_S, "two planned times have passed")
        stage.kill(*victims)
        until(lambda: len(schedules.firings(name)) >= 2, BEGIN_S, "what was missed is started")
        schedules.pause(name)
        firings = schedules.firings(name)
    finally:
        schedules.remove(name)
    planned = sorted(firing.planned_at for firing in firings)
    if planned != [first + MINUTE_S * number for number in range(len(planned))]:
        stage.problems.append(f"planned times that were left out, or came twice: {planned}")
    for firing in firings:
        if firing.job_id is None:
            stage.problems.append(f"a planned time without a job: {firing}")
            continue
        job = fleet.job(firing.job_id)
        fleet.wait_for(job, JobState.COMPLETED, END_S)
        stage.problems += fleet.account(job, PLANNED_DOCUMENTS).problems


def hooks_at_work(stage: Stage) -> None:
    """Wait while one document's hook ends its process, whenever it is called."""
    stage.hold(8)


def thawed_after_a_purge(stage: Stage) -> None:
    """Let a worker sleep while its job is cancelled and forgotten.

    What it writes afterwards belongs to no job."""
    fleet = stage.fleet
    gone = fleet.submit(60, key=f"{stage.job.job_key}-gone", timeout_s=60)
    fleet.wait_for_outcomes(gone, 1)
    asleep = stage.luck.choice(stage.workers())
    stage.died += 1
    with injections.frozen(asleep.popen.pid):
        fleet.producer.cancel(gone.job_id)
        fleet.wait_for(gone, JobState.CANCELLED, 60)
        purge_job(fleet.producer._database, gone.job_id)
        RedisLedger(stage.client, "").forget(gone.job_id)
    stage.hold(3)
    if outcomes := injections.outcomes_of(fleet.database_url, gone.job_id):
        stage.problems.append(f"{outcomes} outcomes of a forgotten job")
    left = set(stage.client.scan_iter(f"{keys.job_scope(gone.job_id)}:*"))
    if left != {keys.job_state(gone.job_id).encode()}:
        stage.problems.append(f"keys of a forgotten job: {left!r}")


# -- Redis -----------------------------------------------------------------------------------------


def flushall(stage: Stage) -> None:
    stage.client.flushall()
    stage.ambiguous += ALL_SLOTS


def redis_restart(stage: Stage) -> None:
    stage.fleet.redis.kill()
    stage.hold(stage.luck.uniform(0.5, 3))
    stage.fleet.redis.restart()
    stage.ambiguous += ALL_SLOTS


def redis_wiped(stage: Stage) -> None:
    stage.fleet.redis.restart(wipe=True)
    stage.ambiguous += ALL_SLOTS


def lasting(
    seconds: float,
    broken: Callable[[Stage], AbstractContextManager[object]],
    *,
    slots: int = ALL_SLOTS,
) -> Callable[[Stage], None]:
    """Return a fault that lasts: ``broken`` begins it, and its end repairs what it broke."""

    def strike(stage: Stage) -> None:
        with broken(stage):
            stage.hold(seconds)
        stage.ambiguous += slots

    return strike


redis_stale = lasting(4, lambda stage: injections.redis_of_before(stage.fleet.redis))
stopped_redis = lasting(12, lambda stage: injections.frozen(stage.fleet.redis.pid))
read_only_redis = lasting(10, lambda stage: injections.redis_read_only(stage.client))
full_disk_of_redis = lasting(8, lambda stage: injections.redis_cannot_save(stage.fleet.redis))
full_memory_of_redis = lasting(8, lambda stage: injections.redis_full(stage.client))


def slow_redis(stage: Stage) -> None:
    for _ in range(2):
        stage.client.client_pause(6_000, all=True)
        stage.hold(8)
    stage.ambiguous += ALL_SLOTS


def clock_of_redis_steps_back(stage: Stage) -> None:
    """Kill a worker meanwhile, so that what it held has leases of the future."""
    stage.kill(stage.luck.choice(stage.workers()))
    injections.step_redis_clock_back(stage.client, stage.queue)
    # the leases of the other worker, too, are of no time that can be believed
    stage.ambiguous += SLOTS


def strays(stage: Stage) -> None:
    """Send messages that no producer sends.

    All are set aside, and the documents behind them are answered."""
    client, job = stage.client, stage.job
    injections.send_strays(client, stage.queue, job.job_id, job.job_key)
    stage.hold(3)


# -- the database and the disk ---------------------------------------------------------------------


def database_away(stage: Stage) -> None:
    """Lock SQLite, or let PostgreSQL take no connections and end those that there are."""
    url = stage.fleet.database_url
    if injections.is_sqlite(url):
        with injections.sqlite_locked(url):
            stage.hold(12)
        stage.did.append("another process held the lock of SQLite for 12 s")
        return
    with injections.postgres_away(url) as cut:
        end = time.monotonic() + 8
        while time.monotonic() < end:
            cut()
            stage.hold(0.5)
    stage.ambiguous += ALL_SLOTS
    stage.did.append("PostgreSQL ended all connections and let none in for 8 s")


def read_only_disk(stage: Stage) -> None:
    """Kill a worker meanwhile, whose successor finds the disk so."""
    with injections.read_only(injections.sqlite_path(stage.fleet.database_url).parent):
        stage.kill(stage.luck.choice(stage.workers()))
        stage.hold(8)


def postgres_killed(stage: Stage) -> None:
    server = stage.fleet.postgres
    assert server is not None
    server.kill()
    try:
        stage.hold(stage.luck.uniform(1, 5))
    finally:
        server.start()
    stage.ambiguous += ALL_SLOTS


def connection_of_postgres_killed(stage: Stage) -> None:
    """Kill what serves one connection; PostgreSQL then ends all others and recovers."""
    server = stage.fleet.postgres
    assert server is not None
    for _ in range(3):
        until(server.backends, BEGIN_S, "the fleet has connections again")
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(stage.luck.choice(server.backends()), signal.SIGKILL)
        stage.hold(2)
    until(server.backends, BEGIN_S, "the fleet has connections again")
    stage.ambiguous += 3 * ALL_SLOTS


disk_full = lasting(8, lambda stage: injections.sqlite_without_room(stage.fleet.database_url))


# -- the net ---------------------------------------------------------------------------------------


def behind(what: str, way: Way, seconds: float, *, tries: int = 1) -> Callable[[Stage], None]:
    """Return a fault of the way to Redis, to the database or to the provider.

    Each of ``tries`` requests that a slot sends meanwhile may arrive after it, and be paid."""
    return lasting(seconds, lambda stage: stage.proxies[what].made(way), slots=tries * ALL_SLOTS)


def lost_answers(what: str, times: int) -> Callable[[Stage], None]:
    """Return a fault in which requests are carried out and their answers are lost.

    Connections break right after it, so that no client hears an answer to another question."""

    def strike(stage: Stage) -> None:
        for _ in range(times):
            with stage.proxies[what].made(Way.DEAF):
                stage.hold(0.5)
            stage.hold(1)
        stage.ambiguous += times * ALL_SLOTS

    return strike


# -- the bucket of the results ---------------------------------------------------------------------


def bucket_made(failing: Failing, seconds: float) -> Callable[[Stage], None]:
    """Return a fault of the bucket that the source comes from and the results go to."""

    def strike(stage: Stage) -> None:
        bucket = stage.fleet.bucket
        assert bucket is not None
        before = bucket.failed
        with bucket.made(failing):
            stage.hold(seconds)
        stage.did.append(f"{failing}: {bucket.failed - before} requests in {seconds:g} s")

    return strike


# -- the provider ----------------------------------------------------------------------------------


def answers(kinds: str, *, seconds: float = 4.0, share: float = 1.0) -> Callable[[Stage], None]:
    return lambda stage: stage.hostile(kinds, seconds, share)


def account_error(stage: Stage) -> None:
    stage.fleet.provider.tell(hostile="nul-account", hostile_share=1)
    try:
        stage.fleet.wait_for(stage.job, JobState.PAUSED, 30)
    finally:
        stage.fleet.provider.tell(hostile=None)


def provider_restart(stage: Stage) -> None:
    stage.fleet.provider.kill()
    stage.hold(4)
    start_provider(stage.fleet, stage.lane, stage.seed)
    stage.ambiguous += ALL_SLOTS


def bad_certificate(stage: Stage) -> None:
    """Let the provider's certificate run out; the screen says so while it lasts."""
    stage.fleet.provider.kill()
    start_provider(stage.fleet, stage.lane, stage.seed, "expired")
    stage.hold(12)
    if "certificate" not in (shown := stage.shown()):
        stage.problems.append(f"what fails is not said: {shown}")
    stage.fleet.provider.kill()
    start_provider(stage.fleet, stage.lane, stage.seed)
    stage.ambiguous += ALL_SLOTS


def batches(seconds: float, **controls: float) -> Callable[[Stage], None]:
    """Return a fault of the provider's batch API, by settings of the simulated provider."""

    def strike(stage: Stage) -> None:
        stage.fleet.provider.tell(**controls)
        try:
            stage.hold(seconds)
        finally:
            stage.fleet.provider.tell(**dict.fromkeys(controls, 0))

    return strike
