"""`penstock run` under faults of its machine: it waits or goes on, says so, and pays nothing
twice."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import RUN_TIMEOUT_S, Machine, eventually, simulator
from small_disk import failing_disk, fill, small_disk

from penstock_cli.chaos.injections import read_only

DISK_MB = 120  # well above what is held back for calls in flight, small enough to be filled at once


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which a test may fill."""
    with small_disk(tmp_path / "out", DISK_MB) as place:
        yield place


def told_by(process: subprocess.Popen[str], word: str) -> str:
    """Read on until a line has this word; returns what was read."""
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if word in line:
            return read
    pytest.fail(f"ended without saying {word!r}:\n{read}")


def test_a_full_disk_is_waited_for(machine: Machine, disk: Path) -> None:
    """With no byte left the run says so, keeps answers that are paid for, and goes on by itself
    when there is room (A10)."""
    machine.source(500)
    with simulator("--latency-ms", "200") as provider:
        process = machine.start(*machine.run_arguments(provider, "--concurrency", "20"))
        eventually(lambda: provider.stats()["requests"] > 40)
        filler = fill(disk)
        told = told_by(process, "is nearly full")
        assert re.search(r"nearly full: no new calls until .* \d+\.\d MB are left", told)
        held = provider.stats()["requests"]
        filler.unlink()
        rest, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        assert process.returncode == 0, told + rest + machine.logs()
        assert provider.stats()["requests"] == 500
        assert held < 500
    assert machine.report()["succeeded"] == 500
    assert "Traceback" not in told + rest
    assert len(rest.splitlines()) < 60
    assert machine.leftovers() == []


def test_a_state_folder_that_turns_read_only_loses_nothing(machine: Machine, disk: Path) -> None:
    """The screen says so with the command that goes on, and the next run pays nothing twice
    (A10)."""
    machine.source(200)
    with simulator("--latency-ms", "200") as provider:
        arguments = machine.run_arguments(provider, "--concurrency", "10", "--workers", "1")
        process = machine.start(*arguments)
        eventually(lambda: provider.stats()["requests"] > 40)
        with read_only(disk):
            told, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        assert process.returncode not in (0, None), told
        assert "the file system has become read-only" in told, told + machine.logs()
        assert re.search(r"resume with:  penstock run reviews\.jsonl", told)
        assert "Traceback" not in told
        status, told = machine.penstock(*arguments)
        assert status == 0, told + machine.logs()
        assert provider.stats()["requests"] <= 200 + 10, "at most what was in flight is asked again"
    assert machine.report()["succeeded"] == 200


@pytest.mark.whole  # its processes take minutes to end on a busy machine
def test_a_disk_that_gives_up_loses_nothing(machine: Machine) -> None:
    """It takes no write more, to files that are open as well: the run ends and says so, and once
    the disk is repaired the same command pays for nothing twice but what was in flight."""
    machine.source(200)
    with (
        simulator("--latency-ms", "200") as provider,
        failing_disk(machine.folder / "out", 200) as disk,
    ):
        arguments = machine.run_arguments(provider, "--concurrency", "10", "--workers", "1")
        process = machine.start(*arguments)
        eventually(lambda: provider.stats()["requests"] > 40)
        disk.fail()
        told, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        assert process.returncode not in (0, None), told
        assert "the file system has become read-only" in told, told + machine.logs()
        assert re.search(r"resume with:  penstock run reviews\.jsonl", told)
        assert "Traceback" not in told
        eventually(lambda: machine.leftovers() == [])
        disk.mend()
        status, told = machine.penstock(*arguments)
        assert status == 0, told + machine.logs()
        assert provider.stats()["requests"] <= 200 + 10, "at most what was in flight is asked again"
        assert machine.report()["succeeded"] == 200


def test_ctrl_c_on_a_full_disk_is_resumable(machine: Machine, disk: Path) -> None:
    """Stopped while the disk is full: status 130, what fills it, the command; what was stored is
    not paid again (A10)."""
    machine.source(300)
    with simulator("--latency-ms", "200") as provider:
        arguments = machine.run_arguments(provider, "--concurrency", "10", "--workers", "1")
        process = machine.start(*arguments)
        eventually(lambda: provider.stats()["requests"] > 60)
        filler = fill(disk)
        told = told_by(process, "is nearly full")
        process.send_signal(signal.SIGINT)
        told += told_by(process, "stopping:")
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        assert process.returncode == 130, told + rest
        assert "resume with:  penstock run reviews.jsonl" in rest
        assert "Traceback" not in told + rest
        filler.unlink()
        status, told = machine.penstock(*arguments)
        assert status == 0, told + machine.logs()
        assert provider.stats()["requests"] <= 300 + 20 + 10, (
            "at most what workers held is asked again"
        )
    assert machine.report()["succeeded"] == 300


def test_a_run_resumes_over_damaged_files_of_its_redis(machine: Machine) -> None:
    """A power cut that leaves an unreadable AOF costs no second command and no second call of a
    finished document (A5)."""
    machine.source(300)
    with simulator("--latency-ms", "100") as provider:
        arguments = machine.run_arguments(provider, "--concurrency", "10", "--workers", "1")
        process = machine.start(*arguments)
        eventually(lambda: provider.stats()["requests"] > 100)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=RUN_TIMEOUT_S)
        assert process.returncode == 130
        for path in (machine.folder / "out/.penstock/redis").rglob("*.aof"):
            path.write_bytes(path.read_bytes()[:50] + bytes(1000))
        status, told = machine.penstock(*arguments)
        assert status == 0, told + machine.logs()
        assert "set aside in" in told
        assert provider.stats()["requests"] == 300
    assert machine.report()["succeeded"] == 300
