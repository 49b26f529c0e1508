"""Forked commands: processes as any, and what a start from nothing is beside them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from fleet import Fleet
from forked import FROM_NOTHING, Penstock, run

from penstock_ledger.model import JobState

PROGRAM = """
import json, os, signal, sys
said = [os.getppid(), os.getsid(0) == os.getpid(), os.getcwd(), os.environ["WORD"], sys.argv[1:]]
print(json.dumps(said), flush=True)
signal.pause()
"""


@pytest.mark.parametrize("session", [True, False])
def test_a_forked_process_is_a_process_as_any(tmp_path: Path, session: bool) -> None:
    """It is this one's child, has its own session, folder, variables and words, and ends by a
    signal."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    process = Penstock(
        ["a", "b c"],
        program=program,
        cwd=tmp_path,
        env={"WORD": "x"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=session,
    )
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    assert said == [os.getpid(), session, str(tmp_path), "x", ["a", "b c"]]
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM
    process.stdout.close()


def test_a_forked_command_ends_as_one_that_starts_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status and words are the same, of a command that succeeds and of one that is refused."""
    for words, status in ((["--version"], 0), (["status", "job", "--state", "none"], 2)):
        forked = run(words, 60, cwd=tmp_path)
        with monkeypatch.context() as patch:
            patch.setenv(FROM_NOTHING, "1")
            started = run(words, 60, cwd=tmp_path)
        assert forked.returncode == started.returncode == status, started.stderr
        assert (forked.stdout, forked.stderr) == (started.stdout, started.stderr)


def test_a_fleet_that_starts_from_nothing_runs_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Provider, control and worker import what they need by themselves."""
    monkeypatch.setenv(FROM_NOTHING, "1")
    with Fleet(tmp_path / "fleet") as fleet:
        fleet.provider.start()
        fleet.control()
        fleet.ready(fleet.worker())
        job = fleet.submit(5)
        fleet.wait_for(job, JobState.COMPLETED, 60)
        assert fleet.account(job, 5).calls.total() == 5
