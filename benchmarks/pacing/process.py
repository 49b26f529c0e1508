"""One process of a run: its slots ask a limiter, call the provider, and note how long they
waited."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from benchmarks.pacing.case import Case
from benchmarks.pacing.figures import Line, percentile
from benchmarks.pacing.provider import FOREIGN, REQUESTS, Answer, Call, Charge, ProviderClient
from benchmarks.pacing.sizes import MAX_TOKENS_FACTOR

if TYPE_CHECKING:
    from benchmarks.pacing.ours import Penstock, Permission

PIECES = 4
"""Output is charged in so many pieces while it is produced."""
AFTER_ERROR_S = 0.2
"""A limiter that raised is asked again after U(0, this): a worker would, too."""
OVERSIZED_EACH_S = 1.0
MAX_WAITS = 50_000
"""Waits kept per process for the percentiles; more than any run makes."""
CHARS_PER_TOKEN = 4
ESTIMATES = "job"
"""The key under which all estimates are learned."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one process is given."""

    case: Case
    number: int
    quota_port: int
    provider_port: int


@dataclass(frozen=True, slots=True)
class Times:
    """On the monotonic clock, which all processes of one machine share."""

    start: float
    measured_from: float
    end: float


@dataclass
class Tally:
    """What one process says afterwards; the provider counts the rest."""

    inversions: int = 0
    wait_p50_s: float = math.nan
    wait_p99_s: float = math.nan
    errors: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)  # what was logged, by logger
    failed: int = 0
    never_fits: int = 0
    never_fits_s: float = 0.0  # the longest that one of these waited to learn so


def run(plan: Plan, pipe: Connection) -> None:
    """The process's main: says when it is ready, hears the times, says its tally."""
    if plan.case.skew_s and plan.number == 0:
        shift_clock(plan.case.skew_s)
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)
    logging.captureWarnings(True)
    asyncio.run(_run(plan, pipe, warnings))


class Warnings(logging.Handler):
    """Counts what limiters complain of instead of printing it from sixteen processes."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.seen[record.name] += 1


def shift_clock(seconds: float) -> None:
    """This process's wall clock goes wrong; must come before a limiter is imported."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)


async def _run(plan: Plan, pipe: Connection, warnings: Warnings) -> None:
    # after the clock was shifted
    import redis.asyncio

    from benchmarks.pacing.ours import Penstock, Setting

    case = plan.case
    setting = Setting(plan.quota_port, case.terms.rates, case.burst_s, case.horizon_s, case.told)
    client = redis.asyncio.Redis(port=plan.provider_port, max_connections=sum(case.slots) + 10)
    limiter = Penstock(setting)
    worker = Worker(plan, limiter, ProviderClient(client, f"process-{plan.number}"))
    tasks = []
    pipe.send("ready")
    times: Times = pipe.recv()
    head_start_s = case.head_start_s if plan.number else 0.0
    await asyncio.sleep(times.start + head_start_s - time.monotonic())
    worker.measured_from = times.measured_from
    for n in range(case.slots_of(plan.number)):
        tasks.append(asyncio.create_task(worker.slot(job_of(n, case.job_parts))))
    if case.oversized:
        tasks.append(asyncio.create_task(worker.ask_too_much()))
    if case.foreign and plan.number == 0:
        tasks.append(asyncio.create_task(foreign_traffic(case, ProviderClient(client, FOREIGN))))
    await asyncio.sleep(times.end - time.monotonic())
    pipe.send(worker.tally(warnings.seen))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await limiter.aclose()
    await client.aclose()


def job_of(slot: int, parts: tuple[float, ...]) -> str:
    """Slots are given to jobs in their parts, evenly mixed: each goes to the job that is furthest
    behind its part."""
    given = [0] * len(parts)
    for n in range(slot + 1):
        behind = [part * (n + 1) - count for part, count in zip(parts, given, strict=True)]
        job = behind.index(max(behind))
        given[job] += 1
    return f"job-{job}"


async def foreign_traffic(case: Case, provider: ProviderClient) -> None:
    """Another user of the key: at random times, without regard to refusals, and without a part in
    the quota."""
    rng, sizes = random.Random(-1), case.size()
    while True:
        await asyncio.sleep(rng.expovariate(case.foreign * case.per_second))
        await provider.request(sizes.draw(rng).at_admission(case.charge), FOREIGN)


