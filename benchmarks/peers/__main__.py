"""Peers that call a provider for many documents, beside a bare aiohttp loop: CPU per call, all of a
peer's processes.

    python -m benchmarks.peers --curator PYTHON --ray PYTHON [--items 5000] [--rounds 3]

PYTHON is the interpreter of an environment that has the peer; see README.md for how to make one.
Each contender makes the same calls to the same simulated provider in each round, with 256 at once
where that can be set, and is warm before it is measured. Nothing but loopback is spoken to.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import psutil

from benchmarks.harness.ground import (
    GroundError,
    RunningSimulator,
    end_in_order,
    folder,
    process,
    provider,
)
from benchmarks.harness.report import Report, Row, median, show
from benchmarks.harness.rounds import BARE, CONCURRENCY, LATENCY_MS, bare_call_ms

ITEMS, ROUNDS = 5_000, 3
MODULES = {"curator": "benchmarks.peers.curator", "ray": "benchmarks.peers.ray"}
LOOK_EACH_S = 0.2  # at processes that come and go; what one used after its last look is not counted
NOWHERE = "http://127.0.0.1:9"  # nothing listens there
# Both would send figures of their use to their makers: the first line is their switches. What asks
# for anything beyond this machine all the same is sent to a proxy that is not there.
QUIET = {
    "TELEMETRY_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "DO_NOT_TRACK": "1",
    "BESPOKE_CURATOR_TRACKER_DISABLED": "1",
    "CURATOR_VIEWER": "0",
    "CURATOR_DISABLE_RICH_DISPLAY": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HTTP_PROXY": NOWHERE,
    "HTTPS_PROXY": NOWHERE,
    "http_proxy": NOWHERE,
    "https_proxy": NOWHERE,
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}


class Peer:
    """One peer in a process of its own, which says ``ready``, waits for a number on stdin, makes so
    many calls, and says so."""

    def __init__(self, name: str, running: subprocess.Popen[bytes], log: Path) -> None:
        assert running.stdin is not None, "a pipe"
        assert running.stdout is not None, "a pipe"
        self._name = name
        self._log = log
        self._to: IO[bytes] = running.stdin
        self._from: IO[bytes] = running.stdout
        self._tree = Tree(running.pid)

    def wait_ready(self) -> Mapping[str, str]:
        """What it says of itself: its version."""
        return dict(json.loads(self._line()))

    def run(self, calls: int) -> float:
        """Milliseconds of CPU per call, of all its processes."""
        with self._tree.watched():
            before = self._tree.cpu_s()
            self._to.write(f"{calls}\n".encode())
            self._to.flush()
            done = json.loads(self._line())["answers"]
            used = self._tree.cpu_s() - before
        if done != calls:
            raise GroundError(
                f"{self._name} brought {done} answers for {calls} calls; see {self._log}"
            )
        return 1000 * used / calls

    def _line(self) -> bytes:
        """The next line that is the peer's answer to us, and no print of its own."""
        for line in self._from:
            if line.startswith(b"{"):
                return line
        raise GroundError(f"{self._name} ended: {self._log.read_text(errors='replace')[-800:]}")


class Tree:
    """The CPU of a process and all that it has started, ended ones included as far as they were
    seen."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._seen: dict[tuple[int, float], float] = {}

    def cpu_s(self) -> float:
        for one in [self._root, *self._root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                self._seen[one.pid, one.create_time()] = times.user + times.system
        return sum(self._seen.values())

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOK_EACH_S):
                self.cpu_s()

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()


def measure(pythons: Mapping[str, Path], items: int, rounds: int) -> Report:
    measured: dict[str, list[float]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(folder())
        server = stack.enter_context(provider(LATENCY_MS))
        peers = {
            name: stack.enter_context(_started(name, python, server, place))
            for name, python in pythons.items()
        }
        versions = {name: peer.wait_ready()["version"] for name, peer in peers.items()}
        for _ in range(rounds):
            measured[BARE].append(bare_call_ms(server, items))
            for name, peer in peers.items():
                measured[name].append(peer.run(items))
    bare = measured.pop(BARE)
    rows = [
        Row(
            f"{name} {versions[name]}",
            f"{median(figures):.3f} ms",
            f"{median(bare):.3f} ms",
            f"{median([one / other for one, other in zip(figures, bare, strict=True)]):.2f}x",
        )
        for name, figures in measured.items()
    ]
    notes = [
        f"beside: a bare aiohttp loop, {CONCURRENCY} calls in flight; ratios are medians of the "
        "rounds' own",
        *(
            f"{name}: " + ", ".join(f"{one:.3f}" for one in figures) + " ms"
            for name, figures in measured.items()
        ),
        f"{BARE}: " + ", ".join(f"{one:.3f}" for one in bare) + " ms",
    ]
    return Report(
        f"peers, {items:,} calls, {rounds} round(s), CPU per call of all processes", rows, notes
    )


@contextlib.contextmanager
def _started(name: str, python: Path, server: RunningSimulator, place: Path) -> Iterator[Peer]:
    own = place / name
    own.mkdir()
    variables = QUIET | {
        "HOME": str(own),
        "HF_HOME": str(own),
        "CURATOR_CACHE_DIR": str(own / "cache"),
    }
    command = [str(python), "-m", MODULES[name], server.url, str(CONCURRENCY)]
    log = own / "log"
    with process(
        command, variables=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, log=log
    ) as running:
        yield Peer(name, running, log)


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name in MODULES:
        parser.add_argument(
            f"--{name}", type=Path, metavar="PYTHON", help=f"an interpreter that can import {name}"
        )
    parser.add_argument(
        "--items", type=int, default=ITEMS, help="calls of each in each round (%(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="how often each takes its turn (%(default)s)"
    )
    given = parser.parse_args()
    pythons = {
        name: python.absolute() for name in MODULES if (python := getattr(given, name)) is not None
    }
    if not pythons:
        parser.error(
            f"name an interpreter for at least one of {', '.join(f'--{name}' for name in MODULES)}"
        )
    show(measure(pythons, given.items, given.rounds))


if __name__ == "__main__":
    main()
