"""(e) Peak memory of the feeding process and of a worker, for a small job and a large one, each in
processes of its own."""

from __future__ import annotations

from benchmarks.harness.fleet import JobCost, fleet
from benchmarks.harness.ground import folder, redis_server
from benchmarks.harness.report import Report, Row
from benchmarks.noop_path import CONCURRENCY, WORKER

FLAT = 1.2  # the larger job's peak over the smaller one's
MIB = 2**20


def run(quick: bool) -> Report:
    small, large = (10_000, 100_000) if quick else (10_000, 1_000_000)
    few, many = peaks(small), peaks(large)
    rows = [
        _row("control process (feeder)", few.control_peak, many.control_peak),
        _row("worker process", few.worker_peak, many.worker_peak),
    ]
    return Report(f"(e) peak resident memory, {large:,} items against {small:,}", rows)


def peaks(items: int) -> JobCost:
    with (
        folder() as place,
        redis_server(place) as server,
        fleet(place / "fleet", server, worker=WORKER, concurrency=CONCURRENCY) as running,
    ):
        return running.run(items)


def _row(what: str, few: int, many: int) -> Row:
    ratio = many / few
    return Row(
        what,
        f"{many / MIB:.0f} MiB",
        f"{few / MIB:.0f} MiB",
        f"{ratio:.2f}x",
        f"<= {FLAT}x",
        ratio <= FLAT,
    )
