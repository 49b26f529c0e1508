"""`python -m benchmarks [a b c d e n q] [--quick]`: each benchmark prints one table; without letters, all of them in order."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from importlib import import_module, util

from benchmarks.ground import ROOT, folder, redis_server
from benchmarks.report import machine, show

MODULES = {"a": "feed", "b": "queue_path", "n": "noop_path", "c": "http_path", "d": "redis_bytes", "e": "memory"}
SCRIPTS = {"q": "ratelimit_share"}  # prints JSON of its own
EXPLAINED = {
    "a": "feed rate", "b": "queue path against stock Celery", "n": "queue path with both stores, no-op lane",
    "c": "whole path over HTTP", "d": "bytes of Redis", "e": "peak memory", "q": "shared quota",
}  # fmt: skip
SCRIPT_TIMEOUT_S = 600


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that servers and folders go, too
    with folder() as place, redis_server(place) as server:
        print(machine(server.client()))
    for letter in arguments.which or [*MODULES, *SCRIPTS]:
        print(flush=True)
        if letter in SCRIPTS:
            _run_script(SCRIPTS[letter], arguments.quick)
        else:
            _run_module(MODULES[letter], arguments.quick)


def _run_module(name: str, quick: bool) -> None:
    if util.find_spec(f"benchmarks.{name}") is None:
        print(f"{name}: not in this checkout")
        return
    show(import_module(f"benchmarks.{name}").run(quick))


def _run_script(name: str, quick: bool) -> None:
    print(f"({name})", flush=True)
    options = ["--seconds", "5"] if quick else []
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *options]
    subprocess.run(command, cwd=ROOT, timeout=SCRIPT_TIMEOUT_S, check=True)


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
