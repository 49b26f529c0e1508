"""(c) The whole path over HTTP, every Penstock process counted, beside loops that do nothing but
call.

`python -m benchmarks.http_path --beside CHECKOUT --setting PENSTOCK_UVLOOP=false` measures other
code and other settings in the same rounds: that is how a change is weighed.
"""

from __future__ import annotations

from benchmarks.harness.ground import end_in_order
from benchmarks.harness.report import Report, show
from benchmarks.harness.rounds import (
    OURS,
    Contender,
    Measured,
    arguments,
    contenders,
    ground_of,
    measure,
)

WORKER = "penstock_workers"
ITEMS, ROUNDS = 20_000, 5
QUICK_ITEMS, QUICK_ROUNDS = 6_000, 2  # about a minute


def run(quick: bool) -> Report:
    items, rounds = (QUICK_ITEMS, QUICK_ROUNDS) if quick else (ITEMS, ROUNDS)
    return _report(measure(WORKER, items, rounds, {OURS: Contender()}))


def _report(measured: Measured) -> Report:
    costs = measured.fleets[OURS]
    title = (
        f"(c) whole path over HTTP, {measured.items:,} items, {len(costs)} round(s), medians of "
        "the rounds"
    )
    ratios = {
        f"{part} / bare aiohttp": measured.ratio(OURS, part)
        for part in ("whole path", "worker", "redis")
    }
    return Report(title, list(measured.rows()), list(measured.notes()), ratios)


def main() -> None:
    end_in_order()
    given = arguments("http_path", __doc__, QUICK_ITEMS, QUICK_ROUNDS).parse_args()
    show(_report(measure(WORKER, given.items, given.rounds, contenders(given), ground_of(given))))


if __name__ == "__main__":
    main()
