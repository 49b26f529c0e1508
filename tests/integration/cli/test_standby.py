"""Workers that `penstock run` forks: real processes, orders and reports through their pipes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock_cli.processes import standby as subject
from penstock_cli.processes.standby import DOOR, ForkedWorker, Standby

# The fork server without what a real worker imports; its workers do what their settings say.
SERVER = """
import os, sys, time
from penstock_cli.processes.fork_server import ForkServer
server = ForkServer(lambda kind: True)
print("as some modules do while they are imported", flush=True)
order = server.serve()
if order is None:
    sys.exit(7)
print(order["name"], "lease", os.environ.get("PENSTOCK_VISIBILITY_TIMEOUT_S"), "old", os.environ.get("PENSTOCK_REDIS_URL"), flush=True)
if os.environ["PENSTOCK_TEST"] == "wait":
    time.sleep(600)
sys.exit(int(os.environ["PENSTOCK_TEST"]))
"""
BROKEN = "raise SystemExit(1)"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def runs(code: str) -> None:
        monkeypatch.setattr(subject, "server_command", lambda _first: [sys.executable, "-c", code])

    runs(SERVER)
    return runs


def taken(standby: Standby, number: int, does: str, log: Path) -> ForkedWorker:
    worker = standby.take(
        "api", number, {"PENSTOCK_TEST": does, "PENSTOCK_VISIBILITY_TIMEOUT_S": "15.0"}, log
    )
    assert worker is not None
    return worker


def eventually(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def text_of(log: Path) -> str:
    with contextlib.suppress(OSError):
        return log.read_text()
    return ""


def running(worker: ForkedWorker, log: Path) -> bool:
    return worker.poll() is None and worker.pid is not None and "local-1" in text_of(log)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that was not waited for yet has, too."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


@pytest.mark.usefixtures("server")
def test_a_worker_gets_exactly_the_settings_that_are_ordered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is ordered is in force, what the command itself was given is not, and the log is the
    worker's own."""
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://of-the-fleet")
    log = tmp_path / "worker-1.log"
    with Standby("api") as standby:
        assert taken(standby, 1, "0", log).wait() == 0
    assert log.read_text() == "local-1 lease 15.0 old None\n"


@pytest.mark.usefixtures("server")
def test_one_process_forks_all_workers_and_those_that_replace_them(tmp_path: Path) -> None:
    """What was imported once serves every worker, also those started again; how each ended is
    reported as the system does."""
    with Standby("api") as standby:
        killed = taken(standby, 1, "wait", tmp_path / "1.log")
        failed = taken(standby, 2, "3", tmp_path / "2.log")
        assert failed.wait() == 3
        eventually(lambda: running(killed, tmp_path / "1.log"))
        killed.kill()
        assert killed.wait() == -signal.SIGKILL
        killed.terminate()  # of one that has ended: nothing is signalled
        again = taken(standby, 1, "0", tmp_path / "1.log")
        assert again.wait() == 0
        assert len({killed.pid, failed.pid, again.pid}) == 3


@pytest.mark.usefixtures("server")
def test_nothing_is_left_when_the_command_ends(tmp_path: Path) -> None:
    """Whether workers were ordered or not, the server and they end with the command."""
    with Standby("api") as standby:
        worker = taken(standby, 1, "wait", tmp_path / "1.log")
        eventually(lambda: running(worker, tmp_path / "1.log"))
    assert worker.poll() is not None
    assert worker.pid is not None
    eventually(lambda: gone(worker.pid or 0))
    with Standby("api") as standby:
        process = standby._process
    assert process.poll() is not None


@pytest.mark.usefixtures("server")
def test_workers_of_a_killed_server_end_and_are_counted_as_ended(tmp_path: Path) -> None:
    """The supervisor then starts new ones by themselves: a dead server forks none."""
    with Standby("api") as standby:
        worker = taken(standby, 1, "wait", tmp_path / "1.log")
        eventually(lambda: running(worker, tmp_path / "1.log"))
        os.kill(standby._process.pid, signal.SIGKILL)
        assert worker.wait() == -signal.SIGTERM
        eventually(lambda: gone(worker.pid or 0))
        assert standby.take("api", 1, {}, tmp_path / "1.log") is None


@pytest.mark.usefixtures("server")
def test_a_server_that_hangs_holds_up_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that must end ends, although the process that would end it does not answer."""
    monkeypatch.setattr(subject, "KILLED_WITHIN_S", 0.2)
    with Standby("api") as standby:
        worker = taken(standby, 1, "wait", tmp_path / "1.log")
        eventually(lambda: running(worker, tmp_path / "1.log"))
        os.kill(standby._process.pid, signal.SIGSTOP)
        worker.kill()
        assert worker.wait() == -signal.SIGTERM
        eventually(lambda: gone(worker.pid or 0))


def test_a_server_without_a_command_ends_by_itself() -> None:
    """`penstock run` was killed before it ordered a worker: standard input ends, and so does the
    process."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=60) == 7


def test_a_server_that_cannot_import_forks_nothing(
    tmp_path: Path, server: Callable[[str], None]
) -> None:
    """A worker that is started by itself then says why, in its log."""
    server(BROKEN)
    with Standby("api") as standby:
        standby._process.wait()
        assert standby.take("api", 1, {}, tmp_path / "1.log") is None


def test_a_worker_that_is_not_forked_yet_is_stopped_with_its_server(
    tmp_path: Path, server: Callable[[str], None]
) -> None:
    """An interrupt while modules are still imported waits for none of them."""
    server("import time; time.sleep(600)")
    with Standby("api") as standby:
        worker = taken(standby, 1, "wait", tmp_path / "1.log")
        worker.terminate()
        assert worker.wait() == -signal.SIGTERM


KINDS = """
import os, sys
from penstock_cli.processes.fork_server import ForkServer
seen = []
order = ForkServer(lambda kind: seen.append(kind) or kind != "broken").serve()
if order is None:
    sys.exit(7)
print(order["kind"], order["name"], seen, oct(os.umask(0)), flush=True)
"""


def test_each_kind_is_imported_before_its_first_fork(
    tmp_path: Path, server: Callable[[str], None]
) -> None:
    """A door and workers come from one process; what it does not know it does not fork, and it ends
    where a process could not be forked safely any more."""
    server(KINDS)
    door, worker = tmp_path / "door.log", tmp_path / "worker.log"
    with Standby(DOOR, "api", "broken") as standby:
        assert standby.take("gpu", 1, {}, tmp_path / "gpu.log") is None
        first = standby.take(DOOR, 1, {}, door, umask=0o077)
        second = standby.take("api", 1, {}, worker)
        assert first is not None
        assert second is not None
        assert [first.wait(), second.wait()] == [0, 0]
        refused = standby.take("broken", 1, {}, tmp_path / "broken.log")
        assert refused is not None
        assert refused.wait() == -signal.SIGTERM
    assert text_of(door).split() == [DOOR, DOOR, f"['{DOOR}']", "0o77"]
    assert text_of(worker).startswith(f"api local-1 ['{DOOR}', 'api'] ")
