"""`in-flight`: what a worker's number of items in flight does to its rate.

First row: a task queue that runs one at a time."""

from __future__ import annotations

from pathlib import Path

from benchmarks.engines.items import items
from benchmarks.engines.offline_vllm import WARM_UP
from benchmarks.engines.setup import Setup
from benchmarks.engines.work import Work
from benchmarks.engines.worker import worker_fleet
from benchmarks.harness.report import Report, Row

ITEMS_PER_SLOT = 25  # few in flight take long: fewer items tell as much


def run(place: Path, setup: Setup) -> Report:
    works = {slots: _work(place, setup, slots) for slots in setup.in_flight}
    one = works[setup.in_flight[0]]
    rows = [
        Row(
            f"{slots} in flight, {work.items:,} items",
            f"{work.per_s:,.1f} items/s",
            f"{one.per_s:,.1f} items/s",
            f"{work.per_s / one.per_s:.1f}x",
        )
        for slots, work in works.items()
    ]
    note = (
        f"beside it: {setup.in_flight[0]} in flight; the engine runs up to {setup.max_num_seqs} at "
        "once"
    )
    return Report("in-flight, one worker each, one round", rows, [note])


def _work(place: Path, setup: Setup, slots: int) -> Work:
    with worker_fleet(place / f"in-flight-{slots}", setup, concurrency=slots) as fleet:
        fleet.start()
        fleet.run(items(setup, slots, first=WARM_UP))
        return fleet.run(items(setup, min(setup.items, ITEMS_PER_SLOT * slots)))
