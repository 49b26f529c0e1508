"""One reading, in a process of its own, which prints its figures: `python -m benchmarks.sources.one
FORM READER PATH URL KEY`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from benchmarks.harness.ground import usage
from benchmarks.sources.peers import PEERS

SUBMIT: Final = "penstock, submit"
FEED: Final = "penstock, feed"
OWN_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "parquet": ("pyarrow.parquet",),
    "bucket": ("boto3",),
    "postgresql": ("psycopg",),
}


def count(form: str, reader: str, path: Path, url: str, job_key: str) -> int:
    if reader in (SUBMIT, FEED):
        from benchmarks.sources import ours

        return (
            ours.submit(form, path, url, job_key) if reader == SUBMIT else ours.feed(url, job_key)
        )
    return sum(1 for _ in PEERS[form][reader].read(path))


def _import(form: str, reader: str) -> None:
    """What is imported once is no part of what a row costs."""
    if reader in (SUBMIT, FEED):
        import_module("benchmarks.sources.ours")
        needs = OWN_NEEDS.get(form, ())
    else:
        needs = PEERS[form][reader].needs
    for module in needs:
        import_module(module)


def main() -> None:
    form, reader, path, url, job_key = sys.argv[1:]
    _import(form, reader)
    before, wall, cpu = usage(os.getpid()), time.monotonic(), time.process_time()
    rows = count(form, reader, Path(path), url, job_key)
    spent = {"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - wall}
    peak = usage(os.getpid()).peak_bytes
    print(
        json.dumps({"rows": rows, **spent, "peak": peak, "grown": peak - before.peak_bytes}),
        flush=True,
    )


if __name__ == "__main__":
    main()
