"""The checks of `penstock doctor`.

Each yields findings and raises nothing: a check that fails is itself a finding."""

from __future__ import annotations

import errno
import shutil
import sys
import time
from collections.abc import Collection, Iterator
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_cli.connect import refuse_without_database, without_password
from penstock_cli.doctor.worker import REDIS_TIMEOUT_S, Finding, Verdict
from penstock_cli.errors import CliError
from penstock_cli.failures import message
from penstock_ledger.redaction import redact
from penstock_producer.reporting.text import safe

if TYPE_CHECKING:
    import redis

    from penstock_cli.doctor.fleet import AskedLane
    from penstock_ledger import Database, RedisAddress
    from penstock_workers.settings import WorkerSettings

MINIMUM_PYTHON = (3, 11)
# leases are counted by Redis's clock; a worker this far off reports nonsense times
MAX_CLOCK_SKEW_S = 5.0
LOW_DISK_BYTES = 1_000_000_000  # a job of 100,000 documents with 10 kB answers fills this


def examine(
    state: Path | None,
    *,
    knock: bool,
    migrate: bool = False,
    accept: Collection[str] = (),
    lane: AskedLane | None = None,
) -> Iterator[Finding]:
    """Yield the findings of all checks, in the order in which to repair them.

    ``migrate`` brings the tables up to date on the way.

    What is found bad of a subject in ``accept`` is a warning. With ``lane`` this machine is looked
    at as one that a worker of it is to run on. No finding shows a secret.
    """
    for found in _examine(state, knock=knock, migrate=migrate, lane=lane):
        verdict = (
            Verdict.WARNING
            if found.verdict is Verdict.BAD and found.subject in accept
            else found.verdict
        )
        yield Finding(verdict, found.subject, redact(found.seen), redact(found.fix))


def _examine(
    state: Path | None, *, knock: bool, migrate: bool, lane: AskedLane | None = None
) -> Iterator[Finding]:
    yield _python()
    yield _embedded()
    try:
        settings, redis_url, database_url, broker_url = _configuration(state)
    except Exception as error:
        yield Finding(Verdict.BAD, "settings", safe(message(error)))
        return
    yield Finding(Verdict.GOOD, "loop", _loop(wanted=settings.uvloop))
    try:
        if state is None and not migrate:
            refuse_without_database(settings)  # looking must not create a file
        yield from _database(database_url, migrate=migrate)
    except CliError as error:
        yield Finding(Verdict.BAD, "database", safe(str(error)))
    if redis_url is None:
        yield Finding(
            Verdict.GOOD, "redis", "the private Redis is not running; `penstock run` starts it"
        )
    else:
        yield from _redis(redis_url, private=state is not None)
        yield from _models(redis_url, database_url)
    if broker_url is not None:
        yield from _rabbitmq(broker_url)
    yield _disk(state)
    if settings.results_url is not None and state is None:
        yield _results(settings.results_url, settings.s3_endpoint_url, parts=settings.writes_parts)
    if lane is None:
        yield from _lanes(settings, knock=knock)
    else:
        yield from _inspected(lane)


def _lanes(settings: WorkerSettings, *, knock: bool) -> Iterator[Finding]:
    """Yield what the settings of lanes name.

    Mostly warnings: their workers may run on other machines than the doctor."""
    from penstock_workers.lanes.registry import REGISTRY

    for row in REGISTRY.values():
        for found in () if row.check is None else row.check(settings, knock=knock):
            verdict = (
                Verdict.GOOD if found.is_good else Verdict.BAD if found.stops else Verdict.WARNING
            )
            yield Finding(verdict, found.subject or row.name, safe(found.seen), safe(found.fix))


def _inspected(lane: AskedLane) -> Iterator[Finding]:
    from penstock_cli.doctor.fleet import inspect

    return inspect(lane)


