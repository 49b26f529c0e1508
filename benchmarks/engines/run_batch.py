"""`run-batch`: one file through the whole fleet and through `vllm run-batch`, from nothing to the
end; and after kill -9."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engines.batch_command import BatchCommand
from benchmarks.engines.items import Item, items, write
from benchmarks.engines.setup import Setup
from benchmarks.engines.worker import LEASE_S, worker_fleet
from benchmarks.harness.ground import GroundError
from benchmarks.harness.report import Report, Row
from penstock_workers.lanes.gpu.engine.engine_queue import BUFFER_SHARE

KILL_AT = 0.5  # of the items


@dataclass(frozen=True, slots=True)
class Killed:
    """What a kill in the middle came to."""

    done: int  # items finished when it was killed
    kept: int  # of these, items whose results are there to use
    again: int  # items begun or finished by then, and computed again
    seconds: float  # from the second start to the end


def run(place: Path, setup: Setup) -> Report:
    lines = items(setup, setup.items)
    source = write(place / "items.jsonl", lines)
    theirs, theirs_killed = (
        _whole_command(place, setup, source),
        _killed_command(place, setup, source),
    )
    ours, ours_killed = _whole_fleet(place, setup, lines), _killed_fleet(place, setup, lines)
    held = math.ceil(setup.max_num_seqs * (1 + BUFFER_SHARE))
    rows = [
        Row(
            "whole time, from nothing to the end",
            f"{ours:.1f} s",
            f"{theirs:.1f} s",
            f"{ours / theirs:.2f}",
        ),
        Row(
            f"items begun before kill -9 at {KILL_AT:.0%} and computed again",
            f"{ours_killed.again:,}",
            f"{theirs_killed.again:,}",
            f"{ours_killed.again / theirs_killed.again:.2f}",
            f"<= {held:,}, in the engine",
            ours_killed.again <= held,
        ),
        Row(
            "from the second start to the end",
            f"{ours_killed.seconds:.1f} s",
            f"{theirs_killed.seconds:.1f} s",
            f"{ours_killed.seconds / theirs_killed.seconds:.2f}",
        ),
    ]
    notes = [
        f"killed with {ours_killed.done:,} outcomes in the ledger, which stay; run-batch with "
        f"{theirs_killed.done:,} finished, of which it had written {theirs_killed.kept:,}",
        "the fleet's includes Redis, ledger and submit; a killed worker's items are lent for "
        f"{LEASE_S:g} s here",
    ]
    return Report(f"run-batch, {setup.items:,} items, one round", rows, notes)


def _whole_command(place: Path, setup: Setup, source: Path) -> float:
    output = place / "whole-out.jsonl"
    started = time.monotonic()
    BatchCommand(place, setup, source, output).wait()
    seconds = time.monotonic() - started
    _check(output, setup)
    return seconds


def _killed_command(place: Path, setup: Setup, source: Path) -> Killed:
    output = place / "killed-out.jsonl"
    command = BatchCommand(place, setup, source, output)
    done, running = command.wait_for(round(setup.items * KILL_AT))
    command.kill()
    kept = output.read_bytes().count(b"\n") if output.exists() else 0
    started = time.monotonic()
    BatchCommand(place, setup, source, output).wait()
    seconds = time.monotonic() - started
    _check(output, setup)
    return Killed(done, kept, done + running - kept, seconds)


def _whole_fleet(place: Path, setup: Setup, lines: list[Item]) -> float:
    started = time.monotonic()
    with worker_fleet(place / "whole", setup) as fleet:
        job = fleet.submit(lines)
        fleet.start(wait=False)
        fleet.wait(job, len(lines))
        return time.monotonic() - started


def _killed_fleet(place: Path, setup: Setup, lines: list[Item]) -> Killed:
    with worker_fleet(place / "killed", setup) as fleet:
        job = fleet.submit(lines)
        fleet.start(wait=False)
        fleet.wait(job, round(len(lines) * KILL_AT))
        fleet.kill()
        done, interrupted = fleet.counts(job).succeeded, fleet.interrupted(job)
        started = time.monotonic()
        fleet.start(wait=False)
        fleet.wait(job, len(lines))
        seconds = time.monotonic() - started
        counts = fleet.counts(job)
        if counts.succeeded != len(lines):
            raise GroundError(
                f"{counts.succeeded} results of {len(lines)}: {counts.dead_by_reason}"
            )
        return Killed(done, done, interrupted, seconds)


def _check(output: Path, setup: Setup) -> None:
    written = output.read_bytes().count(b"\n")
    if written != setup.items:
        raise GroundError(f"run-batch wrote {written} lines for {setup.items} items")
