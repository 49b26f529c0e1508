"""Where calls to SQL and Redis stop, and where both read the world's clock.

Redis has the world's time by a few lines before each script: `TIME` is a key that the world writes,
and keys that expire are kept in a list with their times, and deleted by the world when these have
come. A server that was restarted or restored has another run id.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from types import FrameType
from typing import Any, Final

import redis
import redis.client
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry
from servers import RedisServer
from sqlalchemy import URL, Connection, Engine, event

from explore.scheduler import Call, Fate, Killed, Violation, current_actor
from explore.virtual import Entered, Local, server_time
from penstock_ledger.errors import DatabaseUnavailable
from penstock_ledger.sql import database as database_module
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.postgres import Waits
from penstock_ledger.sql.sqlite_file import CACHE_KIB

NOW: Final = "explore:now"
EXPIRES: Final = "explore:expires"
PRELUDE: Final = """
local explore_redis = redis
local redis = setmetatable({}, {__index = explore_redis})
local function explore_now() return tonumber(explore_redis.call('GET', 'explore:now') or '0') end
local function explore_expires(key, seconds)
  explore_redis.call('ZADD', 'explore:expires', string.format('%.6f', explore_now() + seconds), key)
end
local function explore_left(key)
  if explore_redis.call('EXISTS', key) == 0 then return -2 end
  local at = explore_redis.call('ZSCORE', 'explore:expires', key)
  return at and math.max(0, tonumber(at) - explore_now()) or -1