def _configuration(state: Path | None) -> tuple[WorkerSettings, str | None, str, str | None]:
    """Return the settings, and the URLs of Redis, of the database and of RabbitMQ, if any."""
    from penstock_cli.redis_server import EmbeddedRedis
    from penstock_cli.state import StateFolder
    from penstock_workers.settings import WorkerSettings

    settings = WorkerSettings.load()
    if state is None:
        return settings, settings.redis_url, settings.database_url, settings.broker_url
    folder = StateFolder.existing(state)
    running = EmbeddedRedis.find(folder.redis)
    return settings, running.endpoint.redis_url if running else None, folder.database_url, None


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= MINIMUM_PYTHON:
        return Finding(Verdict.GOOD, "python", version)
    return Finding(Verdict.BAD, "python", version, "install Python 3.11 or newer")


def _loop(*, wanted: bool) -> str:
    """Return which event loop the items of a worker run on."""
    if not wanted:
        return "items run on asyncio's own loop: uvloop = false"
    if util.find_spec("uvloop") is None:
        return "items run on asyncio's own loop: uvloop is not installed"
    return f"items run on uvloop {metadata.version('uvloop')}"


def _embedded() -> Finding:
    from penstock_cli.server_versions import find_program

    try:
        program = find_program()
    except CliError as error:
        return Finding(Verdict.WARNING, "run", str(error))
    seen = f"`penstock run` would start {program.path}, {program.software}"
    if program.is_patched:
        return Finding(Verdict.GOOD, "run", seen)
    fix = (
        "only its own user reaches it there; all the same: upgrade to "
        f"{program.software.wanted()}, or pip install 'penstock[embedded]'"
    )
    return Finding(Verdict.WARNING, "run", f"{seen}, which has known security holes", fix)


def _database(url: str, *, migrate: bool) -> Iterator[Finding]:
    from penstock_ledger import open_database

    shown = without_password(url)
    try:
        database = open_database(url)
    except Exception as error:
        yield Finding(Verdict.BAD, "database", f"{shown}: {safe(message(error))}")
        return
    try:
        tables = _tables(database, shown, migrate=migrate)
        yield tables
        if tables.verdict is Verdict.GOOD:
            yield from _connections(database)
            yield from _postgres_safety(database)
    finally:
        database.close()


def _tables(database: Database, shown: str, *, migrate: bool) -> Finding:
    from penstock_ledger import JobStore
    from penstock_ledger.errors import SchemaMissing, TablesInUse

    try:
        if migrate:
            database.migrate()
        JobStore(database).list(limit=1)
    except SchemaMissing as error:
        fix = "`penstock migrate` creates or upgrades the tables"
        return Finding(
            Verdict.BAD, "database", f"{shown}: {safe(str(error).partition(':')[0])}", fix
        )
    except TablesInUse as error:
        fix = (
            "repeat it once those have ended, or end them: SELECT pg_terminate_backend(PID); jobs "
            "go on as before"
        )
        return Finding(
            Verdict.BAD, "database", f"{shown}: its tables were not changed: {safe(error.why)}", fix
        )
    except Exception as error:
        from penstock_cli.doctor.safety import database_fix

        said = safe(_what_it_said(error))
        return Finding(Verdict.BAD, "database", f"{shown}: {said}", database_fix(said))
    return Finding(Verdict.GOOD, "database", f"{shown} answers and has its tables")


def _what_it_said(error: Exception) -> str:
    """Return the server's own words, where the driver has wrapped them."""
    inner = getattr(error, "orig", None)
    return " ".join(str(inner).split()) if inner is not None else message(error)


def _postgres_safety(database: Database) -> Iterator[Finding]:
    from penstock_cli.doctor.safety import postgres_safety

    try:
        yield from postgres_safety(database)
    except Exception as error:
        yield Finding(
            Verdict.WARNING,
            "postgresql",
            safe(_what_it_said(error)),
            "pg_stat_ssl must be readable for this check",
        )


