"""Processes of `penstock` that are forked from one that has imported it all.

A start from nothing is a second of imports, and the tests start a thousand of them. A forked one is
a process as any: with a session, an environment, a folder and files of its own, waited for and
killed by its pid; and what it starts of Penstock, it forks. `make test-all` starts each from
nothing, as `make test` does where a test is about the start: what it imports.

Run as a program this is the process that forks. It has one thread, and opens nothing. Each that it
forks has one of these beside it, for what it starts in turn.
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
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

FROM_NOTHING: Final = "TESTS_START_FROM_NOTHING"  # a variable: each process is started anew
PENSTOCK: Final = [sys.executable, "-m", "penstock_cli"]
# what these modules start is forked; others set limits to themselves, or are one test's own
MODULES: Final = (
    "penstock_cli",
    "penstock_cli.processes.fork_server",
    "penstock_cli.run.child",
    "ipykernel_launcher",
)
STREAMS: Final = ("p2cread", "c2pwrite", "errwrite")  # of Popen: a process's input, output, errors
# all of them, in the order in which it closes them
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


class Forked(subprocess.Popen[Any]):
    """A process that is forked where Python is to run Penstock or a file."""

    orders: ClassVar[socket.socket | None] = None  # to the process that forks for this one

    def _execute_child(self, *given: Any) -> None:
        """Have it forked, and become its parent."""
        start: Any = super()._execute_child  # type: ignore[misc]
        asked = inspect.signature(start).bind(*given).arguments
        order = _order(asked)
        if order is None:
            start(*given)
            return
        files = [asked[name] for name in STREAMS]
        files = [place if file == -1 else file for place, file in enumerate(files)]
        self.pid = _forked(order, files)
        self._child_created = True
        self._close_pipe_fds(*(asked[name] for name in PIPES))  # type: ignore[attr-defined]


class Penstock(Forked):
    """A `penstock` command as a process; ``words`` are what stands behind the name.

    ``program`` is a file that runs in the place of `penstock`."""

    def __init__(self, words: Sequence[str], *, program: Path | None = None, **options: Any):
        command = PENSTOCK if program is None else [sys.executable, str(program)]
        super().__init__([*command, *words], stdin=subprocess.DEVNULL, **options)


def _order(asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what to fork for these arguments of Popen; None where it starts from nothing."""
    if FROM_NOTHING in os.environ or sys.platform != "linux":
        return None
    if not isinstance(asked["args"], Sequence) or asked["pass_fds"] or asked["preexec_fn"]:
        return None
    python, *words = map(os.fspath, asked["args"])
    module = words[1] if words[:1] == ["-m"] else None
    is_ours = module in MODULES if module else "".join(words[:1]).endswith(".py")
    if python != sys.executable or not is_ours:
        return None
    return {
        "module": module,
        "words": words[1:] if module else words,
        "cwd": os.path.abspath(asked["cwd"] or "."),
        "env": dict(os.environ if asked["env"] is None else asked["env"]),
        "session": bool(asked["start_new_session"]),
        "umask": asked["umask"],
    }


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


def _forked(order: Mapping[str, Any], files: Sequence[int]) -> int:
    """Return the pid of a new process, whose parent is this one by then.

    The process that forks lets its grandchild go, which then belongs to the nearest ancestor that
    takes orphans in: this one, for that moment."""
    with _ONE_AT_A_TIME:
        if Forked.orders is None:
            Forked.orders = _start()
        prctl = ctypes.CDLL(None).prctl
        prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(Forked.orders, [json.dumps(order).encode()], files)
            return int(Forked.orders.recv(64))
        finally:
            prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _start() -> socket.socket:
    ours, theirs = _ends()
    subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), str(theirs.fileno())],
        cwd="/",  # tests ask which processes are at work in their folders
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
    theirs.close()
    return ours


def _ends() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ORDER_BYTES)
    return ends


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
            if os.fork():
                os._exit(0)
            order: dict[str, Any] = json.loads(text)
            if order["session"]:
                os.setsid()
            os.write(tells, str(os.getpid()).encode())
            while os.getppid() == parent:  # until it belongs to the one that asked for it
                time.sleep(0.0005)
            if not order["session"]:
                os.setpgid(0, os.getpgid(os.getppid()))
            for place, file in enumerate(files):
                os.dup2(file, place)
            os.closerange(3, max(*files, tells, orders.fileno()) + 1)
            orders.detach()
            Forked.orders, orders = _ends()
            if os.fork():
                orders.close()
                return order
            Forked.orders.close()
            os.setpgid(0, 0)  # it ends with the process beside it, and not by its signals
            for place in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), place)
            continue
        os.close(tells)
        os.waitpid(between, 0)
        orders.send(os.read(told, 64))
        for file in (told, *files):
            os.close(file)


def _live(order: Mapping[str, Any]) -> NoReturn:
    """Take over the surroundings of the order, as an interpreter does that starts in them; run its
    program, and end as Python does, but for taking modules apart: a tenth of a second."""
    if order["umask"] != -1:
        os.umask(order["umask"])
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    os.chdir(order["cwd"])
    more = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one not in before]
    module, words = order["module"], order["words"]
    sys.path[:1] = [order["cwd"] if module else os.path.dirname(words[0]), *more]
    sys.argv[:] = words
    # its command line stays that of the first process
    is_command = module == "penstock_cli" and words[1:]
    Path("/proc/self/comm").write_text(words[1] if is_command else Path(words[0]).stem)
    subprocess.Popen = Forked  # type: ignore[misc]
    status: object = 0
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
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


def main() -> None:
    import penstock_cli.entry  # noqa: F401
    from penstock_cli.main import command_line
    from penstock_gateway.app import ROUTERS
    from penstock_workers.preload import preload

    command_line()
    preload("api")
    for name in (*PRELOADED, *(router.partition(":")[0] for router in ROUTERS)):
        import_module(name)
    gc.freeze()  # no collector writes to what all of them share
    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    if order is None:
        os._exit(0)
    _live(order)


if __name__ == "__main__":
    main()
