"""Opens the SQL database and Redis as the settings say."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import redis
from redis.exceptions import RedisError

from penstock_ledger import (
    POOL_SIZE,
    REDIS_CONNECT_TIMEOUT_S,
    REDIS_TIMEOUT_S,
    Database,
    Meta,
    RedisAddress,
    RedisLedger,
    in_words,
    open_database,
)
from penstock_workers.settings import WorkerSettings

__all__ = ["pool_sizes"]

log = logging.getLogger(__name__)

CONTROL_POOL = 2  # the control thread, and the one that writes a finished job's files


Part = Literal["worker", "control"]


@dataclass(frozen=True, slots=True)
class Stores:
    """The SQL database, which decides, and Redis, which is fast."""

    database: Database
    hot: RedisLedger
    redis: redis.Redis  # what ``hot`` is made of


def pool_sizes(settings: WorkerSettings) -> dict[Part, int]:
    """Return how many connections to PostgreSQL each part of a process has.

    For a process that hosts both parts; together they have ``database_pool``, when that is set."""
    whole = settings.database_pool
    if not settings.control:
        return {"worker": whole or POOL_SIZE}
    if whole is None:
        return {"worker": POOL_SIZE, "control": CONTROL_POOL}
    control = min(CONTROL_POOL, whole - 1)
    return {"worker": whole - control, "control": control}


@contextlib.contextmanager
def open_stores(settings: WorkerSettings, part: Part) -> Iterator[Stores]:
    """Open the connections of one part of a process, and close them at the end.

    Raises the database's errors, and RedisUnfit for a Redis that would lose work. A Redis that is
    down is waited for later.
    """
    database = open_database(
        settings.database_url,
        pool_size=pool_sizes(settings).get(part, CONTROL_POOL),
        waits=settings.database_waits,
        role=part,
    )
    client = RedisAddress.parse(settings.redis_url).connect(
        socket_timeout=REDIS_TIMEOUT_S,
        socket_connect_timeout=REDIS_CONNECT_TIMEOUT_S,
        socket_keepalive=True,
    )
    try:
        hot = RedisLedger(client, Meta(database).epoch())
        _refuse_unfit(hot)
        yield Stores(database, hot, client)
    finally:
        client.close()
        database.close()


def _refuse_unfit(hot: RedisLedger) -> None:
    try:
        hot.preflight()
    except RedisError as error:
        log.warning(
            "Redis could not be looked at (%s); make sure that its maxmemory-policy is noeviction: "
            "any other drops queued work",
            in_words(error),
        )
