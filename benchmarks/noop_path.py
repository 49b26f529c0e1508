"""(n) The queue path with both stores: runner, starts and settle around a lane that answers at once."""

from __future__ import annotations

from benchmarks.fleet import JobCost, fleet
from benchmarks.ground import folder, redis_server
from benchmarks.report import Report, Row, median

WORKER = "benchmarks.noop_worker"
CONCURRENCY = 256
ROUNDS = 3
TARGET_MS = 0.15


def run(quick: bool) -> Report:
    items = 10_000 if quick else 50_000
    with (
        folder() as place,
        redis_server(place) as server,
        fleet(place / "fleet", server, worker=WORKER, concurrency=CONCURRENCY) as running,
    ):
        costs = [running.run(items) for _ in range(1 if quick else ROUNDS)]
    worker = median([cost.worker_ms for cost in costs])
    rows = [
        Row("CPU per item, worker process", f"{worker:.3f} ms", "", "", f"<= {TARGET_MS} ms", worker <= TARGET_MS),
        Row("items per second, one worker process", f"{median([items / cost.wall_s for cost in costs]):,.0f}"),
    ]
    title = f"(n) queue path with SQL and Redis settlement, no-op lane, {items:,} items, {len(costs)} round(s)"
    return Report(title, rows, [_note(cost) for cost in costs])


def _note(cost: JobCost) -> str:
    return (
        f"worker {cost.worker_ms:.3f}, control and feeder {cost.control_ms:.3f}, submit {cost.submit_ms:.3f}, "
        f"redis-server {cost.redis_ms:.3f} ms per item"
    )
