"""Each part of a fleet is broken from outside, and repaired again, by one function for each way.

They know nothing of jobs; what lasts is a context manager, so that nothing stays broken.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_cli.chaos.processes import until
from penstock_cli.chaos.servers import OneRedis
from penstock_cli.errors import CliError
from penstock_ledger import keys
from penstock_ledger.model import ItemKey
from penstock_producer.feed.wire import encode_item

if TYPE_CHECKING:
    import redis

CLOCK_STEP_S = 3600.0  # how far a clock steps back
SAVE_S = 30.0  # for Redis to find that it cannot save
BUSY_S = 30.0  # for the lock of SQLite


class CannotBreak(CliError):
    """This machine does not let us do it; the message says why."""


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Stop processes (SIGSTOP), then let them go on."""
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


# -- Redis -----------------------------------------------------------------------------------------


@contextmanager
def redis_read_only(client: redis.Redis) -> Iterator[None]:
    """Make it the replica of a server that is not there, as in a failover."""
    client.config_set("replica-serve-stale-data", "yes")
    client.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        client.replicaof("NO", "ONE")


@contextmanager
def redis_full(client: redis.Redis) -> Iterator[None]:
    """Leave it no memory."""
    before: Any = client.config_get("maxmemory")
    client.config_set("maxmemory", 1024)
    try:
        yield
    finally:
        client.config_set("maxmemory", before["maxmemory"])


@contextmanager
def redis_cannot_save(server: OneRedis) -> Iterator[None]:
    """Make it refuse every write (MISCONF), by a folder in the place of its file.

    That is what a full disk does."""
    client: Any = server.client()
    blocked = server.folder / "dump.rdb"
    blocked.mkdir()
    (blocked / "in the way").touch()
    client.config_set("save", "1 1")
    try:
        until(
            lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err",
            SAVE_S,
            "Redis cannot save",
        )
        yield
    finally:
        client.config_set("save", "")
        shutil.rmtree(blocked)


@contextmanager
def redis_of_before(server: OneRedis) -> Iterator[None]:
    """Put back at the end what it had on disk at the beginning, as a backup is restored."""
    kept = server.folder.with_name(f"{server.folder.name}-kept")
    shutil.copytree(server.folder / "appendonlydir", kept, dirs_exist_ok=True)
    try:
        yield
    finally:
        server.kill()
        shutil.rmtree(server.folder / "appendonlydir")
        shutil.move(kept, server.folder / "appendonlydir")
        server.restart()


def step_redis_clock_back(client: redis.Redis, queue: str) -> None:
    """Move all times in its sets into the future.

    That is what a failover to a server whose clock is behind leaves."""
    for name in (keys.unacked_index(queue), keys.delayed(queue), keys.WORKERS):
        held: Any = client.zrange(name, 0, -1, withscores=True)
        if held:
            client.zadd(name, {member: score + CLOCK_STEP_S for member, score in held})


def send_strays(client: redis.Redis, queue: str, job_id: str, job_key: str) -> None:
    """Send messages that Penstock would not send."""
    known = ItemKey(job_id, 1, "doc-1")
    good = json.loads(encode_item(known, queue=queue, body=b"{}", ref=None))
    for generation in (2**31, 2**63, -1, 7):
        client.lpush(queue, _stray(queue, job_id, generation, "doc-2"))
    for document in ("no-such-document", "x" * 9_000, "with\0nul", "\ud800", ""):
        client.lpush(queue, _stray(queue, job_id, 1, document))
    client.lpush(queue, _stray(queue, job_key, 1, "doc-3"))
    client.lpush(queue, json.dumps(good | {"headers": good["headers"] | {"priority": 2**40}}))
    client.lpush(queue, "[]", "{}", "\xff")


def _stray(queue: str, job: str, generation: int, document: str) -> str:
    """Return a message whose job, document and generation are changed wherever they stand."""
    of_none = ItemKey("STRAYJOB", 1, "STRAYDOC")
    message = json.loads(encode_item(of_none, queue=queue, body=b'{"model":"sim"}', ref=None))
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

    parts = {name: changed(message[name]) for name in ("headers", "properties")}
    return json.dumps(message | parts)


# -- the database ----------------------------------------------------------------------------------


def is_sqlite(database_url: str) -> bool:
    return database_url.startswith("sqlite")


@contextmanager
def sqlite_locked(database_url: str) -> Iterator[None]:
    """Hold the lock for writing, as another process in a long transaction does."""
    other = sqlite3.connect(sqlite_path(database_url), isolation_level=None, timeout=BUSY_S)
    with contextlib.closing(other):
        other.execute("begin immediate")
        yield
        other.execute("rollback")


@contextmanager
def sqlite_without_room(database_url: str) -> Iterator[None]:
    """Fill its disk, which has to be a small one, once its log has given back what it held."""
    path = sqlite_path(database_url)
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S)) as other:
        other.execute("pragma wal_checkpoint(truncate)")
    filler = fill(path.parent)
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def postgres_away(database_url: str) -> Iterator[Any]:
    """Let no connection in; what is given ends those that there are, and is called again."""
    from sqlalchemy import create_engine, text

    url = sync_url(database_url)
    name = url.database
    engine = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    mine = "select pg_terminate_backend(pid) from pg_stat_activity where datname = :name"
    with engine.connect() as other:
        other.execute(text(f'alter database "{name}" allow_connections false'))
        try:
            yield lambda: other.execute(text(mine), {"name": name})
        finally:
            other.execute(text(f'alter database "{name}" allow_connections true'))
    engine.dispose()


@contextmanager
def standing_still(database_url: str) -> Iterator[None]:
    """Let nothing be stored: all can be read, and another client is in a long transaction."""
    from sqlalchemy import create_engine, text

    if is_sqlite(database_url):
        with sqlite_locked(database_url):
            yield
        return
    engine = create_engine(sync_url(database_url))
    with engine.connect() as other:
        other.execute(text("lock table outcomes in share row exclusive mode"))
        yield
        other.rollback()
    engine.dispose()


def sqlite_path(database_url: str) -> Path:
    return Path(database_url.removeprefix("sqlite:///"))


def outcomes_of(database_url: str, job_id: str) -> int:
    """Return how many outcomes of a job are stored, whatever else is known of it."""
    from sqlalchemy import create_engine, text

    with create_engine(sync_url(database_url)).connect() as connection:
        found = connection.execute(
            text("select count(*) from outcomes where job_id = :job"), {"job": job_id}
        )
        return int(found.scalar_one())


def sync_url(database_url: str) -> Any:
    """Return the address with the driver that we install."""
    from sqlalchemy import make_url

    url = make_url(database_url)
    return url if is_sqlite(database_url) else url.set(drivername="postgresql+psycopg")


# -- disks -----------------------------------------------------------------------------------------


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """Mount a file system in memory at ``place``.

    Raises CannotBreak where nothing may be mounted."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    _mounted(command)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)  # noqa: S603, S607


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """Have every path below ``place`` refuse writes.

    Files that are open are written on, as the system refuses to change them."""
    subprocess.run(["mount", "--bind", str(place), str(place)], check=True)  # noqa: S603, S607
    try:
        command = ["mount", "-o", "remount,bind,ro", str(place)]
        subprocess.run(command, check=True)  # noqa: S603
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)  # noqa: S603, S607


def _mounted(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise CannotBreak(f"a disk of one's own needs `mount`: {error}") from error
    if done.returncode != 0:
        raise CannotBreak(
            f"a disk of one's own needs the right to mount: {done.stderr.partition(chr(10))[0]}"
        )


def fill(folder: Path) -> Path:
    """Write a file that leaves no byte, and return it."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler
