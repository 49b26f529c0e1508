"""Runs a case: two private Redis servers, processes that share a quota, trouble on time, and the
books at both ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import redis

from benchmarks.harness.ground import ROOT, folder
from benchmarks.pacing.case import Case, Trouble
from benchmarks.pacing.figures import BINS_PER_S, jain, peak_per_second, utilisation
from benchmarks.pacing.meter import Meter
from benchmarks.pacing.outcome import Outcome
from benchmarks.pacing.process import Plan, Tally, Times, run
from benchmarks.pacing.provider import FOREIGN, Accounts, read_bins, scale_rates

READY_TIMEOUT_S = 60.0
START_MARGIN_S = 0.3
OUTAGE_S = 2.0
"""How long a restarted Redis is away: the reference's figure, below the grace after which a process
lives on its share."""
HALF = 0.5
ENDED_TIMEOUT_S = 10.0


class Arena:
    """Two servers for all runs; each run begins with both empty."""

    def __init__(self, quota: Any, provider: Any) -> None:
        self._quota_server, self._provider_server = quota, provider
        self.quota: redis.Redis = quota.client()
        self.provider: redis.Redis = provider.client()

    @property
    def quota_port(self) -> int:
        return int(self._quota_server.port)

    @property
    def provider_port(self) -> int:
        return int(self._provider_server.port)

    def restart_quota(self) -> None:
        """Gone for ``OUTAGE_S``, then there with nothing in it."""
        self._quota_server.kill()
        time.sleep(OUTAGE_S)
        self._quota_server.restart()

    def run(self, case: Case, seconds: float) -> Outcome:
        """One measurement. Raises RuntimeError when a process does not get ready."""
        self.quota.flushall()
        case.terms.install(self.provider)
        with crew(case, self) as members:
            start = time.monotonic() + START_MARGIN_S
            times = Times(start, start + case.warm_up_s, start + case.warm_up_s + seconds)
            for member in members:
                member.pipe.send(times)
            return Measurement(self, case, members, times).take()


class Member:
    """A process of the run, and the pipe to it."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe

    def tally(self) -> Tally | None:
        """What it says at the end; None from one that was killed."""
        with contextlib.suppress(EOFError, OSError):
            if self.pipe.poll(ENDED_TIMEOUT_S):
                tally: Tally = self.pipe.recv()
                return tally
        return None


@contextlib.contextmanager
def arena() -> Iterator[Arena]:
    sys.path.insert(0, str(ROOT / "tests/harness"))
    try:
        servers = import_module("servers")
    finally:
        sys.path.remove(str(ROOT / "tests/harness"))
    with folder() as place, contextlib.ExitStack() as stack:
        running = []
        for name in ("quota", "provider"):
            server = servers.RedisServer.start(Path(place) / name)
            stack.callback(server.stop)
            running.append(server)
        yield Arena(*running)


@contextlib.contextmanager
def crew(case: Case, place: Arena) -> Iterator[list[Member]]:
    """The processes of a run, connected and waiting for their times."""
    spawn = multiprocessing.get_context("spawn")
    members = []
    try:
        for number in range(case.processes):
            near, far = spawn.Pipe()
            plan = Plan(case, number, place.quota_port, place.provider_port)
            process = spawn.Process(
                target=run, args=(plan, far), daemon=True, name=f"pace {number}"
            )
            process.start()
            far.close()
            members.append(Member(process, near))
        for member in members:
            if not member.pipe.poll(READY_TIMEOUT_S) or member.pipe.recv() != "ready":
                raise RuntimeError(
                    f"{member.process.name} did not get ready within {READY_TIMEOUT_S:.0f} s"
                )
        yield members
    finally:
        for member in members:
            member.process.join(ENDED_TIMEOUT_S / 2)
            member.process.kill()
            member.process.join()
            member.pipe.close()


