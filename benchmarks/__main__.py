"""`python -m benchmarks [a b c d e f h m n q t] [--quick]`: each prints one table; without letters, all of them in order."""

from __future__ import annotations

import argparse
import signal
import sys
from importlib import import_module, util

from benchmarks.ground import folder, redis_server
from benchmarks.report import machine, show

MODULES = {
    "a": "feed", "b": "queue_path", "n": "noop_path", "c": "http_path", "d": "redis_bytes", "e": "memory", "q": "pace",
    "m": "embed", "f": "flower", "t": "tracing", "h": "http_clients",
}  # fmt: skip
EXPLAINED = {
    "a": "feed rate", "b": "queue path against stock Celery", "n": "queue path with both stores, no-op lane",
    "c": "whole path over HTTP", "d": "bytes of Redis", "e": "peak memory", "q": "shared quota beside other limiters",
    "m": "embed lane beside fixed batches and an offline run", "f": "Flower attached and detached",
    "t": "tracing off, of one item in a hundred, and of all", "h": "HTTP clients alone",
}  # fmt: skip


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that servers and folders go, too
    with folder() as place, redis_server(place) as server:
        print(machine(server.client()))
    for letter in arguments.which or MODULES:
        print(flush=True)
        _run_module(MODULES[letter], arguments.quick)


def _run_module(name: str, quick: bool) -> None:
    if util.find_spec(f"benchmarks.{name}") is None:
        print(f"{name}: not in this checkout")
        return
    show(import_module(f"benchmarks.{name}").run(quick))


def _arguments() -> argparse.Namespace:
    listed = "; ".join(f"{letter} = {text}" for letter, text in EXPLAINED.items())
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=listed)
    parser.add_argument(
        "which", nargs="*", metavar="letter", choices=[*EXPLAINED, []], help="which to run; default all"
    )
    parser.add_argument("--quick", action="store_true", help="small numbers, one round: a look, not a figure to quote")
    return parser.parse_args()


if __name__ == "__main__":
    main()
