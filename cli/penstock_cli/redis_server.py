"""A private redis-server for one-machine mode: started detached, recognised, stopped cleanly.

The server is reached over a unix socket in the state folder, or over loopback with a random
password where the path of that socket would be too long. It has its own session, so that Ctrl-C
does not reach it, and it survives a kill -9 of `penstock run`: the next run on the same state
folder recognises it by its folder and goes on with it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_cli.errors import EmbeddedRedisFailed, ForeignRedis
from penstock_cli.redis_files import (
    Endpoint,
    pidfile,
    put_back,
    read_pidfile,
    set_aside,
    write_pidfile,
)
from penstock_cli.server_versions import find_binary
from penstock_cli.show.terminal import last_lines
from penstock_producer.reporting.text import duration

if TYPE_CHECKING:
    import redis


# sun_path holds 108 on Linux and 104 on macOS, the closing zero included
MAX_SOCKET_PATH_BYTES = 100
START_NOTICE_S = 20.0  # measured start: 0.1 s; after this we say that it is slow, and wait on
LOAD_TIMEOUT_S = 600.0  # a server that says "loading" reads a large AOF and only needs time
# the last fsync of the AOF on a slow disk; after it the server is killed, its files matter little
STOP_TIMEOUT_S = 30.0
# a socket that is silent for longer is asked again, if the private server is behind it
ANSWER_TIMEOUT_S = 10.0
# short, so that the screen, Ctrl-C and crashed workers need not wait for a server that is slow
PING_TIMEOUT_S = 2.0
# a living server that says nothing for longer hangs: disks and swap stall for minutes at most
SILENCE_MAX_S = 300.0
POLL_S = 0.02
# between the choice of a port and its use another process may take it
PORTS_TRIED = 5
# of the server itself, which are 10 by default: it looks after expiry, clients and its log
TURNS_PER_S = 2

Tell = Callable[[str], None]


@dataclass(frozen=True)
class EmbeddedRedis:
    """A private redis-server that runs, and works in this state folder.

    ``started`` is False when it was found running."""

    folder: Path
    endpoint: Endpoint
    pid: int
    started: bool

    @classmethod
    def start(cls, folder: Path, tell: Tell = lambda _: None) -> EmbeddedRedis:
        """Go on with the server of this folder, or start one; without its files if unreadable.

        ``tell`` gets the lines that a person should read. Raises NoRedisServer, ForeignRedis
        (another server answers there) or EmbeddedRedisFailed (with the log's end).
        """
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        running = cls.find(folder) or _awaited(folder, tell)
        if running is not None:
            return running
        _end_unreachable(folder)
        return _launched(folder, tell)

    @classmethod
    def find(cls, folder: Path) -> EmbeddedRedis | None:
        """Return the server of this folder if it runs; never starts one. Raises ForeignRedis."""
        folder = folder.resolve()
        known = read_pidfile(folder)
        endpoint = known[0] if known else Endpoint(_socket_path(folder), 0, None)
        if endpoint.socket is None and endpoint.port == 0:
            return None
        try:
            pid = _identify(folder, endpoint)
        except ForeignRedis:
            if known is None or endpoint.socket is not None or _works_in(known[1], folder):
                raise
            return None  # ours has ended, and its port is another's now
        if pid is None:
            return None
        if known is None or known[1] != pid:
            write_pidfile(folder, endpoint, pid)
        return cls(folder, endpoint, pid, started=False)

    @cached_property
    def client(self) -> redis.Redis:
        return _connect(self.endpoint)

    @cached_property
    def _pinged(self) -> redis.Redis:
        return _connect(self.endpoint, PING_TIMEOUT_S)

    def ping(self) -> None:
        """Ping it, over a connection that is kept: it is asked several times a second.

        Raises redis-py's errors: what the server refuses with, or that it is silent for
        ``PING_TIMEOUT_S``."""
        self._pinged.ping()

    @property
    def alive(self) -> bool:
        """Return whether the process is there, answering or not."""
        return _works_in(self.pid, self.folder)

    def stop(self) -> None:
        """Flush the AOF to disk and end the server; a server that does not end is killed.

        Raises EmbeddedRedisFailed when even that does not end it.
        """
        import redis

        asked = False
        with contextlib.suppress(redis.RedisError):  # it refuses (a full disk) or says nothing
            try:
                self.client.shutdown(nosave=True)  # the AOF is flushed and fsynced all the same
            except redis.ConnectionError:  # it hangs up instead of answering
                asked = True
        self.client.close()
        self._pinged.close()
        if not asked or not _ended(self.pid, self.folder):
            end(self.pid, self.folder)
        pidfile(self.folder).unlink(missing_ok=True)
        if self.endpoint.socket is not None:
            Path(self.endpoint.socket).unlink(missing_ok=True)


def _awaited(folder: Path, tell: Tell) -> EmbeddedRedis | None:
    """Give a private server that lives and is silent time, and return it.

    It is None when there is none, or when it stays silent."""
    known = read_pidfile(folder)
    if known is None or not _works_in(known[1], folder) or not _listens(known[0]):
        return None
    tell(
        f"the private Redis (pid {known[1]}) does not answer; waiting for it, at most "
        f"{duration(SILENCE_MAX_S)}"
    )
    deadline = time.monotonic() + SILENCE_MAX_S
    while _works_in(known[1], folder) and time.monotonic() < deadline:
        running = EmbeddedRedis.find(folder)
        if running is not None:
            return running
        time.sleep(POLL_S)
    return None


def _listens(endpoint: Endpoint) -> bool:
    """Return whether its address still exists: without its socket file none can connect."""
    return endpoint.socket is None or Path(endpoint.socket).exists()


def _launched(folder: Path, tell: Tell) -> EmbeddedRedis:
    """Start a server; once more without its files if it ends over them, as after a power cut."""
    try:
        return _launch(folder, tell)
    except _EndedAtStart as error:
        try:
            aside = set_aside(folder)
        except OSError:
            aside = None
        if aside is None:
            raise
        try:
            server = _launch(folder, tell)
        except EmbeddedRedisFailed:
            put_back(folder, aside)
            raise error from None
    tell(
        f"the private Redis could not read its files; they are set aside in {aside} and it starts "
        "empty: what is finished stands in SQL, nothing is paid twice"
    )
    return server


def _launch(folder: Path, tell: Tell) -> EmbeddedRedis:
    """Start a server, at another port where a process was faster to take the one it should have."""
    for _ in range(PORTS_TRIED - 1):
        with contextlib.suppress(_PortTaken):
            return _launch_at(_choose_endpoint(folder), folder, tell)
    return _launch_at(_choose_endpoint(folder), folder, tell)


def _launch_at(endpoint: Endpoint, folder: Path, tell: Tell) -> EmbeddedRedis:
    binary = find_binary()
    log = folder / "redis.log"
    logged = log.stat().st_size if log.exists() else 0
    if endpoint.socket is not None:
        # left by a server that was killed: nothing answers there
        Path(endpoint.socket).unlink(missing_ok=True)
    process = subprocess.Popen(  # noqa: S603 -- as above
        [binary, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C goes to the foreground group of the terminal, which this is not
        start_new_session=True,
        umask=0o077,
    )
    assert process.stdin is not None
    # it ended already: _await_start says how
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(_configuration(folder, endpoint).encode(errors="surrogateescape"))
    write_pidfile(folder, endpoint, process.pid)
    try:
        _await_start(folder, endpoint, process, tell)
    except _EndedAtStart as error:
        if endpoint.socket is None and _says_taken(log, logged):
            raise _PortTaken(str(error)) from error
        raise
    return EmbeddedRedis(folder, endpoint, process.pid, started=True)


def _choose_endpoint(folder: Path) -> Endpoint:
    path = _socket_path(folder)
    if path is not None:
        return Endpoint(path, 0, None)
    known = read_pidfile(folder)
    if known is not None and known[0].password is not None and _port_is_free(known[0].port):
        return known[0]  # a client that still has the old address reaches the new server
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    return Endpoint(None, port, secrets.token_hex(24))


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _says_taken(log: Path, logged: int) -> bool:
    """Return whether the server found its port taken, by its log from this byte on."""
    try:
        with log.open("rb") as file:
            file.seek(logged)
            return os.strerror(errno.EADDRINUSE).encode() in file.read()
    except OSError:
        return False


def _socket_path(folder: Path) -> str | None:
    path = str(folder / "redis.sock")
    return path if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES else None


def _configuration(folder: Path, endpoint: Endpoint) -> str:
    """Return redis.conf, which the server reads from its standard input.

    Arguments, and so the password, would be visible to every user; and the name of a file is a glob
    to Redis 7, which then starts with defaults, on the public port, when a folder has a ``?`` in
    its name.
    """
    lines = {
        "dir": _quoted(str(folder)),
        "logfile": _quoted(str(folder / "redis.log")),
        "daemonize": "no",
        "databases": "1",
        "port": str(endpoint.port),
        "bind": "127.0.0.1",
        "protected-mode": "yes",
        "save": '""',
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "hz": str(TURNS_PER_S),
    }
    if endpoint.socket is not None:
        lines |= {"unixsocket": _quoted(endpoint.socket), "unixsocketperm": "700"}
    if endpoint.password is not None:
        lines["requirepass"] = endpoint.password
    return "".join(f"{name} {value}\n" for name, value in lines.items())


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _EndedAtStart(EmbeddedRedisFailed):
    """It ended by itself before it answered: its files, its disk or its binary are at fault."""


class _PortTaken(EmbeddedRedisFailed):
    """It ended before it answered, since another process listens on its port."""


def _await_start(
    folder: Path, endpoint: Endpoint, process: subprocess.Popen[bytes], tell: Tell
) -> None:
    began, said = time.monotonic(), False
    while (waited_s := time.monotonic() - began) < SILENCE_MAX_S:
        if process.poll() is not None:
            raise _EndedAtStart(
                f"the private redis-server ended at once with status {process.returncode}. Its "
                f"log, {folder / 'redis.log'}, ends with:\n"
                f"{last_lines(folder / 'redis.log')}"
            )
        try:
            if _identify(folder, endpoint) == process.pid:
                return
        except ForeignRedis:
            if endpoint.socket is not None:
                raise
            # it has taken the port, and the one that starts ends over it
        if waited_s > START_NOTICE_S and not said:
            tell(
                "the private Redis starts slowly; waiting for it, at most "
                f"{duration(SILENCE_MAX_S)}"
            )
            said = True
        time.sleep(POLL_S)
    end(process.pid, folder)
    raise EmbeddedRedisFailed(
        f"the private redis-server did not answer within {duration(SILENCE_MAX_S)}; see "
        f"{folder / 'redis.log'}"
    )


def _identify(folder: Path, endpoint: Endpoint) -> int | None:
    """Return the pid of the server at this address, None when nothing answers.

    Raises ForeignRedis for a server of another folder."""
    import redis

    client = _connect(endpoint)
    try:
        served = _when_loaded(client)
        if served is None:
            return None
        pid, directory = served
    # it answers, but not as the private server would: another password, another protocol
    except redis.RedisError as error:
        raise _foreign(folder, endpoint, f"it says: {error}") from error
    finally:
        client.close()
    if Path(directory) != folder:
        raise _foreign(folder, endpoint, f"it works in {directory}")
    return pid


def _when_loaded(client: redis.Redis) -> tuple[int, str] | None:
    import redis

    deadline = time.monotonic() + LOAD_TIMEOUT_S
    while True:
        try:
            info: Any = client.info("server")
            settings: Any = client.config_get("dir")
            client.ping()  # INFO and CONFIG answer while the server still loads; this does not
            return int(info["process_id"]), str(settings["dir"])
        except redis.BusyLoadingError as error:
            if time.monotonic() > deadline:
                raise EmbeddedRedisFailed(
                    f"the private Redis still loads after {LOAD_TIMEOUT_S:.0f} s"
                ) from error
            time.sleep(POLL_S)
        except redis.AuthenticationError:
            raise
        except (redis.ConnectionError, redis.TimeoutError):
            return None


def _foreign(folder: Path, endpoint: Endpoint, seen: str) -> ForeignRedis:
    where = endpoint.socket or f"127.0.0.1:{endpoint.port}"
    return ForeignRedis(
        f"another Redis answers at {where}: {seen}, the private one works in {folder}. "
        "Stop it, or choose another --state folder."
    )


def _connect(endpoint: Endpoint, timeout_s: float | None = None) -> redis.Redis:
    """Return a client that fails at once: whether to wait is decided here, not in the client."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis.from_url(
        endpoint.redis_url,
        socket_timeout=ANSWER_TIMEOUT_S if timeout_s is None else timeout_s,
        decode_responses=True,
        retry=Retry(NoBackoff(), 0),
    )


def _end_unreachable(folder: Path) -> None:
    """End a private server that cannot be reached: two servers on one AOF would destroy it."""
    known = read_pidfile(folder)
    if known is not None and _works_in(known[1], folder):
        end(known[1], folder)


def end(pid: int, folder: Path) -> None:
    """Ask the server to end (SIGTERM), then kill it.

    Raises EmbeddedRedisFailed when it stays even so."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if _ended(pid, folder):
            return
    raise EmbeddedRedisFailed(
        f"the private redis-server (pid {pid}) does not end, not even by SIGKILL: a disk that does "
        f"not answer is the usual reason; see {folder / 'redis.log'}"
    )


def _ended(pid: int, folder: Path) -> bool:
    """Wait for the end of a process for at most ``STOP_TIMEOUT_S``."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while _works_in(pid, folder):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _works_in(pid: int, folder: Path) -> bool:
    """Return whether this pid is a living process with this working folder.

    Pids are used again, the folder belongs to this state."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == folder
    except OSError:
        return False