class Measurement:
    """The measured time of one run."""

    def __init__(self, place: Arena, case: Case, members: list[Member], times: Times) -> None:
        self._arena, self._case, self._members, self._times = place, case, members, times
        self._trouble_over: float | None = None  # Unix seconds
        self._half_since: float | None = None  # monotonic

    def take(self) -> Outcome:
        times = self._times
        sleep_until(times.measured_from)
        books, work = Accounts.read(self._arena.provider), Meter(self._arena.quota)
        first_bin = int(time.time() * BINS_PER_S)
        began = time.monotonic()
        if self._case.trouble:
            sleep_until((times.measured_from + times.end) / 2)
            self._troubles()[self._case.trouble](work)
        sleep_until(times.end - 0.05)  # before the processes stop
        seen, used = Accounts.read(self._arena.provider).since(books), work.read()
        seconds = time.monotonic() - began
        last_bin = int(time.time() * BINS_PER_S)
        tallies = [tally for member in self._members if (tally := member.tally()) is not None]
        items = sum(count for who, count in seen.accepted.items() if who != FOREIGN)
        each = self._per_process(seen)
        return Outcome(
            seconds=round(seconds, 3),
            items=int(items),
            utilisation=self._utilisation(seen, seconds),
            refused=int(sum(count for who, count in seen.refused.items() if who != FOREIGN)),
            jain=jain(each),
            jain_jobs=jain([count for job, count in seen.jobs.items() if job != FOREIGN]),
            calls_per_item=used.calls / max(1.0, items),
            redis_us_per_item=used.busy_us / max(1.0, items),
            peak=self._peak(first_bin, last_bin),
            inversions=sum(tally.inversions for tally in tallies),
            wait_p50_s=max((tally.wait_p50_s for tally in tallies), default=float("nan")),
            wait_p99_s=max((tally.wait_p99_s for tally in tallies), default=float("nan")),
            failed=sum(tally.failed for tally in tallies),
            never_fits=sum(tally.never_fits for tally in tallies),
            never_fits_s=max((tally.never_fits_s for tally in tallies), default=0.0),
            recovered_s=self._recovered(),
            foreign=int(seen.accepted.get(FOREIGN, 0)),
            foreign_refused=int(seen.refused.get(FOREIGN, 0)),
            errors=_sum([tally.errors for tally in tallies]),
            warnings=_sum([tally.warnings for tally in tallies]),
        )

    def _troubles(self) -> dict[str, Callable[[Meter], None]]:
        return {
            Trouble.HALVED: self._halve,
            Trouble.FLUSHED: self._flush,
            Trouble.RESTARTED: self._restart,
            Trouble.KILLED: self._kill,
        }

    def _halve(self, _: Meter) -> None:
        scale_rates(self._arena.provider, self._case.terms.rates, HALF)
        self._half_since = time.monotonic()

    def _flush(self, _: Meter) -> None:
        self._arena.quota.flushall()
        self._trouble_over = time.time()

    def _restart(self, work: Meter) -> None:
        work.stops()
        self._arena.restart_quota()
        self._trouble_over = time.time()

    def _kill(self, _: Meter) -> None:
        """The last process, without a chance to give anything back."""
        self._members[-1].process.kill()

    def _utilisation(self, seen: Accounts, seconds: float) -> float:
        """Of the dimension that binds, foreign traffic included: the provider's limit holds for
        all."""
        whole_s = seconds
        if self._half_since is not None:
            whole_s -= (self._times.end - self._half_since) * (1 - HALF)
        rates = self._case.terms.rates
        return max(
            utilisation(seen.charged.get(dim, 0.0), rate * whole_s) for dim, rate in rates.items()
        )

    def _per_process(self, seen: Accounts) -> list[float]:
        """Items of those who were there all the time."""
        there = self._members[:-1] if self._case.trouble == Trouble.KILLED else self._members
        return [seen.accepted.get(f"process-{number}", 0.0) for number in range(len(there))]

    def _peak(self, first_bin: int, last_bin: int) -> float:
        fullest = 0.0
        for dim, rate in self._case.terms.rates.items():
            bins = {
                at: units
                for at, units in read_bins(self._arena.provider, dim).items()
                if first_bin <= at < last_bin
            }
            fullest = max(fullest, peak_per_second(bins) / rate)
        return fullest

    def _recovered(self) -> float:
        if self._trouble_over is None:
            return float("nan")
        over = int(self._trouble_over * BINS_PER_S)
        later = [at for at in read_bins(self._arena.provider, "requests") if at > over]
        return (min(later) - over) / BINS_PER_S if later else float("inf")


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _sum(counts: Iterable[Counter[str]]) -> dict[str, int]:
    return dict(sum(counts, Counter()))
