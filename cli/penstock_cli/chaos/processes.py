"""Processes of a fleet that is broken on purpose: started here, and ended with the one that did.

Each is killed by its own pid only. A guard beside them ends all that are left when the process that
started them is gone, however it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from penstock_cli.chaos import wrong_clock
from penstock_cli.errors import CliError
from penstock_cli.settings import own_environment

if TYPE_CHECKING:
    from penstock_ledger.model import Job

PENSTOCK = [sys.executable, "-m", "penstock_cli"]
START_S = 120.0  # for a process to be ready, on a machine that is busy with others, too
POLL_S = 0.02
LOG_TAIL = 4_000


class NotInTime(CliError):
    """An event that was waited for did not happen within its time."""


def until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Poll until ``condition`` holds. Raises NotInTime, with ``what`` was waited for."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise NotInTime(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)


def keep_port(owner: object) -> int:
    """Return a free port of loopback that no other process is given while ``owner`` lives.

    It stays bound here and nothing listens, so that a server which reuses addresses, as ours and
    PostgreSQL do, can listen there each time it is started."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    weakref.finalize(owner, keeper.close)
    return int(keeper.getsockname()[1])


# It answers the end of the process that started it, too, however that one ends. Children of what it
# kills may write for a moment.
_GUARD = """
pids=
while read -r word what; do
    case $word in
        watch) pids="$pids $what" ;;
        remove) set -- "$@" "$what" ;;
        done) exit 0 ;;
    esac
done
kill -KILL $pids 2>/dev/null
for folder; do umount -l "$folder/disk" 2>/dev/null; done
for again in 1 2 3 4 5; do rm -rf "$@" && break; sleep 1; done
"""


class Guard:
    """A shell that kills the watched processes once this process is gone, and removes folders.

    It has a session of its own, so that Ctrl-C does not reach it."""

    def __init__(self) -> None:
        """Start it."""
        self._shell = subprocess.Popen(  # noqa: S603 -- a fixed script
            ["/bin/sh", "-c", _GUARD, "guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, pid: int) -> None:
        """Kill this process, too."""
        self._tell(f"watch {pid}")

    def remove(self, folder: Path) -> None:
        """Remove this folder, too, once the processes are killed."""
        self._tell(f"remove {folder}")

    def close(self) -> None:
        """Let it end without a kill: everything has been ended in an orderly way."""
        self._tell("done")
        with contextlib.suppress(OSError, ValueError):
            self._shell.communicate()

    def _tell(self, line: str) -> None:
        assert self._shell.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, or was closed
            self._shell.stdin.write(f"{line}\n".encode())
            self._shell.stdin.flush()


def start_penstock(
    words: Sequence[str], *, off_s: float = 0.0, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a `penstock` command as a process, whose clock is off by so much."""
    command = [*wrong_clock.COMMAND, str(off_s)] if off_s else PENSTOCK
    started: Any = subprocess.Popen(  # noqa: S603 -- ourselves
        [*command, *words], stdin=subprocess.DEVNULL, **options
    )
    return cast("subprocess.Popen[bytes]", started)


Start = Callable[..., subprocess.Popen[bytes]]  # called as ``start_penstock`` is


@dataclass
class Process:
    """One process that we started, and the file that it writes to."""

    name: str
    log: Path
    popen: subprocess.Popen[bytes]

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            os.kill(self.popen.pid, number)

    def kill(self) -> None:
        """Kill it, and wait until it has ended.

        Not by ``Popen.wait``: an interrupt in the middle of ``poll`` leaves the lock taken for
        which that waits."""
        self.send(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # its end was seen already
            os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOWAIT)
        self.popen.poll()

    def wait(self, timeout_s: float) -> int:
        return self.popen.wait(timeout_s)

    def tail(self) -> str:
        """Return the end of its log, under its name."""
        return (
            f"---- {self.name} ({self.popen.poll()})\n"
            f"{self.log.read_text(errors='replace')[-LOG_TAIL:]}"
        )


@dataclass
class Provider:
    """`penstock simulate` on a port that stays the same when it is killed and started again.

    Its call log stays, too."""

    folder: Path
    port: int = 0  # one that is kept for it, unless named
    host: str = "127.0.0.1"
    process: Process | None = None
    scheme: str = "http"  # https where it is started with a certificate
    watch: Callable[[int], None] = lambda _pid: None
    start_process: Start = start_penstock

    def __post_init__(self) -> None:
        """Choose its port."""
        self.port = self.port or keep_port(self)

    @property
    def root(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def call_log(self) -> Path:
        return self.folder / "calls.jsonl"

    def start(self, *flags: str) -> Self:
        """Start it and wait until it answers."""
        log = self.folder / "provider.log"
        words = ["simulate", "--port", str(self.port), "--call-log", str(self.call_log), *flags]
        with log.open("ab") as out:
            popen = self.start_process(
                words,
                env=own_environment(),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.watch(popen.pid)
        self.process = Process("provider", log, popen)
        until(self._answers, START_S, f"the simulated provider answers: {self.process.tail()}")
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def tell(self, **controls: object) -> None:
        """Change its settings while it runs."""
        with self._open("/control", json.dumps(controls).encode()):
            pass

    def in_flight(self) -> int:
        return int(self.stats()["in_flight"])

    def calls(self, job: Job | None = None) -> Counter[str]:
        """Return calls by document of one job, or by tag of all.

        The provider wrote them down before it answered."""
        lines = self.call_log.read_text().splitlines() if self.call_log.exists() else []
        tags = Counter(json.loads(line)["document"] for line in lines)
        if job is None:
            return tags
        mine = f"{job.job_id}:"
        return Counter(
            {tag.removeprefix(mine): count for tag, count in tags.items() if tag.startswith(mine)}
        )

    def outcomes(self, job: Job) -> Counter[str]:
        """Return what became of the calls for one job, by its call log."""
        lines = (json.loads(line) for line in self.call_log.read_text().splitlines())
        return Counter(
            line["outcome"] for line in lines if line["document"].startswith(f"{job.job_id}:")
        )

    def stats(self) -> dict[str, Any]:
        with self._open("/stats") as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def _open(self, path: str, data: bytes | None = None) -> Any:
        """Open a page of it, whatever its certificate is: we need not refuse it."""
        context = ssl._create_unverified_context() if self.scheme == "https" else None  # noqa: S323
        return urllib.request.urlopen(  # noqa: S310 -- on loopback
            self.root + path, data=data, timeout=5, context=context
        )

    def _answers(self) -> bool:
        try:
            return bool(self.stats())
        except OSError:
            return False
