"""The process that forks the workers of a `penstock run`.

It has imported what they need, and started nothing yet.

One JSON object a line. Orders, on its standard input: ``order``, ``name``, ``variables`` and
``log`` of a worker to fork, or ``order`` and ``signal`` of one to be signalled. Reports, on its
standard output: ``ready`` once it has imported everything; ``order`` with the ``pid`` of a worker
that was forked, or with the ``status`` that it ended with. It ends when its standard input does.

A fork copies only the thread that forks, so this process must have one: nothing here, and nothing
that is imported for workers, starts a second.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock_cli.failures import leave_with
from penstock_cli.processes.signals import end_with_parent
from penstock_cli.settings import adopt_settings

READ_BYTES = 65_536
_STDIN, _STDOUT, _STDERR = 0, 1, 2


def main(lane: str) -> None:
    """Import what a worker of this lane needs, then fork a worker for each order."""
    server = ForkServer()
    gc.disable()  # what is imported stays
    from penstock_workers.preload import preload

    preload(lane)
    if threading.active_count() > 1:
        return  # a debugger's, say: workers are then started one by one
    gc.freeze()  # so that no worker's collector writes to what all of them share
    name = server.serve()
    if name is None:
        return
    gc.enable()
    try:
        _run(lane, name)
    except Exception as error:
        leave_with(error)


def _run(lane: str, name: str) -> None:
    from penstock_cli.doctor.worker import check
    from penstock_workers.__main__ import run_worker
    from penstock_workers.settings import WorkerSettings

    check(WorkerSettings.load(lane=lane))
    run_worker(lane, name=name)


class ForkServer:
    def __init__(self) -> None:
        self._reports = os.dup(_STDOUT)
        # a module that prints while it is imported prints no report
        _open_onto(Path(os.devnull), os.O_WRONLY, _STDOUT)
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wakes, False)
        self._pids: dict[int, int] = {}  # by order, of workers that run
        self._unread = b""

    def serve(self) -> str | None:
        """Serve orders.

        Returns in each worker, with its name, and in the server when no more orders can come, with
        None."""
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # the wake-up is what counts
        signal.set_wakeup_fd(self._wakes)
        self._report({"ready": True})
        while True:
            ready, _, _ = select.select([_STDIN, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, READ_BYTES)
                self._reap()
            if _STDIN not in ready:
                continue
            chunk = os.read(_STDIN, READ_BYTES)
            if not chunk:
                return None
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            for line in lines:
                name = self._follow(json.loads(line))
                if name is not None:
                    return name

    def _follow(self, order: Mapping[str, Any]) -> str | None:
        """Carry out one order; return a name in a worker that was just forked."""
        number: int = order["order"]
        if "signal" in order:
            if number in self._pids:  # not reaped yet, so the process is still that worker
                os.kill(self._pids[number], order["signal"])
            return None
        pid = os.fork()
        if pid == 0:
            self._become_worker(order)
            name: str = order["name"]
            return name
        self._pids[number] = pid
        self._report({"order": number, "pid": pid})
        return None

    def _reap(self) -> None:
        for number, pid in list(self._pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._pids[number]
                self._report({"order": number, "status": os.waitstatus_to_exitcode(status)})

    def _report(self, report: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # standard input says the same
            os.write(self._reports, json.dumps(report).encode() + b"\n")

    def _become_worker(self, order: Mapping[str, Any]) -> None:
        server = os.getppid()
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (self._reports, self._woken, self._wakes):
            os.close(descriptor)
        _open_onto(Path(os.devnull), os.O_RDONLY, _STDIN)
        with contextlib.suppress(OSError):  # on a full disk there is no log
            _open_onto(Path(order["log"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, _STDOUT)
            os.dup2(_STDOUT, _STDERR)
        end_with_parent(server)
        adopt_settings(order["variables"])


def _open_onto(path: Path, flags: int, descriptor: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)


if __name__ == "__main__":
    main(sys.argv[1])