def _results(url: str, s3_endpoint_url: str | None, *, parts: bool = False) -> Finding:
    """Find out now whether the files of finished jobs can be written there."""
    from penstock_producer.errors import SinkError
    from penstock_producer.outputs import probe_sink
    from penstock_producer.storage import probe_parts

    shown, more = without_password(url), ""
    try:
        probe_sink(url, s3_endpoint_url=s3_endpoint_url)
        if parts:
            conditional = "with" if probe_parts(url, s3_endpoint_url=s3_endpoint_url) else "without"
            more = f", read, listed and deleted in, {conditional} conditional writes"
    except SinkError as error:
        # as in a container that only reads it, or lacks it
        if getattr(error.__cause__, "errno", None) == errno.EROFS:
            fix = "control processes write there: run `penstock doctor` beside one of them, too"
            return Finding(Verdict.WARNING, "results", f"{shown} is read-only here", fix)
        fix = "correct results_url (PENSTOCK_RESULTS_URL); control processes write there"
        return Finding(Verdict.BAD, "results", safe(str(error)), fix)
    return Finding(Verdict.GOOD, "results", f"{shown} can be written{more}")


def _connections(database: Database) -> Iterator[Finding]:
    """Yield whether another worker with these settings would find room."""
    from penstock_workers.settings import WorkerSettings
    from penstock_workers.stores import pool_sizes

    try:
        found = database.connections()
    except Exception as error:
        yield Finding(
            Verdict.WARNING,
            "pool",
            safe(message(error)),
            "pg_stat_activity must be readable to count them",
        )
        return
    if found is None:
        return
    each = sum(pool_sizes(WorkerSettings.load()).values())
    room = max(0, found.limit - found.used) // each
    seen = (
        f"{found.used} of {found.limit} connections in use, {found.by_penstock} by Penstock; a "
        f"worker opens up to {each}"
    )
    if room:
        yield Finding(Verdict.GOOD, "pool", f"{seen}: room for {room} more")
        return
    fix = (
        "raise max_connections, put PgBouncer in front, or lower database_pool "
        "(PENSTOCK_DATABASE_POOL)"
    )
    yield Finding(Verdict.BAD, "pool", seen, fix)


def _redis(url: str, *, private: bool) -> Iterator[Finding]:
    import redis

    from penstock_cli.doctor.safety import REDIS_FIXES, fix_for, redis_safety
    from penstock_cli.server_versions import MINIMUM_VERSION, of_redis
    from penstock_ledger import RedisAddress, is_cluster

    address = RedisAddress.parse(url)
    client = address.connect(
        socket_timeout=REDIS_TIMEOUT_S,
        socket_connect_timeout=REDIS_TIMEOUT_S,
        decode_responses=True,
    )
    try:
        if address.sentinels:
            yield from _sentinels(address)
        info: Any = client.info()
        yield Finding(Verdict.GOOD, "redis", f"{without_password(url)} answers, {of_redis(info)}")
        if of_redis(info).version < MINIMUM_VERSION:
            yield _too_old(str(of_redis(info)))
        yield from redis_safety(address, info)
        if is_cluster(info):
            yield Finding(
                Verdict.BAD,
                "mode",
                "cluster",
                "use one Redis with replicas: a step touches several slots",
            )
        yield _eviction(info)
        yield _durability(info)
        yield _clock(client)
    except (redis.RedisError, OSError) as error:  # such as a certificate that is not there
        fix = (
            "start it, or set redis_url (PENSTOCK_REDIS_URL)"
            if not private
            else "repeat the `penstock run` command"
        )
        said = safe(str(error))
        yield Finding(
            Verdict.BAD,
            "redis",
            f"{without_password(url)}: {said}",
            fix_for(said, REDIS_FIXES, fix),
        )
    finally:
        client.close()


def _models(redis_url: str, database_url: str) -> Iterator[Finding]:
    from penstock_cli.doctor.fleet import models

    return models(redis_url, database_url)


def _rabbitmq(url: str) -> Iterator[Finding]:
    from penstock_cli.doctor.fleet import rabbitmq
    from penstock_cli.doctor.safety import amqp_safety

    yield from rabbitmq(url)
    yield from amqp_safety(url)


