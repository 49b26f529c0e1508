"""`penstock chaos` breaks things in an arena: a fleet of its own, or your Redis and database.

Between the processes and every server is a proxy. What this place lacks, and so cannot be
tried, is in ``Arena.lacks`` with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from penstock_cli.chaos import injections
from penstock_cli.chaos.bucket import Bucket
from penstock_cli.chaos.fleet import Fleet
from penstock_cli.chaos.processes import Guard
from penstock_cli.chaos.proxy import Proxy
from penstock_cli.chaos.servers import OwnPostgres, OwnRedis, RedisStore, TheirRedis
from penstock_cli.chaos.stage import AUTHORITY, HOOKS, Fault
from penstock_cli.errors import UsageProblem

DISK_MB = 96  # for the ledger of a few hundred small jobs
DISK = "disk"  # the guard unmounts it by this name
POSTGRES_PORT, REDIS_PORT = 5432, 6379


@dataclass(frozen=True)
class Arena:
    """A fleet, the proxies around it, and what cannot be tried on it."""

    fleet: Fleet
    proxies: Mapping[str, Proxy]
    lacks: Mapping[str, str]  # a need of faults -> why this place does not have it

    def why_not(self, fault: Fault) -> str | None:
        """Return why a fault cannot be tried here."""
        return next((self.lacks[need] for need in sorted(fault.needs) if need in self.lacks), None)


@contextmanager
def arena(
    folder: Path,
    *,
    temporary: bool,
    redis_url: str | None,
    database_url: str | None,
    postgres: bool,
) -> Iterator[Arena]:
    """Start everything but the provider and the workers; end all of it with the block.

    Raises UsageProblem for a server that cannot be taken, or not be started.
    """
    lacks: dict[str, str] = {}
    with ExitStack() as exits:
        guard = Guard()
        exits.callback(guard.close)
        if temporary:
            guard.remove(folder)
        store: RedisStore
        if redis_url is None:
            own = OwnRedis(folder / "redis", guard.watch)
            exits.callback(own.stop)
            socket = own.server.endpoint.socket
            store, behind = own, socket or ("127.0.0.1", own.server.endpoint.port)
        else:
            store, behind = _theirs(redis_url), _address(redis_url, REDIS_PORT)
            lacks["own Redis"] = "the Redis is yours: only what can be done from outside"
        server = OwnPostgres(guard) if postgres else None
        if server is not None:
            exits.callback(server.stop)
            server.create()
            database_url = server.url
        else:
            lacks["own PostgreSQL"] = "no PostgreSQL of chaos's own: give --postgres"
        if database_url is None:
            database_url = f"sqlite:///{_ledgers_place(folder, exits, lacks)}/ledger.db"
        else:
            lacks["own disk"] = "the database has no disk that chaos may break"
        if find_spec("boto3") is None:
            bucket = None
            lacks["bucket"] = "needs boto3: `pip install penstock[s3]`"
        else:
            bucket = exits.enter_context(Bucket())
        proxies = {"redis": exits.enter_context(Proxy(behind))}
        fleet = Fleet(
            folder,
            store,
            guard,
            database_url=database_url,
            postgres=server,
            bucket=bucket,
            settings=(settings := {"hook_modules": json.dumps([HOOKS])}),
            variables={"SSL_CERT_FILE": str(folder / AUTHORITY)},
        )
        proxies["provider"] = exits.enter_context(Proxy(("127.0.0.1", fleet.provider.port)))
        settings["redis_url"] = _through(store.url, proxies["redis"])
        settings["providers__default__base_url"] = (
            f"https://127.0.0.1:{proxies['provider'].port}/v1"
        )
        if injections.is_sqlite(database_url):
            lacks["PostgreSQL"] = "the ledger is SQLite: give --postgres or --database-url"
        else:
            proxies["sql"] = exits.enter_context(Proxy(_address(database_url, POSTGRES_PORT)))
            settings["database_url"] = _through(database_url, proxies["sql"])
        exits.enter_context(fleet)
        yield Arena(fleet, proxies, lacks)


def _ledgers_place(folder: Path, exits: ExitStack, lacks: dict[str, str]) -> Path:
    """Return a folder for the ledger, on a small disk of its own where one may be mounted."""
    try:
        return exits.enter_context(injections.small_disk(folder / DISK, DISK_MB))
    except injections.CannotBreak as error:
        lacks["own disk"] = str(error)
        return folder


def _theirs(redis_url: str) -> TheirRedis:
    """Return their Redis, on which no worker may be at work: our jobs are for our workers."""
    import redis

    from penstock_ledger import RedisLedger

    store = TheirRedis(redis_url)
    try:
        workers = RedisLedger(store.client(), "").workers()
    except (redis.RedisError, ValueError) as error:
        raise UsageProblem(f"--redis-url: no Redis answers there: {error}") from error
    if workers:
        raise UsageProblem(
            f"--redis-url: {len(workers)} workers take items from this Redis, the first is "
            f"{workers[0].name}. They would send chaos's documents to your provider: stop them "
            "first, or leave --redis-url out for a Redis of its own"
        )
    return store


def _address(url: str, port: int) -> str | tuple[str, int]:
    """Return where a server listens: a host and a port, or the path of PostgreSQL's socket."""
    parts = urlsplit(url)
    if parts.hostname:
        return parts.hostname, parts.port or port
    if "postgres" in parts.scheme:
        folder = injections.sync_url(url).query.get("host", "/var/run/postgresql")
        return f"{folder}/.s.PGSQL.{parts.port or port}"
    raise UsageProblem(f"--redis-url: {url!r} names no host")


def _through(url: str, proxy: Proxy) -> str:
    """Return the address of a server as our processes get it: by way of the proxy."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"redis://127.0.0.1:{proxy.port}/0"
    who, at, _ = parts.netloc.rpartition("@")
    query = "" if "host=" in parts.query else parts.query
    return urlunsplit(parts._replace(netloc=f"{who}{at}127.0.0.1:{proxy.port}", query=query))
