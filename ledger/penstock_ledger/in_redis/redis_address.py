"""Redis has an address, clients for it, and checks of whether it is fit to be worked with.

This is the one reading of ``redis_url``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Self
from urllib.parse import parse_qsl, urlencode, urlunsplit

import redis
import redis.asyncio
from redis import sentinel
from redis.asyncio import sentinel as async_sentinel
from redis.connection import parse_url

from penstock_ledger.errors import RedisUnfit
from penstock_ledger.in_redis.batches import Memory
from penstock_ledger.redaction import is_secret_option, split_hosts

SERVER_SCHEMES: Final = ("redis", "rediss", "unix")
SENTINEL_SCHEMES: Final = ("sentinel", "sentinels")
REDIS_TIMEOUT_S: Final = 15.0
"""A call that waits longer for Redis is an error that its caller repeats: no script of Penstock
takes as long, and without a limit a server that is gone, and never says so, blocks its caller for
ever."""
REDIS_CONNECT_TIMEOUT_S: Final = 5.0
"""The same for a new connection, which a server that is there accepts in milliseconds."""
SENTINEL_PORT: Final = 26379
SENTINEL_TIMEOUT_S: Final = 2.0  # to connect to one, and for its answer; then the next one is asked
_OWN_OPTIONS: Final = ("service", "sentinel_username", "sentinel_password")


@dataclass(frozen=True)
class RedisAddress:
    """One server, or a service that Sentinels watch. Make one with ``parse``."""

    url: str = field(repr=False)  # holds passwords
    sentinels: tuple[tuple[str, int], ...] = ()
    service: str = ""
    sentinel_login: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read a ``redis_url``. Raises ValueError, which says what to write instead."""
        scheme = url.partition("://")[0]
        if scheme in SENTINEL_SCHEMES:
            return cls._of_sentinels(url)
        if "cluster" in scheme:
            raise ValueError(
                "Redis Cluster is not supported, because one step touches keys of several slots: "
                "give one server (redis://), or Sentinels "
                "(sentinel://host:26379,host2:26379/0?service=NAME)"
            )
        if scheme not in SERVER_SCHEMES or "://" not in url:
            known = " or ".join(f"{known}://" for known in (*SERVER_SCHEMES, *SENTINEL_SCHEMES))
            raise ValueError(f"start it with {known}")
        _read(url)
        return cls(url)

    @classmethod
    def _of_sentinels(cls, url: str) -> Self:
        parts = split_hosts(url)
        login, _, hosts = parts.netloc.rpartition("@")
        query = dict(parse_qsl(parts.query))
        if not query.get("service"):
            raise ValueError(
                "name the service that the Sentinels watch: "
                "sentinel://host:26379/0?service=mymaster"
            )
        sentinels = tuple(_host_and_port(host) for host in hosts.split(",") if host)
        if not sentinels:
            raise ValueError(
                "name at least one Sentinel: sentinel://host:26379,host2:26379/0?service=mymaster"
            )
        host, port = sentinels[0]
        rest = urlencode({name: value for name, value in query.items() if name not in _OWN_OPTIONS})
        netloc = (f"{login}@" if login else "") + (
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        )
        server = urlunsplit(
            ("rediss" if parts.scheme == "sentinels" else "redis", netloc, parts.path, rest, "")
        )
        _read(server)
        named = {
            "username": query.get("sentinel_username"),
            "password": query.get("sentinel_password"),
        }
        return cls(
            server,
            sentinels,
            query["service"],
            {name: value for name, value in named.items() if value},
        )

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Of a connection to a server, as redis-py names them.

        With Sentinels, host and port are theirs to tell."""
        defaults: dict[str, Any] = (
            {} if self.url.startswith("unix:") else {"host": "127.0.0.1", "port": 6379}
        )
        if self.over_tls:
            defaults["ssl_cert_reqs"] = "required"
        parameters = {"db": 0, **defaults, **_read(self.url)}
        parameters.pop("connection_class", None)
        for name in ("host", "port") if self.sentinels else ():
            parameters.pop(name)
        return parameters

    def __json__(self) -> str:
        """Return what Celery's `inspect` shows of an option that is one of these."""
        return repr(self)

    @property
    def over_tls(self) -> bool:
        return self.url.startswith("rediss:")

    def connect(self, **options: Any) -> redis.Redis:
        """Return a client that finds its server at first use, and the master after a failover.

        ``options`` are redis-py's.
        """
        if not self.sentinels:
            return redis.Redis.from_url(self.url, **self._fitting(options))
        client: redis.Redis = self._manager(sentinel).master_for(
            self.service, redis.Redis, SentinelPool, **self.parameters, **options, ssl=self.over_tls
        )
        return client

    def connect_async(self, **options: Any) -> redis.asyncio.Redis:
        """Return the same for asyncio."""
        if not self.sentinels:
            return redis.asyncio.Redis.from_url(self.url, **self._fitting(options))
        client: redis.asyncio.Redis = self._manager(async_sentinel).master_for(
            self.service,
            redis.asyncio.Redis,
            AsyncSentinelPool,
            **self.parameters,
            **options,
            ssl=self.over_tls,
        )
        return client

    def pool(
        self, connection_class: type[Any], parameters: Mapping[str, Any]
    ) -> redis.ConnectionPool:
        """Return a pool for a client that builds its own connections, as kombu does."""
        if not self.sentinels:
            return redis.ConnectionPool(connection_class=connection_class, **parameters)
        make: Any = SentinelPool
        pool: redis.ConnectionPool = make(
            self.service, self._manager(sentinel), connection_class=connection_class, **parameters
        )
        return pool

    @property
    def sentinel_parameters(self) -> dict[str, Any]:
        """Of a connection to a Sentinel."""
        tls = {name: value for name, value in self.parameters.items() if name.startswith("ssl_")}
        waits = {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
        return {**waits, **tls, **self.sentinel_login, "ssl": self.over_tls}

    def _manager(self, module: Any) -> Any:
        """Return the manager of redis-py's sync or async flavour, neither of which is typed."""
        return module.Sentinel(list(self.sentinels), sentinel_kwargs=self.sentinel_parameters)

    def _fitting(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a connection; a unix socket has no keepalive."""
        if self.url.startswith("unix:"):
            return {name: value for name, value in options.items() if name != "socket_keepalive"}
        return options


class SentinelPool(sentinel.SentinelConnectionPool):
    """Takes the connections to Sentinels with it when it is closed."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)
        self.sentinel_manager.close()


class AsyncSentinelPool(async_sentinel.SentinelConnectionPool):
    """Takes the connections to Sentinels with it when it is closed."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        for client in self.sentinel_manager.sentinels:
            await client.aclose()


def without_secrets(url: str) -> str:
    """Return an address fit to be printed: passwords become an ellipsis."""
    parts = split_hosts(url)
    login, at, hosts = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    query = parts.query
    if any(is_secret_option(name) for name, _ in parse_qsl(query)):
        query = "&".join(
            f"{name}={'…' if is_secret_option(name) else value}" for name, value in parse_qsl(query)
        )
    if not parts.netloc:  # a file: urlunsplit would drop two of the slashes of sqlite:////srv/p.db
        return url.replace(parts.query, query) if parts.query else url
    return urlunsplit(
        parts._replace(netloc=f"{user}{colon}{'…' if colon else ''}{at}{hosts}", query=query)
    )


def _read(url: str) -> dict[str, Any]:
    read: Any = parse_url  # redis-py has it untyped
    return dict(read(url))


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        return text.strip("[]"), SENTINEL_PORT
    if not host or not port.isdigit():
        raise ValueError(f"{text[:80]!r} is not the host:port of a Sentinel")
    return host.strip("[]"), int(port)


log = logging.getLogger(__name__)

# RPOP and LPOP with a count, GETEX, and scripts that may read the clock before they write
MIN_VERSION: Final = (6, 2)


def memory(client: redis.Redis) -> Memory:
    info = _info(client, "memory")
    return Memory(
        int(info["used_memory"]),
        int(info.get("maxmemory", 0)),
        str(info.get("maxmemory_policy", "noeviction")),
    )


def run_id(client: redis.Redis) -> str:
    """Return the name of one life of a server process.

    It is another one after every restart and every failover.
    """
    return str(_info(client, "server")["run_id"])


def check(client: redis.Redis) -> None:
    """Check that Redis is fit. Raises RedisUnfit with the fix.

    Only INFO is asked: managed services often forbid CONFIG.

    A value that the server does not report is a warning: only its operator can know it.
    """
    server = _info(client, "server")
    version = tuple(int(part) for part in str(server["redis_version"]).split(".")[:2])
    if version < MIN_VERSION:
        wanted = ".".join(map(str, MIN_VERSION))
        raise RedisUnfit(
            f"redis_version is {server['redis_version']}; use Redis {wanted} or newer, or Valkey"
        )
    if is_cluster(server):
        raise RedisUnfit(
            "redis_mode is cluster: one step touches keys of several slots; use one Redis with "
            "replicas"
        )
    memory_info = _info(client, "memory")
    if "maxmemory_policy" not in memory_info:
        log.warning(
            "Redis does not report its maxmemory-policy: make sure that it is noeviction, or a "
            "full one drops queued work"
        )
    elif int(memory_info.get("maxmemory", 0)) and memory_info["maxmemory_policy"] != "noeviction":
        raise RedisUnfit(
            f"maxmemory-policy is {memory_info['maxmemory_policy']}: a full Redis would drop "
            "queued work in silence; set it to noeviction (CONFIG SET maxmemory-policy noeviction, "
            "and in redis.conf or the service's parameter group)"
        )


def is_cluster(server: Mapping[str, Any]) -> bool:
    """Return whether the INFO of a server says that it is one of a cluster.

    Valkey calls the field by another name."""
    return "cluster" in (server.get("server_mode"), server.get("redis_mode"))


def _info(client: redis.Redis, section: str) -> dict[str, Any]:
    info: Any = client.info(section)  # redis-py types the sync and async client as one
    return dict(info)