end
local function explore_set(how, key, value, ...)
  local kept, options, seconds, at = {}, {...}, nil, 1
  while at <= #options do
    local name = string.upper(tostring(options[at]))
    if name == 'EX' or name == 'PX' then
      seconds = tonumber(options[at + 1]) / (name == 'PX' and 1000 or 1)
      at = at + 2
    else
      kept[#kept + 1] = options[at]
      at = at + 1
    end
  end
  local reply = how('SET', key, value, unpack(kept))
  if reply then
    if seconds then explore_expires(key, seconds) else explore_redis.call('ZREM', 'explore:expires', key) end
  end
  return reply
end
local function explore_call(how, name, ...)
  local command = string.upper(name)
  if command == 'TIME' then
    local now = explore_redis.call('GET', 'explore:now') or '0.000000'
    return {string.match(now, '^(%d+)%.(%d+)$')}
  elseif command == 'INFO' then
    local run = 'run_id:' .. explore_redis.call('GET', 'explore:run')
    return (string.gsub(how(name, ...), 'run_id:%w+', run))
  elseif command == 'SET' then
    return explore_set(how, ...)
  elseif command == 'EXPIRE' or command == 'PEXPIRE' then
    local key, amount = ...
    if explore_redis.call('EXISTS', key) == 0 then return 0 end
    explore_expires(key, tonumber(amount) / (command == 'PEXPIRE' and 1000 or 1))
    return 1
  elseif command == 'TTL' or command == 'PTTL' then
    local left = explore_left(...)
    return left < 0 and left or math.ceil(left * (command == 'PTTL' and 1000 or 1))
  elseif command == 'PERSIST' then
    return explore_redis.call('ZREM', 'explore:expires', ...)
  end
  return how(name, ...)
end
redis.call = function(...) return explore_call(explore_redis.call, ...) end
redis.pcall = function(...) return explore_call(explore_redis.pcall, ...) end
"""
ONE_COMMAND: Final = PRELUDE + "return redis.call(unpack(ARGV))"
TICK: Final = """
redis.call('MSET', 'explore:now', ARGV[1], 'explore:run', ARGV[2])
for _, key in ipairs(redis.call('ZRANGEBYSCORE', 'explore:expires', '-inf', ARGV[1])) do
  redis.call('DEL', key)
  redis.call('ZREM', 'explore:expires', key)
end
"""
TICKED_S: Final = 0.001  # what happens within it has one time
CONNECTIONS: Final = 100  # of all processes of a world, which share a pool
CLOCK: Final = "clock_timestamp()"  # of PostgreSQL
OF_TIME: Final = frozenset(("EXPIRE", "PEXPIRE", "TTL", "PTTL", "PERSIST"))

SOCKET: Final = "redis.sock"
THREADS: Final = "each thread is an actor of a process"

_execute: Final[Any] = redis.Redis.execute_command
_execute_pipeline: Final[Any] = redis.client.Pipeline.execute


class RedisOfWorld:
    """The one server of a world, as the world itself speaks to it.

    All clients share a connection: a pool for each, with what redis-py counts of it, is a third of
    what a call costs. It waits for answers as long as it takes, since the time of this machine must
    be no part of a history, and one thread alone may use it."""

    def __init__(self, server: RedisServer) -> None:
        self._client: Any = redis.Redis(
            unix_socket_path=str(server.folder / SOCKET),
            socket_timeout=None,
            retry=Retry(NoBackoff(), 0),
        )
        self._connection: Any = self._client.connection_pool.get_connection()
        self._ticked = -1.0
        self.behind_s = 0.0  # of its clock
        self._runs = 1
        self._copy: list[tuple[bytes, bytes]] = []
        self._texts: dict[str, str] = {}  # digest of a script as the product has it -> as it is run

    @property
    def run_id(self) -> str:
        return f"{self._runs:040x}"

    def clear(self) -> None:
        """Begin with an empty server."""
        self.ask("FLUSHALL")
        self.ask("SCRIPT", "FLUSH")
        self._texts.clear()
        self._ticked, self._runs, self._copy = -1.0, 1, []
        self.behind_s = 0.0

    def close(self) -> None:
        self._client.close()

    def ask(self, *command: str | bytes | int | float) -> Any:
        """Ask for something without a stop."""
        self._connection.send_command(*command)
        return self._client.parse_response(self._connection, command[0])

    def answer(self, client: Any, command: Sequence[Any], **options: Any) -> Any:
        """Answer a command of a client."""
        ticks = self._ticks()
        self._connection.send_packed_command(
            self._connection.pack_commands([*ticks, self.rewritten(command)])
        )
        for _ in ticks:
            self._connection.read_response()
        return client.parse_response(self._connection, command[0], **options)

    def answer_all(self, pipeline: Any, *, raise_on_error: bool = True) -> list[Any]:
        """Answer the commands of a pipeline that watches nothing."""
        ticks = self._ticks()
        stack: list[tuple[Any, dict[str, Any]]] = [(tick, {}) for tick in ticks]
        stack += [
            (tuple(self.rewritten(command)), of_command)
            for command, of_command in pipeline.command_stack
        ]
        is_transaction = pipeline.transaction or pipeline.explicit_transaction
        run = pipeline._execute_transaction if is_transaction else pipeline._execute_pipeline
        try:
            answers: list[Any] = run(self._connection, stack, raise_on_error)
        finally:
            pipeline.reset()
        return answers[len(ticks) :]

    def tick(self) -> None:
        """Let the server know what time it is."""
        for tick in self._ticks():
            self.ask(*tick)

    def _ticks(self) -> list[tuple[str | int, ...]]:
        """Return the command that tells the server the time, unless it knows."""
        now = server_time() - self.behind_s
        if abs(now - self._ticked) < TICKED_S:
            return []
        self._ticked = now
        return [("EVAL", TICK, 0, f"{now:.6f}", self.run_id)]

    def forget(self) -> None:
        """Lose everything, as FLUSHALL does."""
        self.ask("FLUSHALL")
        self._ticked = -1.0

    def restart(self, *, keeps: bool) -> None:
        """Be another run of the server, with what it held or without."""
        self._runs += 1
        self._ticked = -1.0
        self.ask("SCRIPT", "FLUSH")
        if not keeps:
            self.forget()

    def copy(self) -> None:
        """Take a backup."""
        self._copy = [(key, self.ask("DUMP", key)) for key in self.ask("KEYS", "*")]

    def restore(self) -> None:
        """Be another run of the server, with what the backup has."""
        self.restart(keeps=False)
        for key, dumped in self._copy:
            self.ask("RESTORE", key, 0, dumped)
        self._ticked = -1.0

    def rewritten(self, command: Sequence[Any]) -> Sequence[Any]:
        """Return the command that does in the world's time what this one does."""
        name = str(command[0]).upper()
        if name == "EVAL":
            return (command[0], self._learned(command[1]), *command[2:])
        if name == "EVALSHA" and command[1] in self._texts:
            return (command[0], self._texts[command[1]], *command[2:])
        if name == "SCRIPT LOAD":
            return (command[0], self._learned(command[1]))
        if name in OF_TIME or (name == "SET" and len(command) > 3):
            return ("EVAL", ONE_COMMAND, 0, *command)
        return command

    def _learned(self, text: str | bytes) -> str:
        plain = text.decode() if isinstance(text, bytes) else text
        whole = PRELUDE + plain
        self._texts[_digest(plain)] = _digest(whole)
        return whole


def _digest(text: str) -> str:
    """Return how Redis names a script."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Seams:
    """Stops at each call of an actor to a store."""

    def __init__(self, server: RedisOfWorld) -> None:
        self.server = server

    def install(self) -> None:
        """Put the stops where redis-py and Penstock's database handle make their calls."""
        clients: Any = redis.Redis
        pipelines: Any = redis.client.Pipeline
        databases: Any = Database
        clients.execute_command = _bound(self._command, _execute)
        pipelines.execute = _bound(self._pipeline, _execute_pipeline)
        databases.read = _bound(self._read, Database.read)
        databases.one_read = _bound(self._one_read, Database.one_read)
        databases.now = _bound(self._clock, Database.now)
        databases.__init__ = _bound(self._open, Database.__init__)
        of_database: Any = database_module
        shared = cache(partial(_engine, of_database.open_sqlite))
        of_database.open_sqlite = lambda url, pool_size, cache_kib: shared(url)
        servers = cache(partial(_engine_of_server, of_database.open_engine))
        of_database.open_engine = lambda url, **_: servers(url)

    # -- Redis -------------------------------------------------------------------------------------

    def _command(self, real: Any, client: Any, *command: Any, **options: Any) -> Any:
        if Entered.world is None or isinstance(client, redis.client.Pipeline):
            return real(client, *command, **options)
        name = str(command[0]).upper()
        with _stop("redis", _caller() or name.lower(), _redis_error):
            if name == "TIME":
                seconds, micros = f"{server_time() - self.server.behind_s:.6f}".split(".")
                return int(seconds), int(micros)
            return self._seen(self.server.answer(client, command, **options))

    def _pipeline(self, real: Any, pipeline: Any, *args: Any, **options: Any) -> Any:
        if Entered.world is None or not pipeline.command_stack:
            return real(pipeline, *args, **options)
        with _stop("redis", _caller() or "pipeline", _redis_error):
            if not pipeline.watching:
                return [
                    self._seen(answer)
                    for answer in self.server.answer_all(pipeline, *args, **options)
                ]
            self.server.tick()
            pipeline.command_stack = [
                (tuple(self.server.rewritten(command)), of_command)
                for command, of_command in pipeline.command_stack
            ]
            return [self._seen(answer) for answer in real(pipeline, *args, **options)]

    def _seen(self, answer: Any) -> Any:
        if isinstance(answer, dict) and "run_id" in answer:
            answer["run_id"] = self.server.run_id
        return answer

    # -- SQL ---------------------------------------------------------------------------------------

    def _open(self, real: Any, database: Any, *args: Any, **options: Any) -> None:
        real(database, *args, **options)
        database._of_thread = Local()
        database._writer = _Writer(database, database._writer)

    def _read(self, real: Any, database: Database, work: Callable[[Any], Any]) -> Any:
        if Entered.world is None or database._shared() is not None:
            return real(database, work)
        with _stop("sql", f"{_caller()} reads", partial(_sql_error, database)):
            return real(database, work)

    def _clock(self, real: Any, database: Database, connection: Connection) -> Any:
        return real(database, connection) if Entered.world is None else server_time()

    @contextlib.contextmanager
    def _one_read(self, real: Any, database: Database) -> Iterator[None]:
        if Entered.world is not None and database._shared() is None:
            with _stop("sql", f"{_caller()} reads", partial(_sql_error, database)):
                pass
        with real(database):
            yield


@contextlib.contextmanager
def _stop(store: str, what: str, error: Callable[[], Exception]) -> Iterator[None]:
    """Stop before a call, and let it end as the scheduler says."""
    actor = current_actor()
    if actor is None:
        _see_thread(f"{store} {what}")
    if actor is None or actor.in_transaction:
        yield
        return
    if actor.process.is_dead:
        raise Killed
    fate = actor.stop(Call(store, what))
    if fate is Fate.REFUSED:
        raise error()
    actor.in_transaction = True
    try:
        yield
    finally:
        actor.in_transaction = False
    if fate is Fate.LOST:
        raise error()


def _see_thread(what: str) -> None:
    """Refuse a call of a thread that is none of the world's.

    It would read the answers of other calls, and when it runs is no part of a history."""
    world, thread = Entered.world, threading.current_thread()
    if world is not None and thread is not threading.main_thread():
        world.violation = world.violation or Violation(THREADS, f"{thread.name}: {what}")
        raise RuntimeError(f"{THREADS}; {thread.name} is none")


class _Writer:
    """Begins the transactions of one database that write: one stop for each, until its commit."""

    def __init__(self, database: Database, engine: Engine) -> None:
        self._database, self._engine = database, engine

    @contextlib.contextmanager
    def begin(self) -> Iterator[Connection]:
        lost = partial(_sql_error, self._database)
        with _stop("sql", f"{_caller()} writes", lost), self._engine.begin() as connection:
            yield connection


def _redis_error() -> Exception:
    return redis.exceptions.ConnectionError("the connection is lost")


def _sql_error(database: Database) -> Exception:
    return DatabaseUnavailable(database.where, "the connection is lost")


def _bound(seam: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls ``seam`` with the real one before its own arguments."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        return seam(real, self, *args, **options)

    return method


def _engine(real: Callable[..., Engine], url: URL) -> Engine:
    """Return the engine of a file, one for all worlds: statements are compiled once."""
    engine = real(url, CONNECTIONS, CACHE_KIB)
    event.listen(engine, "connect", _tell_time)
    return engine


def _engine_of_server(real: Callable[..., Engine], url: URL) -> Engine:
    """Return the engine of a database of PostgreSQL, likewise, whose clock is the world's."""
    engine = real(url, pool_size=CONNECTIONS // 2, waits=Waits(), role="explorer")
    event.listen(engine, "before_cursor_execute", _at_its_time, retval=True)
    return engine


def _at_its_time(
    _connection: object, _cursor: object, statement: str, values: Any, *_: object
) -> tuple[str, Any]:
    """Let PostgreSQL read the world's clock, by writing it into the statement."""
    if CLOCK in statement and Entered.world is not None:
        statement = statement.replace(CLOCK, f"to_timestamp({server_time():.6f})")
    return statement, values


def _tell_time(connection: Any, _record: object) -> None:
    """Let SQLite read the world's clock."""
    connection.create_function("julianday", -1, _julianday)
    _CONNECTIONS.append(connection)


_CONNECTIONS: Final[list[Any]] = []


def end_connections() -> None:
    """Close what a world has left open.

    SQLite knows files by their inodes, and the next world's file may have that of a deleted one."""
    while _CONNECTIONS:
        _CONNECTIONS.pop().close()


def _julianday(*_: object) -> float:
    return server_time() / 86_400.0 + 2_440_587.5


def _caller() -> str:
    """Return which function of the product makes a call."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("penstock_") and name != "penstock_ledger.sql.database":
            return frame.f_code.co_qualname.partition(".<locals>")[0]
        frame = frame.f_back
    return ""
