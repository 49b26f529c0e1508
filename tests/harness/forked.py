"""Processes of `penstock` that are forked from one that has imported it all.

A start from nothing is a second of imports, and the tests start a thousand of them. A forked one is
a process as any: with a session, an environment, a folder and files of its own, waited for and
killed by its pid. `make test-all` starts each from nothing, as `make test` does where a test is
about the start: what it imports, and pages that people paste commands from.

Run as a program this is the process that forks. It has one thread, and opens nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import inspect
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

FROM_NOTHING: Final = "TESTS_START_FROM_NOTHING"  # a variable: each process is started anew
PENSTOCK: Final = [sys.executable, "-m", "penstock_cli"]
# of Popen, in the order in which it closes them
PIPES: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
ORDER_BYTES: Final = 1024 * 1024
_SET_CHILD_SUBREAPER: Final = 36  # of prctl(2)
_ONE_AT_A_TIME: Final = threading.Lock()
# what the parts of a fleet import once they know their settings
PRELOADED: Final = (
    "penstock_cli.doctor.worker",
    "penstock_cli.run.local",
    "penstock_gateway.app",
    "penstock_gateway.serve",
    "penstock_ledger.migrations",
    "penstock_simulate.web",
    "penstock_workers.control.standalone",
    "alembic.command",
)


class Penstock(subprocess.Popen[Any]):
    """A `penstock` command as a process; ``words`` are what stands behind the name.

    ``program`` is a file that runs in the place of `penstock`."""

    def __init__(self, words: Sequence[str], *, program: Path | None = None, **options: Any):
        self._program, self._words = program, list(words)
        command = PENSTOCK if program is None else [sys.executable, str(program)]
        super().__init__([*command, *words], stdin=subprocess.DEVNULL, **options)

    def _execute_child(self, *given: Any) -> None:
        """Have it forked, and become its parent."""
        start: Any = super()._execute_child  # type: ignore[misc]
        if FROM_NOTHING in os.environ or sys.platform != "linux":
            start(*given)
            return
        asked = inspect.signature(start).bind(*given).arguments
        pipes = [asked[name] for name in PIPES]
        order = {
            "words": self._words,
            "program": self._program and str(self._program),
            "cwd": os.fspath(asked["cwd"] or Path.cwd()),
            "env": dict(os.environ if asked["env"] is None else asked["env"]),
            "session": bool(asked["start_new_session"]),
        }
        stdin, stdout, stderr = asked["p2cread"], asked["c2pwrite"], asked["errwrite"]
        files = [stdin, 1 if stdout == -1 else stdout, 2 if stderr == -1 else stderr]
        self.pid = _forked(json.dumps(order).encode(), files)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(words: Sequence[str], timeout_s: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as ``subprocess.run`` does with what it prints."""
    options.setdefault("stderr", subprocess.PIPE)
    with Penstock(words, stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            told, failed = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, told, failed)


def _forked(order: bytes, files: Sequence[int]) -> int:
    """Return the pid of a new process, whose parent is this one by then.

    The process that forks lets its grandchild go, which then belongs to the nearest ancestor that
    takes orphans in: this one, for that moment."""
    with _ONE_AT_A_TIME:
        orders, prctl = _orders(), ctypes.CDLL(None).prctl
        prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(orders, [order], files)
            return int(orders.recv(64))
        finally:
            prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@cache
def _orders() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ORDER_BYTES)
    subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), str(theirs.fileno())],
        cwd="/",  # tests ask which processes are at work in their folders
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
    theirs.close()
    return ours


def _serve(orders: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each order.

    Returns in each of them, with its order, and here when no more orders can come, with None."""
    while True:
        text, files, _, _ = socket.recv_fds(orders, ORDER_BYTES, 3)
        if not text:
            return None
        told, tells = os.pipe()
        between = os.fork()
        if between == 0:
            parent = os.getpid()
            pid = os.fork()
            if pid:
                os.write(tells, str(pid).encode())
                os._exit(0)
            while os.getppid() == parent:  # until it belongs to the test
                time.sleep(0.0005)
            for place, file in enumerate(files):
                os.dup2(file, place)
            os.closerange(3, max(*files, tells, orders.fileno()) + 1)
            order: dict[str, Any] = json.loads(text)
            return order
        os.close(tells)
        os.waitpid(between, 0)
        orders.send(os.read(told, 64))
        for file in (told, *files):
            os.close(file)


def _become(order: dict[str, Any]) -> None:
    """Take over the surroundings of the order, as an interpreter does that starts in them."""
    if order["session"]:
        os.setsid()
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    os.chdir(order["cwd"])
    more = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one not in before]
    program = order["program"]
    sys.path[:1] = [os.path.dirname(program) if program else order["cwd"], *more]
    sys.argv[:] = [program or "penstock", *order["words"]]


def main() -> None:
    from penstock_cli.entry import main as penstock
    from penstock_cli.main import command_line
    from penstock_gateway.app import ROUTERS
    from penstock_workers.preload import preload

    command_line()
    preload("api")
    for name in (*PRELOADED, *(router.partition(":")[0] for router in ROUTERS)):
        import_module(name)
    gc.freeze()  # no collector writes to what all of them share
    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        _become(order)
        program = order["program"]
        _end(penstock if program is None else lambda: runpy.run_path(program, run_name="__main__"))


def _end(program: Callable[[], object]) -> NoReturn:
    """Run a program and end as Python does, but for taking modules apart: a tenth of a second."""
    status: object = 0
    try:
        program()
    except SystemExit as leaving:
        status = leaving.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if not isinstance(status, int | None):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status or 0)


if __name__ == "__main__":
    main()