def _sentinels(address: RedisAddress) -> Iterator[Finding]:
    """Yield what the Sentinels know.

    One that does not answer is named: a failover needs most of them.
    """
    import redis

    known: list[dict[str, Any]] = []
    for host, port in address.sentinels:
        try:
            with redis.Redis(host=host, port=port, **address.sentinel_parameters) as sentinel:
                services: Any = sentinel.sentinel_masters()
        except (redis.RedisError, OSError) as error:
            fix = (
                "start it, or leave it out of redis_url; sentinel_password is what it asks for, if "
                "it does"
            )
            yield Finding(Verdict.WARNING, "sentinel", f"{host}:{port}: {safe(str(error))}", fix)
            continue
        if address.service in services:
            known.append(services[address.service])
            continue
        seen = (
            f"{host}:{port} watches no {safe(address.service)!r}, only "
            f"{', '.join(services) or 'nothing'}"
        )
        yield Finding(Verdict.BAD, "sentinel", seen, "correct ?service= in redis_url")
    if known:
        yield _master(address, len(known), known[0])


def _master(address: RedisAddress, answers: int, state: dict[str, Any]) -> Finding:
    replicas, quorum = int(state["num-slaves"]), int(state["quorum"])
    seen = (
        f"{answers} of {len(address.sentinels)} answer; {safe(address.service)!r} is "
        f"{state['ip']}:{state['port']}, {replicas} replicas, quorum {quorum}"
    )
    if replicas:
        return Finding(Verdict.GOOD, "sentinel", seen)
    return Finding(
        Verdict.WARNING,
        "sentinel",
        seen,
        "add a replica: without one there is nothing to fail over to",
    )


def _too_old(seen: str) -> Finding:
    from penstock_cli.server_versions import MINIMUM_VERSION

    fix = f"upgrade to Redis {'.'.join(map(str, MINIMUM_VERSION))} or newer, or Valkey"
    return Finding(Verdict.BAD, "version", f"{seen} lacks commands that we need", fix)


def _eviction(info: dict[str, Any]) -> Finding:
    policy, limit = str(info.get("maxmemory_policy", "?")), int(info.get("maxmemory", 0))
    if policy == "noeviction" or limit == 0:
        return Finding(Verdict.GOOD, "eviction", f"{policy}, maxmemory {limit or 'unlimited'}")
    fix = (
        "CONFIG SET maxmemory-policy noeviction, and in redis.conf: with any other policy Redis "
        "drops queue data"
    )
    return Finding(Verdict.BAD, "eviction", f"{policy} with maxmemory {limit}", fix)


def _durability(info: dict[str, Any]) -> Finding:
    if int(info.get("aof_enabled", 0)):
        return Finding(Verdict.GOOD, "aof", "on")
    fix = (
        "appendonly yes saves the rebuild after a restart; nothing is lost without it, since SQL "
        "holds what is true"
    )
    return Finding(Verdict.WARNING, "aof", "off", fix)


def _clock(client: redis.Redis) -> Finding:
    before = time.time()
    seconds, micros = client.time()
    skew = int(seconds) + int(micros) / 1e6 - (before + time.time()) / 2
    seen = f"Redis is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine"
    if abs(skew) <= MAX_CLOCK_SKEW_S:
        return Finding(Verdict.GOOD, "clock", seen)
    return Finding(Verdict.BAD, "clock", seen, "let NTP set both clocks (timedatectl set-ntp true)")


def _disk(state: Path | None) -> Finding:
    folder = state if state is not None else Path.cwd()
    free = shutil.disk_usage(folder).free
    seen = f"{free / 1e9:,.1f} GB free in {folder}"
    if free >= LOW_DISK_BYTES:
        return Finding(Verdict.GOOD, "disk", seen)
    return Finding(
        Verdict.WARNING,
        "disk",
        seen,
        "make room: results, the queue's log and outputs are written here",
    )
