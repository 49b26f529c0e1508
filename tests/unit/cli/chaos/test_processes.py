"""The processes that chaos starts, and ends however it is ended itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock_cli.chaos.processes import Process


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
