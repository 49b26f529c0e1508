"""(n) The queue path with both stores: runner, starts and settle around a lane that answers at
once.

`python -m benchmarks.noop_path --beside CHECKOUT` measures other code in the same rounds, as
benchmarks.http_path does.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery import Celery

from benchmarks.harness.fleet import fleet
from benchmarks.harness.ground import RunningRedis, end_in_order, folder, redis_server
from benchmarks.harness.report import Report, Row, median, show
from benchmarks.harness.rounds import (
    OURS,
    Contender,
    Measured,
    arguments,
    contenders,
    ground_of,
    measure,
)
from benchmarks.harness.targets import judge

WORKER = "benchmarks.noop_worker"
CONCURRENCY = 256
ITEMS, ROUNDS = 50_000, 3
QUICK_ITEMS, QUICK_ROUNDS = 6_000, 2
EVENTS_TARGET = 1.5  # a prototype measured 1.3 for buffered events; Celery's own cost 1.6
TWO = "two workers"
NOOP, SCALING = "no-op worker / bare aiohttp", "two workers' items per CPU second / one's"


def run(quick: bool) -> Report:
    items, rounds = (QUICK_ITEMS, QUICK_ROUNDS) if quick else (ITEMS, ROUNDS)
    measured = measure(WORKER, items, rounds, {OURS: Contender(), TWO: Contender(workers=2)})
    rows = [*measured.rows("no-op {part} / bare aiohttp"), *_scaling(measured), *_watched(items)]
    return _report(measured, rows)


def _report(measured: Measured, rows: list[Row]) -> Report:
    rounds = len(measured.fleets[OURS])
    title = (
        f"(n) queue path with SQL and Redis settlement, no-op lane, {measured.items:,} items, "
        f"{rounds} round(s)"
    )
    ratios = {NOOP: measured.ratio(OURS, "worker")}
    if TWO in measured.fleets:
        ratios[SCALING] = _two_over_one(measured)
    return Report(title, rows, list(measured.notes()), ratios)


def _scaling(measured: Measured) -> Iterator[Row]:
    """By CPU, since two workers, Redis, control and whatever else runs share two cores: what a
    second one adds to each."""
    ratio = _two_over_one(measured)
    pace = {
        name: median([cost.items / cost.wall_s for cost in measured.fleets[name]])
        for name in (OURS, TWO)
    }
    each = Row(
        "two workers: items per CPU second of each worker", "", "one worker's", f"{ratio:.2f}x"
    )
    yield each.judged(judge(SCALING, ratio))
    yield Row(
        "two workers: items per second, wall clock",
        f"{pace[TWO]:,.0f}/s",
        f"{pace[OURS]:,.0f}/s",
        f"{pace[TWO] / pace[OURS]:.2f}x",
    )


def _two_over_one(measured: Measured) -> float:
    """Twice the cores at so much CPU per item: 2.0 where an item costs the same beside another
    worker."""
    pairs = zip(measured.fleets[OURS], measured.fleets[TWO], strict=True)
    return 2 * median([one.steady_ms / two.steady_ms for one, two in pairs])


def _watched(items: int) -> Iterator[Row]:
    with (
        folder() as place,
        redis_server(place) as server,
        fleet(place / "fleet", server, worker=WORKER, concurrency=CONCURRENCY) as running,
    ):
        quiet = running.run(items).worker_ms
        enable_events(server)
        watched = running.run(items).worker_ms
    yield Row(
        "with task events on, as Flower wants them",
        f"{watched:.3f} ms",
        f"{quiet:.3f} ms",
        f"{watched / quiet:.2f}x",
        f"<= {EVENTS_TARGET}x",
        watched <= EVENTS_TARGET * quiet,
    )


def enable_events(server: RunningRedis) -> None:
    """What Flower sends every few seconds."""
    with Celery("bench", broker=server.url, set_as_current=False) as app:
        app.control.enable_events(reply=True, timeout=2)


def main() -> None:
    end_in_order()
    given = arguments("noop_path", __doc__, QUICK_ITEMS, QUICK_ROUNDS).parse_args()
    measured = measure(WORKER, given.items, given.rounds, contenders(given), ground_of(given))
    show(_report(measured, list(measured.rows("no-op {part} / bare aiohttp"))))


if __name__ == "__main__":
    main()
