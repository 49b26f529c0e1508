"""Recordings and images by `penstock run`, killed while they are sent."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from machine import Machine, eventually, simulator

RECORDINGS, AT_ONCE = 30, 4


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def kill_all(machine: Machine) -> None:
    """End every process that works in the folder, at once."""
    for pid in machine.processes():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.whole  # two starts of everything
@pytest.mark.parametrize("kind", ["recordings", "images"])
def test_a_run_that_is_killed_pays_only_for_what_was_in_flight(machine: Machine, kind: str) -> None:
    """The same command again sends what has no answer, and every document has one: a transcript,
    or a file that is there."""
    (machine.folder / "calls").mkdir()
    for number in range(RECORDINGS):
        content = b"ID3" + bytes([number]) * 200_000
        (machine.folder / "calls" / f"{number}.mp3").write_bytes(content)
    machine.source(RECORDINGS)
    job = {
        "recordings": [
            *("calls/", "--endpoint", "/v1/audio/transcriptions", "--audio-field", "file"),
            *("--param", "response_format=verbose_json"),
        ],
        "images": [
            *("reviews.jsonl", "--endpoint", "/v1/images/generations"),
            *("--prompt", "Draw {text}"),
        ],
    }[kind]
    with simulator("--latency-ms", "400") as provider:
        where = ["--base-url", provider.url, "--model", "sim", "--out", "out", "--no-progress"]
        pace = ["--concurrency", str(AT_ONCE), "--workers", "1"]
        arguments = ["run", *job, *where, *pace]
        process = machine.start(*arguments)
        eventually(lambda: provider.stats()["requests"] > RECORDINGS // 3)
        kill_all(machine)
        process.communicate()
        assert provider.stats()["requests"] < RECORDINGS
        status, told = machine.penstock(*arguments)
        assert status == 0, told + machine.logs()
        assert provider.stats()["requests"] <= RECORDINGS + AT_ONCE
    assert machine.report()["succeeded"] == RECORDINGS
    bodies = [line["response"]["body"] for line in machine.lines("output.jsonl")]
    if kind == "recordings":
        assert len({body["text"] for body in bodies}) == RECORDINGS
    else:
        files = [Path(body["data"][0]["object"]) for body in bodies]
        assert [file.read_bytes()[:4] for file in files] == [b"\x89PNG"] * RECORDINGS
    assert machine.leftovers() == []
