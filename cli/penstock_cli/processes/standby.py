"""Processes that are forked: one process imports what they need while the job is checked.

`penstock run` starts that process first, and so does `penstock serve`, whose HTTP process is forked
by it, too. Each order on its standard input makes it fork a process, which has its modules already
and shares their memory; what became of them comes back on its standard output. See fork_server.py
for its half. Where there is no such process any more, the supervisor starts them one by one.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from penstock_cli.settings import child_environment

DOOR: Final = "gateway"  # is forked as the lanes are: no lane has this name
READ_BYTES = 65_536
KILLED_WITHIN_S = 5.0  # from the order to the report of a worker's end, which takes milliseconds


def worker_command(lane: str, number: int) -> list[str]:
    """Return a worker that imports its modules itself."""
    return [
        sys.executable,
        "-m",
        "penstock_cli",
        "worker",
        "--lane",
        lane,
        "--name",
        worker_name(number),
    ]


def server_command(first: str) -> list[str]:
    return [sys.executable, "-m", "penstock_cli.processes.fork_server", first]


def worker_name(number: int) -> str:
    return f"local-{number}"


class ForkedWorker:
    """A process that the fork server started, with what is used of ``subprocess.Popen``."""

    def __init__(self, server: Standby, order: int) -> None:
        self.pid: int | None = None  # until it is forked
        self.returncode: int | None = None
        self._server, self._order = server, order

    def poll(self) -> int | None:
        self._server.read_reports()
        return self.returncode

    def wait(self) -> int:
        while self.poll() is None:
            self._server.await_report()
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self._server.signal(self._order, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the worker; a server that does not do it in time is killed with all workers."""
        self._server.signal(self._order, signal.SIGKILL)
        until = time.monotonic() + KILLED_WITHIN_S
        while self.poll() is None:
            left_s = until - time.monotonic()
            if left_s <= 0:
                self._server.kill()
                return
            self._server.await_report(left_s)


class Standby:
    """The fork server of one `penstock run` or `serve`.

    It ends with the context, and so do processes of it that still run."""

    def __init__(self, *forks: str, wanted: bool = True) -> None:
        """Start the server; one that is not ``wanted`` has ended before it imports anything.

        ``forks`` are the lanes whose workers it forks, and DOOR. What the first needs is imported
        at once, what the others need by the first order of theirs.
        """
        self._forks = forks
        self._process = subprocess.Popen(  # noqa: S603 -- our own interpreter and command line
            server_command(forks[0]),
            env=child_environment({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process, which then decides
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._reports = self._process.stdin, self._process.stdout
        os.set_blocking(self._reports.fileno(), False)
        self._unread = b""
        self._ready = False
        self._workers: dict[int, ForkedWorker] = {}
        if not wanted:
            self.kill()

    def take(
        self, kind: str, number: int, variables: Mapping[str, str], log: Path, *, umask: int = -1
    ) -> ForkedWorker | None:
        """Order a worker of a lane, or DOOR, with these settings and this log.

        None where the server is gone, or forks none of this kind."""
        order = len(self._workers) + 1
        given = {
            "order": order,
            "kind": kind,
            "name": DOOR if kind == DOOR else worker_name(number),
            "variables": dict(variables),
            "log": str(log),
            "umask": umask,
        }
        if kind not in self._forks or self._process.poll() is not None or not self._send(given):
            return None
        worker = self._workers[order] = ForkedWorker(self, order)
        return worker

    def signal(self, order: int, number: signal.Signals) -> None:
        """Send a signal through the server.

        The server knows whether the process is still that worker.
        """
        self.read_reports()
        if not self._ready:
            self.kill()  # it still imports: nothing was forked yet
        else:
            self._send({"order": order, "signal": int(number)})

    def read_reports(self) -> None:
        """Take what the server has written so far."""
        if self._reports.closed:
            return
        while chunk := self._reports.read(READ_BYTES):
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            for line in lines:
                self._note(json.loads(line))
        if chunk == b"":
            self._lost()

    def await_report(self, limit_s: float | None = None) -> None:
        select.select([self._reports], [], [], limit_s)

    def kill(self) -> None:
        """End the server, and so its workers, at once."""
        self._process.kill()
        self._lost()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _note(self, report: Mapping[str, Any]) -> None:
        if "ready" in report:
            self._ready = True
            return
        worker = self._workers[report["order"]]
        if "pid" in report:
            worker.pid = report["pid"]
        else:
            worker.returncode = report["status"]

    def _lost(self) -> None:
        """Note that the server has ended, and with it its workers."""
        self._process.wait()
        self._reports.close()
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()
        for worker in self._workers.values():
            if worker.returncode is None:
                worker.returncode = -signal.SIGTERM

    def _send(self, order: Mapping[str, Any]) -> bool:
        """Send an order; False when the server is gone."""
        if self._orders.closed:
            return False
        try:
            self._orders.write(json.dumps(order).encode() + b"\n")
            self._orders.flush()
        except BrokenPipeError:
            return False
        return True
