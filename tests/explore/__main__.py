"""Runs seeds by hand: ``python -m tests.explore --seeds 1000``."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ledger", "ratelimit", "producer", "workers", "gateway", "cli", "simulate")


def main(arguments: list[str]) -> int:
    """Run the seeds that are asked for; return 1 where one has failed."""
    asked = _asked(arguments)
    numbers = _range(asked.seeds)
    from explore import virtual

    virtual.install()
    from servers import RedisServer

    from explore.databases import PostgresDatabase, SqliteFile
    from explore.history import kept, shrunk, table
    from explore.scenarios import Ground, play
    from explore.seams import SOCKET, RedisOfWorld, Seams

    if asked.log:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    else:
        logging.disable(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="explore-", dir=_memory()))
    redis_server = RedisServer.start(folder / "redis", settings=("--unixsocket", SOCKET))
    server = RedisOfWorld(redis_server)
    Seams(server).install()
    database = PostgresDatabase() if asked.postgres else SqliteFile(folder)
    faults: Counter[str] = Counter()
    seeds = steps = 0
    seconds, failed, invariant = 0.0, None, None
    try:
        ground = Ground(server, redis_server.url, folder, database)
        gc.freeze()
        gc.disable()  # when it runs would be a part of a history
        again = [(one["seed"], _choices(one)) for one in kept()] if asked.kept else []
        for seed, choices in [*((seed, None) for seed in numbers), *again]:
            run = play(ground, seed, choices)
            if seed % 20 == 0:
                gc.collect()
            seeds, steps, seconds = seeds + 1, steps + run.steps, seconds + run.seconds
            faults.update(run.faults)
            if asked.history is not None and seed in (asked.history or [seed]):
                print(table(run))
            if run.violation is None:
                continue
            if failed is None:
                failed, invariant = seed, run.violation.invariant
            if not asked.json:
                print(f"seed {seed}: {run.violation}")
                print(table(shrunk(ground, run) if asked.shrink else run))
            if asked.stop_at_first_failure:
                break
    finally:
        server.close()
        database.close()
        redis_server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    figures = {
        "seeds": seeds,
        "steps": steps,
        "faults": dict(sorted(faults.items())),
        "virtual_hours": round(seconds / 3600, 1),
        "failed_seed": failed,
        "invariant": invariant,
    }
    print(json.dumps(figures) if asked.json else _in_words(figures))
    return 0 if failed is None else 1


def _asked(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=__doc__)
    parser.add_argument("--seeds", default="200", help="how many, FIRST:LAST or FIRST:LAST:STEP")
    parser.add_argument("--kept", action="store_true", help="play what found faults, behind them")
    parser.add_argument("--postgres", action="store_true", help="underneath, in place of SQLite")
    parser.add_argument("--stop-at-first-failure", action="store_true")
    parser.add_argument("--json", action="store_true", help="print one object with the figures")
    parser.add_argument("--log", action="store_true", help="show what the product logs")
    shown = "print that of these seeds, or of every one"
    parser.add_argument("--history", type=int, nargs="*", metavar="SEED", help=shown)
    parser.add_argument("--no-shrink", dest="shrink", action="store_false")
    return parser.parse_args(arguments)


def _choices(kept: dict[str, Any]) -> frozenset[str] | None:
    """Return the choices that a seed found its fault with; None: all."""
    return frozenset(kept["choices"]) if "choices" in kept else None


def _range(text: str) -> range:
    first, *more = map(int, text.split(":"))
    return range(first, more[0] + 1, *more[1:]) if more else range(first)


def _in_words(figures: dict[str, object]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in figures.items())


def _memory() -> str | None:
    """Return a folder in memory, where there is one: worlds commit thousands of times."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    # the order of sets is a part of a seed's history
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.explore", *sys.argv[1:]])
    sys.path[:0] = [
        str(ROOT),
        *(str(ROOT / name) for name in PACKAGES),
        str(ROOT / "tests"),
        str(ROOT / "tests/harness"),
    ]
    sys.exit(main(sys.argv[1:]))
