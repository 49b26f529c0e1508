"""(i) CPU of an idle `penstock serve`, beside what its parts cost elsewhere: two stock Celery workers,
an empty uvicorn and a Redis. Then, how soon it begins a job that comes while it rests.

Both stand side by side, so that what else the machine does meets both. The hour's job of calls that
wait is open, as it is on a server that was asked once.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import psutil

from benchmarks.harness.ground import folder, free_port, process, redis_server
from benchmarks.harness.provider import RESPONSE
from benchmarks.harness.report import Report, Row
from benchmarks.harness.targets import judge

SETTLED_S: Final = 12.0  # after the first call: control rests, workers ask ever less often
SECONDS, QUICK_SECONDS = 60.0, 20.0
STARTED_S: Final = 60.0
JOBS, QUICK_JOBS = 15, 5  # one after the other, each into a server that rests
RESTED_S: Final = 7.0  # control then looks again when something is committed
FIRST_CALL_MS: Final = 150.0  # after the submit was answered, at most
SERVE: Final = "idle serve / stock Celery, uvicorn and Redis"
TOGETHER_MS: Final = 10.0  # of CPU a second: where `serve` should get to
EMPTY: Final = "async def app(scope, receive, send): pass"


def run(quick: bool) -> Report:
    seconds = QUICK_SECONDS if quick else SECONDS
    with (
        folder() as place,
        redis_server(place) as server,
        _serve(place) as ours,
        _stock(place, server.url) as workers,
    ):
        time.sleep(SETTLED_S)
        groups = (ours.pids, [*workers, server.pid])
        before = list(map(_spent_ms, groups))
        time.sleep(seconds)
        after = map(_spent_ms, groups)
        mine, theirs = ((now - then) / seconds for now, then in zip(after, before, strict=True))
        answered, begun = _first_calls(ours, QUICK_JOBS if quick else JOBS)
    row = Row(
        "CPU a second while nothing is asked",
        f"{mine:.1f} ms",
        f"{theirs:.1f} ms",
        f"{mine / theirs:.2f}x",
    )
    return Report(
        "Idle: penstock serve with two workers",
        [
            row.judged(judge(SERVE, mine / theirs)),
            Row(
                "a job's first call, after its submit was answered",
                f"{statistics.median(begun):.0f} ms, {max(begun):.0f} at most",
                f"{statistics.median(answered):.0f} ms until the answer",
                "",
            ),
        ],
        [
            f"Wanted: {TOGETHER_MS:g} ms. Beside it: two stock Celery workers (threads), a uvicorn "
            f"without a route and a Redis, over the same {seconds:.0f} s. A job's first call: "
            f"within {FIRST_CALL_MS:g} ms."
        ],
        {SERVE: mine / theirs},
    )


class Provider(BaseHTTPRequestHandler):
    """Answers all alike, and notes when it was asked."""

    asked: ClassVar[list[float]] = []
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.asked.append(time.monotonic())
        self.rfile.read(int(self.headers["content-length"]))
        self.wfile.write(RESPONSE)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Serving(NamedTuple):
    """A server that was asked once: its door and its processes."""

    url: str
    pids: Sequence[int]


@contextlib.contextmanager
def _serve(place: Path) -> Iterator[Serving]:
    port, state = free_port(), place / "state"
    command = [sys.executable, "-m", "penstock_cli", "serve", "--port", f"{port}"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as provider:
        threading.Thread(target=provider.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{provider.server_port}/v1"
        command += ["--state", str(state), "--base-url", base]
        key = {"OPENAI_API_KEY": "none"}
        with process(command, variables=key, log=place / "serve.log") as parent:
            url = f"http://127.0.0.1:{port}/v1"
            _ask(url)
            family = psutil.Process(parent.pid)
            yield Serving(url, [family.pid, *(one.pid for one in family.children(recursive=True))])
        provider.shutdown()


def _first_calls(server: Serving, jobs: int) -> tuple[list[float], list[float]]:
    """Submit jobs of one document, each while the server rests.

    Return the milliseconds until each submit was answered, and from there to the job's call."""
    line = json.dumps({"id": "one", "text": "hello"})
    parts = [
        '--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch',
        f'--x\r\nContent-Disposition: form-data; name="file"; filename="x.jsonl"\r\n\r\n{line}',
        "--x--\r\n",
    ]
    kind = "multipart/form-data; boundary=x"
    source = _post(f"{server.url}/files", "\r\n".join(parts).encode(), kind)["id"]
    answered, begun = list[float](), list[float]()
    for number in range(jobs):
        time.sleep(RESTED_S)
        Provider.asked.clear()
        job = {"job": f"first-{number}", "source": source, "model": "m", "prompt": "{text}"}
        sent = time.monotonic()
        _post(f"{server.url}/jobs", json.dumps(job).encode())
        known = time.monotonic()
        while not Provider.asked:
            if time.monotonic() > known + STARTED_S:
                raise TimeoutError(f"a job was not begun within {STARTED_S:g} s")
            time.sleep(0.001)
        answered.append((known - sent) * 1000)
        begun.append((Provider.asked[0] - known) * 1000)
    return answered, begun


@contextlib.contextmanager
def _stock(place: Path, redis_url: str) -> Iterator[list[int]]:
    (place / "empty.py").write_text(EMPTY)
    worker = [sys.executable, "-m", "benchmarks.harness.queue_worker", "threads", redis_url]
    door = [sys.executable, "-m", "uvicorn", "--app-dir", str(place), "empty:app"]
    door += ["--lifespan", "off", "--port", f"{free_port()}"]
    with contextlib.ExitStack() as running:
        yield [
            running.enter_context(process(command, log=place / f"stock-{number}.log")).pid
            for number, command in enumerate((worker, worker, door))
        ]


def _ask(url: str) -> None:
    """Ask until the server answers, so that the job of this hour is open."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    end = time.monotonic() + STARTED_S
    while True:
        try:
            _post(f"{url}/chat/completions", json.dumps(body).encode())
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _post(url: str, body: bytes, kind: str = "application/json") -> Any:
    headers = {"content-type": kind, "authorization": "Bearer none"}
    with urllib.request.urlopen(
        urllib.request.Request(url, body, headers), timeout=STARTED_S
    ) as got:
        return json.load(got)


def _spent_ms(pids: Sequence[int]) -> float:
    """Return the CPU that processes have used, by the scheduler's own count."""
    return sum(
        int(task.read_text().split()[0]) / 1e6
        for pid in pids
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )
