"""`penstock run` as a user has it: a folder to run commands in, and a simulated provider."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forked import Penstock

RUN_TIMEOUT_S = 180


@dataclass
class Simulator:
    """A simulated provider of one test."""

    url: str

    def stats(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.url.removesuffix("/v1") + "/stats") as answer:
            found: dict[str, Any] = json.load(answer)
            return found


@contextmanager
def simulator(*flags: str) -> Iterator[Simulator]:
    words = ["simulate", "--port", "0", "--latency-ms", "5", *flags]
    # not in the folder of a test, which asks who is at work there
    process = Penstock(words, stdout=subprocess.PIPE, text=True, cwd="/")
    assert process.stdout is not None
    try:
        yield Simulator(process.stdout.readline().split()[-1])
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@dataclass
class Machine:
    """A folder in which to run commands."""

    folder: Path

    def source(self, documents: int, name: str = "reviews.jsonl", bad: str = "") -> Path:
        lines = [
            json.dumps({"id": f"doc-{number}", "text": f"review {number}"})
            for number in range(documents)
        ]
        path = self.folder / name
        path.write_text("".join(f"{line}\n" for line in lines) + bad)
        return path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")
        }
        return Penstock(
            arguments,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def penstock(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        try:
            told, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            told, _ = process.communicate()
            pytest.fail(f"still running after {RUN_TIMEOUT_S} s:\n{told}\n{self.logs()}")
        return process.returncode, told

    def run_arguments(self, provider: Simulator, *more: str) -> list[str]:
        job = ["--base-url", provider.url, "--model", "sim", "--prompt", "Summarise: {text}"]
        return ["run", "reviews.jsonl", "--out", "out", *job, "--no-progress", *more]

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.folder / "out" / "report.json").read_text())
        return report

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "out" / name).read_text().splitlines()]

    def logs(self) -> str:
        return "\n".join(
            path.read_text()[-3000:] for path in self.folder.glob("out/.penstock/logs/*.log")
        )

    def leftovers(self) -> list[str]:
        """Processes that work in this folder."""
        return list(self.processes().values())

    def at_work(self) -> list[str]:
        """Those but this one, and the Redis that a killed run leaves, idle, to the one that goes
        on."""
        found = self.processes().items()
        return [words for pid, words in found if pid != os.getpid() and "-server " not in words]

    def processes(self) -> dict[int, str]:
        """The pids of those, and their command lines behind what a forked one is named after."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                inside = entry.name.isdigit() and str((entry / "cwd").readlink()).startswith(
                    str(self.folder)
                )
                if inside:
                    found[int(entry.name)] = words_of(int(entry.name))
        return found


def words_of(pid: int) -> str:
    """Return what a process was started with; the name that a forked one has stands first."""
    there = Path(f"/proc/{pid}")
    return f"{(there / 'comm').read_text()} {(there / 'cmdline').read_text()}".replace("\0", " ")


def eventually(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
