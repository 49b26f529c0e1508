"""The processes that chaos starts, and ends however it is ended itself."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock_cli.chaos.processes import Process, keep_port


def test_an_interrupt_in_the_middle_of_a_look_keeps_nothing_alive(tmp_path: Path) -> None:
    """A signal's handler may raise between the two lines in which `Popen.poll` takes its lock and
    begins to guard it: the lock stays taken, and the process is killed all the same."""
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleeps) as popen:
        lock: Any = popen._waitpid_lock  # type: ignore[attr-defined]  # what the interrupt leaves behind
        assert lock.acquire(blocking=False)
        try:
            Process("sleeper", tmp_path / "log", popen).kill()
        finally:
            lock.release()
        assert popen.wait(10) == -9


class Owner:
    """What a port is kept for."""


def test_a_kept_port_is_for_our_servers_alone() -> None:
    """A server that reuses addresses listens there as often as it is started; who asks for the port
    without that does not get it, until its owner is gone."""
    owner = Owner()
    port = keep_port(owner)
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", port)) as server,
            socket.create_connection(("127.0.0.1", port)),
        ):
            server.accept()[0].close()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    del owner
    with socket.create_server(("127.0.0.1", port)):
        pass
