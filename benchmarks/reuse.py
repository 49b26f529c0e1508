"""(u) Equal requests: what looking for them costs where none repeats, and what a document costs
that takes an answer.

`python -m benchmarks.reuse 10000 5`: documents of each job, and rounds. The no-op lane answers at
once, so a call costs nothing here: what is shown is what Penstock itself spends, and a real call
would come on top of the first two rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.growth import running_fleet
from benchmarks.harness.fleet import Fleet, JobCost
from benchmarks.harness.ground import end_in_order
from benchmarks.harness.report import Report, Row, median, show

ITEMS, ROUNDS = 20_000, 5
QUICK_ITEMS, QUICK_ROUNDS = 6_000, 2
EACH = 10  # documents of one text, where texts repeat
HOUR = 3600.0


class Kind(NamedTuple):
    """A job and what is asked of it."""

    spec: Mapping[str, Any]
    documents_per_text: int = 1  # 0: all documents are alike


PLAIN = "nothing is looked for"
KINDS = {
    PLAIN: Kind({}),
    "--dedup on, no request repeats": Kind({"dedup": "on"}),
    f"--dedup on, each request {EACH} times": Kind({"dedup": "on"}, EACH),
    "--dedup on, all documents alike": Kind({"dedup": "on"}, 0),
    "--cache, filled": Kind({"cache_s": HOUR}),
    "--cache, all hits": Kind({"cache_s": HOUR}),  # the same requests as the job before it
}


def run(quick: bool) -> Report:
    return measure(*((QUICK_ITEMS, QUICK_ROUNDS) if quick else (ITEMS, ROUNDS)))


def measure(items: int, rounds: int) -> Report:
    """Jobs of each kind take turns in one fleet; the answers of a round are another tenant's than
    those of the next."""
    found: dict[str, list[tuple[JobCost, float]]] = {name: [] for name in KINDS}
    with running_fleet(postgres=False) as (_, running, _):
        for turn in range(rounds):
            for name, kind in KINDS.items():
                found[name].append(_one(running, items, kind, f"round-{turn}"))
    plain = [cost for cost, _ in found[PLAIN]]
    rows: list[Row] = []
    for name, costs in found.items():
        for part, of in (("all but submit", _all), ("worker", _worker), ("redis", _redis)):
            figure = median([of(cost) for cost, _ in costs])
            ratio = median(
                [of(cost) / of(beside) for (cost, _), beside in zip(costs, plain, strict=True)]
            )
            rows.append(Row(f"{name}: {part}", f"{figure:.0f} us/item", "", f"{ratio:.2f}x"))
        rows.append(
            Row(f"{name}: commands of Redis", f"{median([calls for _, calls in costs]):.2f} /item")
        )
    title = (
        f"(u) equal requests, no-op lane, jobs of {items:,}, {rounds} round(s); beside jobs where "
        f"{PLAIN}"
    )
    return Report(title, rows)


def _one(running: Fleet, items: int, kind: Kind, tenant: str) -> tuple[JobCost, float]:
    texts = max(1, items // kind.documents_per_text) if kind.documents_per_text else 1
    cost = running.run(items, {**kind.spec, "tenant": tenant}, texts=texts)
    calls = sum(entry["calls"] for entry in running.redis_info("commandstats").values())
    return cost, calls / items


def _all(cost: JobCost) -> float:
    return 1000 * (cost.worker_ms + cost.redis_ms + cost.control_ms)


def _worker(cost: JobCost) -> float:
    return 1000 * cost.worker_ms


def _redis(cost: JobCost) -> float:
    return 1000 * cost.redis_ms


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reuse", description=__doc__)
    parser.add_argument("items", nargs="?", type=int, default=ITEMS, help="documents of each job")
    parser.add_argument("rounds", nargs="?", type=int, default=ROUNDS)
    given = parser.parse_args()
    show(measure(given.items, given.rounds))


if __name__ == "__main__":
    main()
