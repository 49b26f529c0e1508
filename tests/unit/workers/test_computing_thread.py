"""A worker's end while its model computes: the exit status is that of the drain."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENDS = """
import atexit, sys, threading
from penstock_workers.background import ComputingThread, exit_process

atexit.register(lambda: print("taken down"))
at_work = threading.Event()
{thread}
print("drained")
exit_process(3)
"""
COMPUTES = (
    "ComputingThread(lambda: (at_work.set(), threading.Event().wait()), 'encoder').start(); "
    "at_work.wait()"
)
HAS_COMPUTED = "done = ComputingThread(at_work.set, 'encoder'); done.start(); done.join()"


@pytest.mark.parametrize(
    ("thread", "said"),
    [
        (COMPUTES, ["drained"]),
        (HAS_COMPUTED, ["drained", "taken down"]),
        ("", ["drained", "taken down"]),
    ],
)
def test_nothing_is_taken_down_below_a_thread_that_computes(thread: str, said: list[str]) -> None:
    """The process ends at once with its status and what it has written, and in the usual way where
    no model computes."""
    ended = subprocess.run(
        [sys.executable, "-c", ENDS.format(thread=thread)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout.splitlines(), ended.stderr) == (3, said, "")
