"""(i) CPU of an idle `penstock serve`, beside what its parts cost elsewhere: two stock Celery workers,
an empty uvicorn and a Redis.

Both stand side by side, so that what else the machine does meets both. The hour's job of calls that
wait is open, as it is on a server that was asked once.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

from benchmarks.harness.ground import folder, free_port, process, provider, redis_server
from benchmarks.harness.report import Report, Row
from benchmarks.harness.targets import judge

SETTLED_S: Final = 12.0  # after the first call: control rests, workers ask ever less often
SECONDS, QUICK_SECONDS = 60.0, 20.0
STARTED_S: Final = 60.0
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
        groups = (ours, [*workers, server.pid])
        before = list(map(_spent_ms, groups))
        time.sleep(seconds)
        after = map(_spent_ms, groups)
        mine, theirs = ((now - then) / seconds for now, then in zip(after, before, strict=True))
    row = Row(
        "CPU a second while nothing is asked",
        f"{mine:.1f} ms",
        f"{theirs:.1f} ms",
        f"{mine / theirs:.2f}x",
    )
    return Report(
        "Idle: penstock serve with two workers",
        [row.judged(judge(SERVE, mine / theirs))],
        [
            f"Wanted: {TOGETHER_MS:g} ms. Beside it: two stock Celery workers (threads), a uvicorn "
            f"without a route and a Redis, over the same {seconds:.0f} s."
        ],
        {SERVE: mine / theirs},
    )


@contextlib.contextmanager
def _serve(place: Path) -> Iterator[list[int]]:
    """Give the processes of a server that was asked once."""
    port, state = free_port(), place / "state"
    command = [sys.executable, "-m", "penstock_cli", "serve", "--port", f"{port}"]
    with provider(1.0) as answers:
        command += ["--state", str(state), "--base-url", answers.url]
        key = {"OPENAI_API_KEY": "none"}
        with process(command, variables=key, log=place / "serve.log") as parent:
            _ask(port)
            family = psutil.Process(parent.pid)
            yield [family.pid, *(one.pid for one in family.children(recursive=True))]


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


def _ask(port: int) -> None:
    """Ask until the server answers, so that the job of this hour is open."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer none"},
    )
    end = time.monotonic() + STARTED_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=STARTED_S):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _spent_ms(pids: Sequence[int]) -> float:
    """Return the CPU that processes have used, by the scheduler's own count."""
    return sum(
        int(task.read_text().split()[0]) / 1e6
        for pid in pids
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )
