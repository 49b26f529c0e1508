"""(t) How long a person waits for a command to begin and to end: `penstock run` of 200 documents of
0.2 s beside a bare aiohttp loop of the same calls, `--help` beside an interpreter that imports
Typer and its help, and `serve` beside an empty uvicorn, until each answers.

Floor and command take turns, each in a process of its own with modules compiled before, and what is
held is the CPU of all its processes, which other work on the machine stretches least. The bare loop
has 64 calls in flight from its first moment on.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import orjson
import psutil

from benchmarks.harness.ground import folder, free_port, process, provider
from benchmarks.harness.report import Report, Row
from benchmarks.harness.targets import judge

ROUNDS, QUICK_ROUNDS = 7, 3
DOCUMENTS, LATENCY_MS, AT_A_TIME, WORKERS = 200, 200.0, 64, 2
STARTED_S: Final = 120.0
POLL_S: Final = 0.01
RUN: Final = "CPU of penstock run / bare aiohttp"
HELP: Final = "CPU of penstock --help / typer"
SERVE: Final = "CPU of penstock serve until it answers / uvicorn"
GOALS_S: Final = {RUN: 2.2, HELP: 0.25, SERVE: 1.5}  # on a quiet machine of two cores
BARE: Final = """
import asyncio, sys
import aiohttp

async def main(url, documents, at_a_time):
    slots = asyncio.Semaphore(at_a_time)
    async with aiohttp.ClientSession() as session:
        async def ask(number):
            body = {"model": "m", "messages": [{"role": "user", "content": f"text {number}"}]}
            async with slots, session.post(f"{url}/chat/completions", json=body) as answer:
                await answer.json()
        await asyncio.gather(*map(ask, range(documents)))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""
TYPER: Final = "import typer, typer.rich_utils"
EMPTY: Final = """
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})
"""


class Took(NamedTuple):
    """Seconds by the clock, and of CPU of all processes."""

    clock_s: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.clock_s:.2f} s, {self.cpu_s:.2f} of CPU"


def run(quick: bool) -> Report:
    with folder() as place, provider(LATENCY_MS) as answers, _compiled(place) as variables:
        (place / "empty.py").write_text(EMPTY)
        source = place / "documents.jsonl"
        source.write_bytes(
            b"".join(
                orjson.dumps({"id": f"d{number}", "text": f"text {number}"}) + b"\n"
                for number in range(DOCUMENTS)
            )
        )
        bare = [sys.executable, "-c", BARE, answers.url, f"{DOCUMENTS}", f"{AT_A_TIME}"]
        pairs: Mapping[str, tuple[Callable[[], Took], Callable[[], Took]]] = {
            RUN: (
                lambda: _of_run(place, source, answers.url, variables),
                lambda: _of(bare, variables),
            ),
            HELP: (
                lambda: _of([sys.executable, "-m", "penstock_cli", "--help"], variables),
                lambda: _of([sys.executable, "-c", TYPER], variables),
            ),
            SERVE: (
                lambda: _of_serve(place, answers.url, variables),
                lambda: _of_uvicorn(place, variables),
            ),
        }
        rows, ratios = [], {}
        for name, (ours, floor) in pairs.items():
            # the first round compiles what it imports, and is not counted
            times = [(ours(), floor()) for _ in range(1 + (QUICK_ROUNDS if quick else ROUNDS))][1:]
            mine, beside = (
                Took(*map(statistics.median, zip(*each, strict=True)))
                for each in zip(*times, strict=True)
            )
            ratios[name] = statistics.median(one.cpu_s / other.cpu_s for one, other in times)
            row = Row(name, str(mine), str(beside), f"{ratios[name]:.2f}x")
            rows.append(row.judged(judge(name, ratios[name])))
    wanted = ", ".join(
        f"{name.removeprefix('CPU of ').partition(' / ')[0]} {goal:g} s"
        for name, goal in GOALS_S.items()
    )
    return Report(
        f"Starting and ending: {DOCUMENTS} documents of {LATENCY_MS:g} ms, {AT_A_TIME} at a time",
        rows,
        [f"Wanted on a quiet machine of two cores: {wanted}."],
        ratios,
    )


@contextlib.contextmanager
def _compiled(place: Path) -> Iterator[Mapping[str, str]]:
    """Give variables with which modules are compiled once, as they are where pip installs them."""
    variables = {name: value for name, value in os.environ.items() if "BYTECODE" not in name}
    yield {**variables, "PYTHONPYCACHEPREFIX": str(place / "compiled"), "OPENAI_API_KEY": "none"}


def _of(command: list[str], variables: Mapping[str, str]) -> Took:
    began, before = time.monotonic(), _children_s()
    subprocess.run(command, env=variables, check=True, capture_output=True)
    return Took(time.monotonic() - began, _children_s() - before)


def _children_s() -> float:
    """Return the CPU of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _of_run(place: Path, source: Path, url: str, variables: Mapping[str, str]) -> Took:
    out = place / f"out-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "penstock_cli", "run", str(source), "--out", str(out)]
    command += ["--base-url", url, "--model", "m", "--prompt", "Say: {text}", "--no-progress"]
    command += ["--workers", f"{WORKERS}", "--concurrency", f"{AT_A_TIME // WORKERS}"]
    return _of(command, variables)


def _of_serve(place: Path, url: str, variables: Mapping[str, str]) -> Took:
    port = free_port()
    command = [sys.executable, "-m", "penstock_cli", "serve", "--port", f"{port}"]
    command += ["--state", str(place / f"state-{port}"), "--base-url", url]
    return _until_answered(command, f"http://127.0.0.1:{port}/health", place, variables)


def _of_uvicorn(place: Path, variables: Mapping[str, str]) -> Took:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(place), "empty:app"]
    command += ["--lifespan", "off", "--port", f"{port}"]
    return _until_answered(command, f"http://127.0.0.1:{port}/", place, variables)


def _until_answered(
    command: list[str], url: str, place: Path, variables: Mapping[str, str]
) -> Took:
    began = time.monotonic()
    with process(command, variables=variables, log=place / "started.log") as parent:
        while True:
            try:
                with urllib.request.urlopen(url, timeout=STARTED_S):
                    first = psutil.Process(parent.pid)
                    used = [one.cpu_times() for one in (first, *first.children(recursive=True))]
                    return Took(
                        time.monotonic() - began, sum(one.user + one.system for one in used)
                    )
            except OSError:
                if time.monotonic() - began > STARTED_S:
                    raise
                time.sleep(POLL_S)
