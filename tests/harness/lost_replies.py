"""A database whose commits happen, and whose answers to them are lost."""

from __future__ import annotations

import random
import re
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
import pytest
from redis import ConnectionError as RedisConnectionError
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.connection import AbstractConnection
from sqlalchemy import Double, Integer, LargeBinary, Table, select
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.types import BigInteger

from penstock_ledger import Database
from penstock_ledger.sql.tables import metadata

CUT = "server closed the connection unexpectedly"


class LostReplies:
    """Commits of one database, counted; some of their answers do not come."""

    def __init__(self, database: Database) -> None:
        self.commits = 0
        self._to_lose = 0
        self._dialect: Any = database.engine.dialect
        self._commit = self._dialect.do_commit

    @contextmanager
    def losing(self, number: int = 1) -> Iterator[LostReplies]:
        """Lose the answers to the next commits, so many of them."""
        self._to_lose = number
        self._dialect.do_commit = self._answered_or_not
        try:
            yield self
        finally:
            del self._dialect.do_commit

    def _answered_or_not(self, connection: Any) -> None:
        self._commit(connection)
        self.commits += 1
        if self._to_lose > 0:
            self._to_lose -= 1
            fail(self._dialect.name, connection)


def fail(dialect: str, connection: Any) -> None:
    """Fail as the driver does: psycopg's connection is gone, SQLite's file is there."""
    if dialect == "postgresql":
        connection.dbapi_connection.close()
        raise psycopg.OperationalError(CUT)
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    raise error


@contextmanager
def some_answers_lost(
    monkeypatch: pytest.MonkeyPatch, share: float, seed: int
) -> Iterator[list[int]]:
    """Lose such a share of answers to commits, whatever database of this process they are of.

    By chance, not each third one: a loop of three commits would never hear of the same one. Yields
    the numbers of the commits whose answers were lost."""
    numbers, lost, lock = count(1), list[int](), threading.Lock()
    chance = random.Random(seed)
    commit: Any = DefaultDialect.do_commit

    def do_commit(self: DefaultDialect, connection: Any) -> None:
        commit(self, connection)
        with lock:
            number = next(numbers)
            if chance.random() >= share:
                return
            lost.append(number)
        fail(self.name, connection)

    with monkeypatch.context() as patched:
        patched.setattr(DefaultDialect, "do_commit", do_commit)
        yield lost


# Columns with a number for each process, clock or chance, by table: only that there is one counts.
_CHANCE = {
    "api_keys": {"key_id", "digest"},
    "door_batches": {"fence"},
    "feeds": {"fence"},
    "meta": {"value"},
    "provider_batches": {"fence"},
    "shards": {"fence"},
    "spool": {"seq"},
    "webhook_deliveries": {"event_id", "payload"},
}
# Floats that are no clock's.
_PLANNED = {"next_at", "planned_at"}
# Tables that are counted up in one of several rows, whichever is free.
_IN_SHARDS = {"tallies", "lane_tallies", "spending"}


def everything(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Return what all tables hold, without what two runs of the same never share."""
    return {table.name: _rows(database, table) for table in metadata.sorted_tables}


def _rows(database: Database, table: Table) -> list[tuple[Any, ...]]:
    chance = _CHANCE.get(table.name, set())
    planned = _PLANNED if table.name in ("schedules", "firings") else set()

    def shown(name: str, kind: Any, value: Any) -> Any:
        is_clock = isinstance(kind, Double) and name not in planned
        if value is None or not (is_clock or name in chance):
            return bytes(value) if isinstance(kind, LargeBinary) and value is not None else value
        return "some"

    columns = [
        column for column in table.columns if column.name != "shard" or table.name == "shards"
    ]
    rows = [
        tuple(
            shown(column.name, column.type, value)
            for column, value in zip(columns, row, strict=True)
        )
        for row in database.rows(select(*columns))
    ]
    if table.name in _IN_SHARDS:
        rows = _added_up(columns, rows)
    return sorted(rows, key=repr)


def _added_up(columns: list[Any], rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    figures = [
        isinstance(column.type, BigInteger | Integer) and column.name != "generation"
        for column in columns
    ]
    sums: defaultdict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0] * sum(figures))
    for row in rows:
        key = tuple(value for value, is_figure in zip(row, figures, strict=True) if not is_figure)
        new = [value for value, is_figure in zip(row, figures, strict=True) if is_figure]
        sums[key] = [one + more for one, more in zip(sums[key], new, strict=True)]
    return [(*key, *numbers) for key, numbers in sums.items()]


class LostRedisReplies:
    """Answers of Redis to the clients of this process, counted; one does not come, though all was
    done."""

    def __init__(self) -> None:
        self.answers = 0

    @contextmanager
    def losing(self, place: int) -> Iterator[LostRedisReplies]:
        """Lose the answer with this number, counted from 0, of whatever client."""
        read, ask = AbstractConnection.read_response, AsyncConnection.read_response

        def is_lost() -> bool:
            self.answers += 1
            return self.answers == place + 1

        def read_response(connection: Any, *given: Any, **options: Any) -> Any:
            answer = read(connection, *given, **options)
            if is_lost():
                connection.disconnect()
                raise RedisConnectionError(CUT)
            return answer

        async def ask_response(connection: Any, *given: Any, **options: Any) -> Any:
            answer = await ask(connection, *given, **options)
            if is_lost():
                await connection.disconnect(nowait=True)
                raise RedisConnectionError(CUT)
            return answer

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(AbstractConnection, "read_response", read_response)
            patched.setattr(AsyncConnection, "read_response", ask_response)
            yield self


def all_keys(client: Any) -> dict[str, Any]:
    """Return what Redis holds, without what two runs of the same never share: clocks.

    Of each key also whether it expires."""
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"string": client.get,
        b"hash": lambda name: sorted(client.hgetall(name).items()),
        b"list": lambda name: client.lrange(name, 0, -1),
        b"set": lambda name: sorted(client.smembers(name)),
        b"zset": lambda name: client.zrange(name, 0, -1, withscores=True),
    }
    return {
        name.decode(): without_clocks((read[client.type(name)](name), client.ttl(name) >= 0))
        for name in client.scan_iter()
    }


def without_clocks(value: object) -> str:
    """Return a value as text, but for the times in it."""
    return _CLOCKS.sub("some", repr(value))


_CLOCKS = re.compile(r"\d{10,}(?:\.\d+)?")