class Worker:
    """The slots of one process."""

    def __init__(self, plan: Plan, limiter: Penstock, provider: ProviderClient) -> None:
        self._case, self._limiter, self._provider = plan.case, limiter, provider
        self._rng = random.Random(plan.number)
        self._sizes = plan.case.size()
        self._lines: dict[str, Line] = {}
        self._waits: list[float] = []
        self._tally = Tally()
        self._estimates = Estimates(plan.case, learns=plan.case.learns)
        self.measured_from = math.inf

    async def slot(self, job: str) -> None:
        while True:
            call = self._sizes.draw(self._rng)
            while not await self._attempt(call, job):
                pass

    async def ask_too_much(self) -> None:
        """A request above what the provider can ever take: its certain part alone is too large."""
        from benchmarks.pacing.ours import Ask

        costs = {
            dim: 100.0 * rate for dim, rate in self._case.terms.rates.items() if dim != REQUESTS
        }
        ask = Ask({REQUESTS: 1.0, **costs}, "job-0", certain=costs)
        while True:
            await asyncio.sleep(OVERSIZED_EACH_S)
            asked = time.monotonic()
            try:
                await self._limiter.acquire(ask)
            except Exception:
                self._tally.never_fits += 1
                self._tally.never_fits_s = max(self._tally.never_fits_s, time.monotonic() - asked)

    def tally(self, warnings: Counter[str]) -> Tally:
        self._tally.warnings = warnings
        self._tally.wait_p50_s = percentile(self._waits, 0.5)
        self._tally.wait_p99_s = percentile(self._waits, 0.99)
        return self._tally

    async def _attempt(self, call: Call, job: str) -> bool:
        """One send; False when the item has to come again."""
        try:
            grant = await self._permission(self._estimates.costs(call), job)
            await asyncio.sleep(self._rng.uniform(0, self._case.jitter_s))
            answer = await self._provider.request(call.at_admission(self._case.charge), job)
            if not answer.admitted:
                await grant.refused(answer)
                return False
            return await self._finish(call, grant, answer)
        # a limiter's own trouble is a figure of this benchmark, not its end
        except Exception as error:
            if time.monotonic() >= self.measured_from:
                self._tally.errors[type(error).__name__] += 1
            await asyncio.sleep(self._rng.uniform(0, AFTER_ERROR_S))
            return False

    async def _permission(self, costs: Mapping[str, float], job: str) -> Permission:
        from benchmarks.pacing.ours import Ask

        line, asked = self._lines.setdefault(job, Line()), time.monotonic()
        number, overtook = line.arrive(), False
        try:
            grant = await self._limiter.acquire(Ask(costs, job))
        finally:
            overtook = line.leave(number)
        served = time.monotonic()
        if served >= self.measured_from and len(self._waits) < MAX_WAITS:
            self._waits.append(served - asked)
            self._tally.inversions += overtook
        return grant

    async def _finish(self, call: Call, grant: Permission, answer: Answer) -> bool:
        """The answer takes its time, is charged the rest, and may be a 500."""
        case = self._case
        latency_s = case.latency_s * self._rng.lognormvariate(0, 0.3)
        rest = call.afterwards(case.charge)
        pieces = PIECES if case.charge is Charge.PRODUCED else 1
        for _ in range(pieces):
            await asyncio.sleep(latency_s / pieces)
            if rest:
                await self._provider.charge({dim: units / pieces for dim, units in rest.items()})
        if self._rng.random() < case.fail_rate:
            self._tally.failed += time.monotonic() >= self.measured_from
            await grant.failed(answer)
            return False
        await grant.answered(answer, self._estimates.observe(call))
        return True


class Estimates:
    """What a client believes a call will cost, knowing how its provider charges."""

    def __init__(self, case: Case, *, learns: bool) -> None:
        self._case = case
        self._estimator = None
        if learns:
            from penstock_ratelimit import Estimator

            self._estimator = Estimator()

    def costs(self, call: Call) -> dict[str, float]:
        factor = self._factor(call)
        costs = {
            dim: units * factor
            for dim, units in call.at_admission(self._case.charge).items()
            if dim != REQUESTS
        }
        # like the caller of a real provider: half of max_tokens is usual
        if self._case.charge is Charge.PRODUCED:
            costs["output_tokens"] = call.max_tokens / MAX_TOKENS_FACTOR * factor
        return {REQUESTS: 1.0, **costs}

    def observe(self, call: Call) -> dict[str, float]:
        """Learn from an answer; returns what it has cost of the token dimensions."""
        actual = call.at_admission(self._case.charge)
        for dim, units in call.afterwards(self._case.charge).items():
            actual[dim] += units
        del actual[REQUESTS]
        if self._estimator is not None:
            self._estimator.observe(ESTIMATES, self._chars(call), sum(actual.values()))
        return actual

    def _factor(self, call: Call) -> float:
        if self._estimator is None:
            return self._case.estimate_factor
        return self._estimator.estimate(ESTIMATES, self._chars(call)) / self._true_tokens(call)

    def _chars(self, call: Call) -> int:
        """A text that mistakes its tokens by the case's factor."""
        return math.ceil(self._true_tokens(call) * CHARS_PER_TOKEN * self._case.estimate_factor)

    def _true_tokens(self, call: Call) -> float:
        return sum(
            units for dim, units in call.at_admission(self._case.charge).items() if dim != REQUESTS
        )
