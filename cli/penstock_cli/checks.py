"""The checks of `penstock doctor`. Each yields findings and raises nothing: a check that fails is itself a finding."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_cli.connect import without_password
from penstock_cli.errors import CliError
from penstock_cli.failures import message
from penstock_cli.text import safe

if TYPE_CHECKING:
    import redis

    from penstock_ledger import Database, RedisAddress
    from penstock_workers.settings import ProviderSettings

MINIMUM_PYTHON = (3, 11)
MAX_CLOCK_SKEW_S = 5.0  # leases are judged by Redis's clock; a worker this far off reports nonsense times
LOW_DISK_BYTES = 1_000_000_000  # a job of 100,000 documents with 10 kB answers fills this
REDIS_TIMEOUT_S = 5.0


class Verdict(StrEnum):
    GOOD = "ok"
    WARNING = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    verdict: Verdict
    subject: str
    seen: str
    fix: str = ""


def examine(state: Path | None, *, knock: bool, migrate: bool = False) -> Iterator[Finding]:
    """All checks, in the order in which to mend what they find. ``migrate`` mends the tables on the way."""
    yield _python()
    yield _embedded()
    try:
        redis_url, database_url, broker_url, providers = _configuration(state)
    except Exception as error:
        yield Finding(Verdict.BAD, "settings", safe(message(error)))
        return
    yield from _database(database_url, migrate=migrate)
    if redis_url is None:
        yield Finding(Verdict.GOOD, "redis", "the private Redis is not running; `penstock run` starts it")
    else:
        yield from _redis(redis_url, private=state is not None)
    if broker_url is not None:
        yield from _rabbitmq(broker_url)
    yield _disk(state)
    if knock:
        for name, provider in providers.items():
            if _is_configured(provider):
                yield _provider(name, provider)


def _configuration(state: Path | None) -> tuple[str | None, str, str | None, dict[str, ProviderSettings]]:
    """URLs of Redis, of the database and of RabbitMQ, where there is one; and the providers."""
    from penstock_cli.embedded import EmbeddedRedis
    from penstock_cli.state import StateFolder
    from penstock_workers.settings import WorkerSettings

    settings = WorkerSettings.load()
    if state is None:
        return settings.redis_url, settings.database_url, settings.broker_url, settings.providers
    folder = StateFolder.existing(state)
    running = EmbeddedRedis.find(folder.redis)
    return running.endpoint.redis_url if running else None, folder.database_url, None, settings.providers


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= MINIMUM_PYTHON:
        return Finding(Verdict.GOOD, "python", version)
    return Finding(Verdict.BAD, "python", version, "install Python 3.11 or newer")


def _embedded() -> Finding:
    from penstock_cli.redis_binary import find_binary

    try:
        return Finding(Verdict.GOOD, "run", f"`penstock run` would start {find_binary()}")
    except CliError as error:
        return Finding(Verdict.WARNING, "run", str(error))


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
    finally:
        database.close()


def _tables(database: Database, shown: str, *, migrate: bool) -> Finding:
    from penstock_ledger import JobStore
    from penstock_ledger.errors import SchemaMissing

    try:
        if migrate:
            database.migrate()
        JobStore(database).list(limit=1)
    except SchemaMissing as error:
        fix = "`penstock migrate` creates or upgrades the tables"
        return Finding(Verdict.BAD, "database", f"{shown}: {safe(str(error).partition(':')[0])}", fix)
    except Exception as error:
        return Finding(
            Verdict.BAD, "database", f"{shown}: {safe(message(error))}", "check that it runs and is reachable"
        )
    return Finding(Verdict.GOOD, "database", f"{shown} answers and has its tables")


def _connections(database: Database) -> Iterator[Finding]:
    """Whether another worker with these settings would find room."""
    from penstock_workers.settings import WorkerSettings
    from penstock_workers.stores import pool_sizes

    try:
        found = database.connections()
    except Exception as error:
        yield Finding(Verdict.WARNING, "pool", safe(message(error)), "pg_stat_activity must be readable to count them")
        return
    if found is None:
        return
    each = sum(pool_sizes(WorkerSettings.load()).values())
    room = max(0, found.limit - found.used) // each
    seen = f"{found.used} of {found.limit} connections in use, {found.ours} by Penstock; a worker opens up to {each}"
    if room:
        yield Finding(Verdict.GOOD, "pool", f"{seen}: room for {room} more")
        return
    fix = "raise max_connections, put PgBouncer in front, or lower database_pool (PENSTOCK_DATABASE_POOL)"
    yield Finding(Verdict.BAD, "pool", seen, fix)


def _redis(url: str, *, private: bool) -> Iterator[Finding]:
    import redis

    from penstock_ledger import RedisAddress

    address = RedisAddress.parse(url)
    client = address.connect(
        socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S, decode_responses=True
    )
    try:
        if address.sentinels:
            yield from _sentinels(address)
        info: Any = client.info()
        yield Finding(Verdict.GOOD, "redis", f"{without_password(url)} answers, version {info['redis_version']}")
        yield _redis_version(str(info["redis_version"]))
        if info.get("redis_mode") == "cluster":
            yield Finding(Verdict.BAD, "mode", "cluster", "use one Redis with replicas: a step touches several slots")
        yield _eviction(info)
        yield _durability(info)
        yield _clock(client)
    except (redis.RedisError, OSError) as error:  # such as a certificate that is not there
        fix = "start it, or set redis_url (PENSTOCK_REDIS_URL)" if not private else "repeat the `penstock run` command"
        yield Finding(Verdict.BAD, "redis", f"{without_password(url)}: {safe(str(error))}", fix)
    finally:
        client.close()


def _rabbitmq(url: str) -> Iterator[Finding]:
    from penstock_cli.broker_check import rabbitmq

    return rabbitmq(url)


def _sentinels(address: RedisAddress) -> Iterator[Finding]:
    """What the Sentinels know. One that does not answer is named: a failover needs most of them."""
    import redis

    known: list[dict[str, Any]] = []
    for host, port in address.sentinels:
        try:
            with redis.Redis(host=host, port=port, **address.sentinel_parameters) as sentinel:
                services: Any = sentinel.sentinel_masters()
        except (redis.RedisError, OSError) as error:
            fix = "start it, or leave it out of redis_url; sentinel_password is what it asks for, if it does"
            yield Finding(Verdict.WARNING, "sentinel", f"{host}:{port}: {safe(str(error))}", fix)
            continue
        if address.service in services:
            known.append(services[address.service])
            continue
        seen = f"{host}:{port} watches no {safe(address.service)!r}, only {', '.join(services) or 'nothing'}"
        yield Finding(Verdict.BAD, "sentinel", seen, "correct ?service= in redis_url")
    if known:
        yield _master(address, len(known), known[0])


def _master(address: RedisAddress, answers: int, state: dict[str, Any]) -> Finding:
    replicas, quorum = int(state["num-slaves"]), int(state["quorum"])
    seen = (
        f"{answers} of {len(address.sentinels)} answer; {safe(address.service)!r} is {state['ip']}:{state['port']}, "
        f"{replicas} replicas, quorum {quorum}"
    )
    if replicas:
        return Finding(Verdict.GOOD, "sentinel", seen)
    return Finding(Verdict.WARNING, "sentinel", seen, "add a replica: there is nobody to fail over to")


def _redis_version(version: str) -> Finding:
    from penstock_cli.redis_binary import MINIMUM_VERSION

    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    wanted = ".".join(map(str, MINIMUM_VERSION))
    if parts >= MINIMUM_VERSION:
        return Finding(Verdict.GOOD, "version", f"{version}, at least {wanted}")
    return Finding(Verdict.BAD, "version", f"{version} is too old", f"upgrade Redis to {wanted} or newer")


def _eviction(info: dict[str, Any]) -> Finding:
    policy, limit = str(info.get("maxmemory_policy", "?")), int(info.get("maxmemory", 0))
    if policy == "noeviction" or limit == 0:
        return Finding(Verdict.GOOD, "eviction", f"{policy}, maxmemory {limit or 'unlimited'}")
    fix = "CONFIG SET maxmemory-policy noeviction, and in redis.conf: with any other policy Redis drops queue data"
    return Finding(Verdict.BAD, "eviction", f"{policy} with maxmemory {limit}", fix)


def _durability(info: dict[str, Any]) -> Finding:
    if int(info.get("aof_enabled", 0)):
        return Finding(Verdict.GOOD, "aof", "on")
    fix = "appendonly yes saves the rebuild after a restart; nothing is lost without it, since SQL holds what is true"
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
    return Finding(Verdict.WARNING, "disk", seen, "make room: results, the queue's log and outputs are written here")


def _is_configured(provider: ProviderSettings) -> bool:
    """Nobody has chosen a provider that is all defaults."""
    from penstock_workers.settings import ProviderSettings

    return provider != ProviderSettings()


def _provider(name: str, provider: ProviderSettings) -> Finding:
    from penstock_cli.reach import knock
    from penstock_cli.settings import variable_is_set

    subject = "provider"
    if provider.api_key_env is not None and not variable_is_set(provider.api_key_env):
        return Finding(
            Verdict.BAD, subject, f"{name}: {provider.api_key_env} is not set", f"export {provider.api_key_env}=…"
        )
    try:
        knock(provider.base_url)
    except CliError as error:
        return Finding(Verdict.WARNING, subject, f"{name}: {safe(str(error))}")
    return Finding(Verdict.GOOD, subject, f"{name}: {provider.base_url} accepts connections")
