"""`python -m benchmarks [letter ...] [--quick] [--check]`: each prints one table; without letters,
all of them in order."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module, util

from benchmarks.harness.check import end_by, letters, missed
from benchmarks.harness.ground import end_in_order, folder, redis_server
from benchmarks.harness.report import Report, machine, show

MODULES = {
    "a": "feed",
    "b": "queue_path",
    "n": "noop_path",
    "c": "http_path",
    "d": "redis_bytes",
    "e": "memory",
    "q": "pace",
    "g": "growth",
    "s": "direct_door",
    "i": "idle",
    "p": "interactive",
    "t": "start",
}
EXPLAINED = {
    "a": "feed rate",
    "b": "queue path against stock Celery",
    "n": "queue path with both stores, no-op lane",
    "c": "whole path over HTTP",
    "d": "bytes of Redis",
    "e": "peak memory",
    "q": "shared quota against a strict provider",
    "g": "what grows with a job",
    "s": "calls that wait beside direct calls",
    "i": "an idle server",
    "p": "interactive traffic beside a job",
    "t": "starting and ending",
}


def main() -> None:
    arguments = _arguments()
    end_in_order()
    with folder() as place, redis_server(place) as server:
        print(machine(server.client()))
    ratios: dict[str, float] = {}
    for letter in arguments.which or (letters() if arguments.check else MODULES):
        print(flush=True)
        ratios |= _run_module(MODULES[letter], arguments.quick or arguments.check)
    if arguments.check:
        end_by(missed(ratios, arguments.which))


def _run_module(name: str, quick: bool) -> Mapping[str, float]:
    if util.find_spec(f"benchmarks.{name}") is None:
        print(f"{name}: not in this checkout")
        return {}
    report: Report = import_module(f"benchmarks.{name}").run(quick)
    show(report)
    return report.ratios


def _arguments() -> argparse.Namespace:
    listed = "; ".join(f"{letter} = {text}" for letter, text in EXPLAINED.items())
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=listed)
    parser.add_argument(
        "which",
        nargs="*",
        metavar="letter",
        choices=[*EXPLAINED, []],
        help="which to run; default all",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small numbers, one round: a look, not a figure to quote",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help=(
            "run what has targets, with small numbers, and exit with 1 where a ratio is beyond its "
            "limit in targets.py"
        ),
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
