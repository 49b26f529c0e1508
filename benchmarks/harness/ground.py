"""What every benchmark stands on: a Redis and a simulated provider of its own, a temporary folder,
and a file of documents."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import orjson
import psutil
import redis

from benchmarks.harness.documents import doc_id, request_body

ROOT = Path(__file__).resolve().parents[2]
PACKAGE_FOLDERS = ("producer", "workers", "ratelimit", "ledger", "gateway", "cli")
START_TIMEOUT_S = 30.0


class GroundError(Exception):
    """A server of the benchmark did not start."""


@dataclass(frozen=True)
class Usage:
    """What a process has used so far: seconds of CPU, and the most bytes it ever had in memory."""

    cpu_s: float
    peak_bytes: int


def end_in_order() -> None:
    """On SIGTERM servers and folders go, too. Each command of the benchmarks begins with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as path:
        yield Path(path)


@contextlib.contextmanager
def tests_on_path() -> Iterator[None]:
    """For the real servers that tests start, too."""
    sys.path.insert(0, str(ROOT / "tests/harness"))
    try:
        yield
    finally:
        sys.path.remove(str(ROOT / "tests/harness"))


@contextlib.contextmanager
def redis_server(place: Path) -> Iterator[RunningRedis]:
    """The redis-server that tests use, on a free port, without persistence."""
    with tests_on_path():
        servers = import_module("servers")
    server = servers.RedisServer.start(place / "redis")
    try:
        yield RunningRedis(server.url, server.pid)
    finally:
        server.stop()


@dataclass(frozen=True)
class RunningRedis:
    url: str
    pid: int

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)


@dataclass(frozen=True)
class RunningSimulator:
    url: str  # with /v1
    pid: int


@contextlib.contextmanager
def simulator(latency_ms: float, sigma: float, *more: str) -> Iterator[RunningSimulator]:
    """`penstock simulate` without limits or faults, with ``more`` flags, in a process of its
    own."""
    options = [
        "--port",
        "0",
        "--latency-ms",
        f"{latency_ms:g}",
        "--latency-sigma",
        f"{sigma:g}",
        *more,
    ]
    with _serving([sys.executable, "-m", "penstock_simulate", *options]) as running:
        yield running


@contextlib.contextmanager
def provider(latency_ms: float) -> Iterator[RunningSimulator]:
    """A server that answers all alike and costs next to nothing, in a process of its own.

    See provider.py."""
    with _serving(
        [sys.executable, "-m", "benchmarks.harness.provider", f"{latency_ms:g}"]
    ) as running:
        yield running


@contextlib.contextmanager
def _serving(command: list[str]) -> Iterator[RunningSimulator]:
    with process(command, stdout=subprocess.PIPE) as running:
        found = re.search(rb"serving (\S+)", _first_line(running))
        if found is None:
            raise GroundError(f"{' '.join(command[1:])} did not say where it serves")
        yield RunningSimulator(found[1].decode(), running.pid)


@contextlib.contextmanager
def process(
    command: list[str],
    *,
    variables: Mapping[str, str] | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    log: Path | None = None,
    checkout: Path = ROOT,
) -> Iterator[subprocess.Popen[bytes]]:
    """A child that is ended with the block: asked first, then killed.

    It runs the code of ``checkout``.

    ``log`` gets its stderr, and its stdout where no ``stdout`` is named.
    """
    output = log.open("wb") if log is not None else None
    environment = {**os.environ, **(variables or {})}
    if checkout != ROOT:  # before what is installed in this environment
        environment["PYTHONPATH"] = os.pathsep.join(
            str(checkout / folder) for folder in PACKAGE_FOLDERS
        )
    started = subprocess.Popen(
        command,
        env=environment,
        stdin=stdin,
        stdout=output if stdout is None else stdout,
        stderr=output,
        cwd=checkout,
    )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(15)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        if output is not None:
            output.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def usage(pid: int) -> Usage:
    """Of a living process, all its threads together.

    ``peak_bytes`` is 0 where the kernel does not tell."""
    times = psutil.Process(pid).cpu_times()
    return Usage(times.user + times.system, _peak_bytes(pid))


def write_documents(path: Path, number: int, *, first: int = 0, texts: int | None = None) -> Path:
    """An OpenAI Batch file of ``number`` lines with ids of 16 bytes; with ``texts`` only so many
    requests are different."""
    with path.open("wb") as file:
        for n in range(first, first + number):
            body = request_body(n if texts is None else n % texts)
            line = {
                "custom_id": doc_id(n),
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body,
            }
            file.write(orjson.dumps(line) + b"\n")
    return path


def _first_line(running: subprocess.Popen[bytes]) -> bytes:
    assert running.stdout is not None
    with selectors.DefaultSelector() as ready:
        ready.register(running.stdout, selectors.EVENT_READ)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and running.poll() is None:
            if ready.select(0.2):
                return running.stdout.readline()
    raise GroundError(f"{running.args!r} said nothing within {START_TIMEOUT_S:.0f} s")


def _peak_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0
    return 0
