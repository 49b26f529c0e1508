"""(n) The queue path with both stores: runner, starts and settle around a lane that answers at once."""

from __future__ import annotations

from celery import Celery

from benchmarks.fleet import JobCost, fleet
from benchmarks.ground import RunningRedis, folder, redis_server
from benchmarks.report import Report, Row, median

WORKER = "benchmarks.noop_worker"
CONCURRENCY = 256
ROUNDS = 3
TARGET_MS = 0.15
EVENTS_TARGET = 1.5  # a prototype measured 1.3 for buffered events; Celery's own cost 1.6


def run(quick: bool) -> Report:
    items = 10_000 if quick else 50_000
    with (
        folder() as place,
        redis_server(place) as server,
        fleet(place / "fleet", server, worker=WORKER, concurrency=CONCURRENCY) as running,
    ):
        costs = [running.run(items) for _ in range(1 if quick else ROUNDS)]
        enable_events(server)
        watched = running.run(items)
    worker = median([cost.worker_ms for cost in costs])
    rows = [
        Row("CPU per item, worker process", f"{worker:.3f} ms", "", "", f"<= {TARGET_MS} ms", worker <= TARGET_MS),
        Row(
            "the same with task events on, as Flower wants them",
            f"{watched.worker_ms:.3f} ms",
            f"{worker:.3f} ms",
            f"{watched.worker_ms / worker:.2f}x",
            f"<= {EVENTS_TARGET}x",
            watched.worker_ms <= EVENTS_TARGET * worker,
        ),
        Row("items per second, one worker process", f"{median([items / cost.wall_s for cost in costs]):,.0f}"),
    ]
    title = f"(n) queue path with SQL and Redis settlement, no-op lane, {items:,} items, {len(costs)} round(s)"
    return Report(title, rows, [_note(cost) for cost in costs])


def enable_events(server: RunningRedis) -> None:
    """What Flower sends every few seconds."""
    with Celery("bench", broker=server.url, set_as_current=False) as app:
        app.control.enable_events(reply=True, timeout=2)


def _note(cost: JobCost) -> str:
    return (
        f"worker {cost.worker_ms:.3f}, control and feeder {cost.control_ms:.3f}, submit {cost.submit_ms:.3f}, "
        f"redis-server {cost.redis_ms:.3f} ms per item"
    )
