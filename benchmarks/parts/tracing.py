"""(t) What tracing costs: the no-op fleet with nothing traced, one item in a hundred, and all of
them.

Three fleets stand side by side, each with its own Redis, and run jobs of the same size in turn, so
that whatever else the machine does meets all of them. A collector takes spans over HTTP and throws
them away.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.harness.fleet import Fleet, JobCost, fleet
from benchmarks.harness.ground import folder, redis_server
from benchmarks.harness.report import Report, Row, median

WORKER = "benchmarks.noop_worker"
CONCURRENCY = 256
ROUNDS = 5
SHARES = (0.0, 0.01, 1.0)
FEW_TARGET = 1.05  # of the CPU without any: one in a hundred is to be had for nothing


def run(quick: bool) -> Report:
    items, rounds = (5_000, 1) if quick else (20_000, ROUNDS)
    costs: dict[float, list[JobCost]] = defaultdict(list)
    with folder() as place, collector() as url, contextlib.ExitStack() as running:
        fleets = {
            share: running.enter_context(_fleet(place / f"share-{share:g}", share, url))
            for share in SHARES
        }
        for number in range(rounds):
            for share in (*SHARES[number % 3 :], *SHARES[: number % 3]):
                costs[share].append(fleets[share].run(items))
    title = f"(t) tracing, no-op lane, {items:,} items, {rounds} round(s), medians"
    return Report(title, [row for share in SHARES for row in _rows(share, costs, items)])


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """Takes everything and keeps nothing."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Not on the table."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def _fleet(place: Path, share: float, collector_url: str) -> Iterator[Fleet]:
    settings = {"PENSTOCK_TRACE_SHARE": str(share), "OTEL_EXPORTER_OTLP_ENDPOINT": collector_url}
    with (
        redis_server(place) as server,
        fleet(
            place / "fleet", server, worker=WORKER, concurrency=CONCURRENCY, settings=settings
        ) as running,
    ):
        yield running


def _rows(share: float, costs: dict[float, list[JobCost]], items: int) -> Iterator[Row]:
    worker, control, pace = _medians(costs[share], items)
    off_worker, off_control, off_pace = _medians(costs[0.0], items)
    name = "off" if not share else f"{share:.0%} traced"
    target, met = (
        ("", None) if share != 0.01 else (f"<= {FEW_TARGET}x", worker <= FEW_TARGET * off_worker)
    )
    compared = (
        [("", "", "")] * 3
        if not share
        else [
            (f"{off_worker:.3f} ms off", f"{worker / off_worker:.2f}x", target),
            (f"{off_control:.3f} ms off", f"{control / off_control:.2f}x", ""),
            (f"{off_pace:,.0f} off", f"{pace / off_pace:.2f}x", ""),
        ]
    )
    yield Row(f"{name}: CPU per item, worker", f"{worker:.3f} ms", *compared[0], met)
    yield Row(f"{name}: CPU per item, control and feeder", f"{control:.3f} ms", *compared[1])
    yield Row(f"{name}: items per second", f"{pace:,.0f}", *compared[2])


def _medians(costs: list[JobCost], items: int) -> tuple[float, float, float]:
    return (
        median([cost.worker_ms for cost in costs]),
        median([cost.control_ms for cost in costs]),
        median([items / cost.wall_s for cost in costs]),
    )
