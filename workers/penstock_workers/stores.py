"""Open the two sides of the ledger as the settings say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from penstock_ledger import Database, Meta, RedisLedger, open_database
from penstock_workers.settings import WorkerSettings

CONNECT_TIMEOUT_S = 5.0
REDIS_TIMEOUT_S = 15.0  # a silent Redis is an error that callers retry, never a thread that hangs


@dataclass(frozen=True, slots=True)
class Stores:
    """SQL, which is true, and Redis, which is fast."""

    database: Database
    hot: RedisLedger


@contextlib.contextmanager
def open_stores(settings: WorkerSettings) -> Iterator[Stores]:
    """Connections of one process, closed at the end. Raises the database's and Redis's own errors."""
    database = open_database(settings.database_url)
    tcp: dict[str, Any] = {} if settings.redis_url.startswith("unix:") else {"socket_keepalive": True}
    client = redis.Redis.from_url(
        settings.redis_url, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=CONNECT_TIMEOUT_S, **tcp
    )
    try:
        yield Stores(database, RedisLedger(client, Meta(database).epoch()))
    finally:
        client.close()
        database.close()
