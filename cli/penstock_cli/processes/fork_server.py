"""The process that forks the workers of a `penstock run`, and all that a `penstock serve` runs.

It has imported what they need, and started nothing yet.

One JSON object a line. Orders, on its standard input: ``order``, ``kind``, ``name``, ``variables``,
``log`` and ``umask`` of a process to fork, or ``order`` and ``signal`` of one to be signalled.
Reports, on its standard output: ``ready`` once it takes orders; ``order`` with the ``pid`` of a
process that was forked, or with the ``status`` that it ended with. It ends when its standard input
does.

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock_cli.entry import NEW_OBJECTS
from penstock_cli.failures import leave_with
from penstock_cli.processes.signals import end_with_parent, name_process
from penstock_cli.processes.standby import DOOR
from penstock_cli.settings import adopt_settings

READ_BYTES = 65_536
_STDIN, _STDOUT, _STDERR = 0, 1, 2


def main(first: str) -> None:
    """Import what this kind of process needs, then fork a process for each order."""
    server = ForkServer(imported)
    gc.disable()  # what is imported stays
    if not imported(first):
        return
    order = server.serve()
    if order is None:
        return
    gc.enable()
    try:
        if order["kind"] == DOOR:
            _open_door()
        else:
            _work(order["kind"], order["name"])
    except Exception as error:
        leave_with(error)
    finally:
        gc.freeze()  # what is left ends with the process: walking it takes a while


def imported(kind: str) -> bool:
    """Import what this kind of process needs; False where no process can be forked any more."""
    if kind == DOOR:
        from penstock_gateway import serve_door  # noqa: F401  with all that it needs
    else:
        from penstock_workers.preload import preload

        preload(kind)
    gc.freeze()  # so that no process's collector writes to what all of them share
    # a debugger's thread, say: processes are then started one by one
    return threading.active_count() == 1


def _open_door() -> None:
    from penstock_gateway import GatewaySettings, serve_door

    gc.set_threshold(NEW_OBJECTS)
    serve_door(GatewaySettings.load())


def _work(lane: str, name: str) -> None:
    from penstock_cli.doctor.worker import check
    from penstock_workers.__main__ import run_worker
    from penstock_workers.settings import WorkerSettings

    check(WorkerSettings.load(lane=lane))
    run_worker(lane, name=name)


class ForkServer:
    def __init__(self, imported: Callable[[str], bool]) -> None:
        """Take ``imported``, which is asked for each kind of process before it is forked."""
        self._imported = imported
        self._reports = os.dup(_STDOUT)
        # a module that prints while it is imported prints no report
        _open_onto(Path(os.devnull), os.O_WRONLY, _STDOUT)
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wakes, False)
        self._pids: dict[int, int] = {}  # by order, of processes that run
        self._unread = b""

    def serve(self) -> Mapping[str, Any] | None:
        """Serve orders.

        Returns in each process that it forks, with its order, and in the server when no more orders
        can come or be carried out, with None."""
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
            for order in map(json.loads, lines):
                if "signal" in order:
                    self._signal(order["order"], order["signal"])
                elif not self._imported(order["kind"]):
                    return None
                elif self._forked(order):
                    return dict(order)

    def _signal(self, number: int, signal_number: int) -> None:
        if number in self._pids:  # not reaped yet, so the process is still that of the order
            os.kill(self._pids[number], signal_number)

    def _forked(self, order: Mapping[str, Any]) -> bool:
        """Fork the process of an order; True in that process."""
        pid = os.fork()
        if pid == 0:
            self._become(order)
            return True
        self._pids[order["order"]] = pid
        self._report({"order": order["order"], "pid": pid})
        return False

    def _reap(self) -> None:
        for number, pid in list(self._pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._pids[number]
                self._report({"order": number, "status": os.waitstatus_to_exitcode(status)})

    def _report(self, report: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # standard input says the same
            os.write(self._reports, json.dumps(report).encode() + b"\n")

    def _become(self, order: Mapping[str, Any]) -> None:
        """Make this process the one that was ordered."""
        server = os.getppid()
        os.setsid()
        name_process(order["name"])
        if order["umask"] >= 0:
            os.umask(order["umask"])
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
