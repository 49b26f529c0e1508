"""A fleet is sized for a job to end in time, and what it then takes is counted.

Closed forms come first, then the simulation.

A lane whose documents are messages needs slots (Little's law: calls a second times the seconds of
one), workers for these slots and for their CPU, feeders, and a quota. The fleet that this makes is
played; while it is too late by what more workers change, it gets some more. What binds then, and
what would bind if that were ten times as much, is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock_producer.planning.flow import (
    SLOTS,
    Batches,
    Calls,
    Figure,
    Stage,
    Timeline,
    batches_played,
    played,
)

__all__ = [
    "CALLS",
    "CPU",
    "FEEDERS",
    "MARGIN",
    "READING",
    "REDIS",
    "WINDOW_MAX",
    "Fleet",
    "Needs",
    "Planned",
    "Quota",
    "sized",
    "sized_batches",
]

MARGIN: Final = 0.995  # of a declared limit that the shared quota uses at first
BUSY: Final = 0.8  # of a core that is planned for: a process that is full settles late
HEADROOM: Final = 1.1  # more slots and engines than the mean needs, since latencies scatter
MICRO: Final = 1e6
GROWTH: Final = 1.15  # of the workers, while the fleet as played is late
TRIES: Final = 12
WORKERS_MAX: Final = 100_000
WINDOW_MAX: Final = 50_000  # messages in the queue
CPU, REDIS, FEEDERS, ENGINES = "CPU of the workers", "CPU of Redis", "feeders", "engines"
READING = "survey and files"
ONE_CALL = "the time of a call"  # where all documents are asked at once
BOUND: Final = 0.5  # of a job's time that a stage alone takes which binds it; else its calls do
# the phases of a job
START, READ, CALLS, WRITE = ("start", "reading the source", "calls", "writing the files")
_BY_WORKERS: Final = frozenset({SLOTS, CPU, ENGINES})


class Quota(NamedTuple):
    """One limit of a provider. ``per_minute`` None: it is not known."""

    unit: str  # in words: requests, tokens
    each: float  # units of one call
    per_minute: float | None


class Needs(NamedTuple):
    """A job, as a fleet sees it."""

    documents: int
    calls: Calls
    quotas: Sequence[Quota] = ()
    # documents of one worker that hosts a model; None: a provider answers
    engine_per_second: float | None = None
    within_s: float | None = None
    answer_bytes: float = 0.0


class Fleet(NamedTuple):
    """Processes. ``workers`` and ``feeders`` None: as many as it takes."""

    concurrency: int
    workers: int | None = None
    feeders: int | None = None
    ramps: bool = False  # the provider's limits are not known, so that it finds out


class Planned(NamedTuple):
    """The needs of a lane and its times. None where one does not apply."""

    workers: int
    concurrency: int
    feeders: int
    seconds: float
    phases: Mapping[str, float]  # seconds of each part; their sum
    per_second: float
    binding: str
    relief: str
    in_time: bool | None
    # per minute, by unit, for the time that was asked for (else for what was played)
    quota_needed: Mapping[str, float]
    batches: int = 0


def sized(needs: Needs, fleet: Fleet, figures: Mapping[str, Figure], *, seed: int = 0) -> Planned:
    """Plan a fleet for the job. Raises ValueError for a job that nothing could pass through."""
    overhead = _overhead(needs, figures)
    rate = _wanted_rate(needs, sum(overhead.values()))
    workers = fleet.workers or _workers(needs, fleet, figures, rate)
    feeders = fleet.feeders or _at_least(rate * figures["feeder_us"].value / MICRO / BUSY)
    timeline = _play(needs, fleet, figures, workers, feeders, seed)
    for _ in range(TRIES):
        late = (
            needs.within_s is not None
            and timeline.seconds + sum(overhead.values()) > needs.within_s
        )
        if (
            not late
            or fleet.workers is not None
            or timeline.binding not in _BY_WORKERS
            or workers >= WORKERS_MAX
        ):
            break
        workers = min(WORKERS_MAX, max(workers + 1, math.ceil(workers * GROWTH)))
        timeline = _play(needs, fleet, figures, workers, feeders, seed)
    phases = _phases(overhead, timeline.seconds)
    seconds = sum(phases.values())
    waits = overhead[READ] + overhead[WRITE]
    stages = _stages(needs, figures, workers, feeders)
    binding = READING if waits > timeline.seconds else _binding(timeline, stages, needs.documents)
    return Planned(
        workers,
        fleet.concurrency,
        feeders,
        seconds,
        phases,
        timeline.per_second,
        binding,
        _relief(binding, needs, fleet, figures, workers, feeders, seed),
        None if needs.within_s is None else seconds <= needs.within_s,
        _quota_needed(needs, rate or timeline.per_second),
    )


def sized_batches(
    needs: Needs,
    given: Batches,
    figures: Mapping[str, Figure],
    *,
    workers: int | None = None,
    seed: int = 0,
) -> Planned:
    """Plan a fleet on a lane that packs. Raises ValueError for a batch that never fits."""
    overhead, many = _overhead(needs, figures), workers or 1
    each_s = figures["worker_us"].value / MICRO / 2
    given = given._replace(pack_s=each_s / BUSY, collect_s=each_s / BUSY / many)
    timeline = batches_played(needs.documents, given, seed=seed)
    phases = _phases(overhead, timeline.seconds)
    seconds = sum(phases.values())
    room = {}
    if needs.within_s is not None and given.turnarounds_s:
        mean = sum(given.turnarounds_s) / len(given.turnarounds_s)
        rounds = max(1.0, (needs.within_s - sum(overhead.values())) // max(1.0, mean))
        room = {"enqueued tokens": math.ceil(needs.documents * given.tokens / rounds)}
    relief = {
        "packing": "smaller jobs side by side: one worker packs a source",
        "room for enqueued tokens": (
            "more tokens in batches at once (batch_enqueued_tokens), or the rest in another lane"
        ),
    }.get(timeline.binding, "another lane for what cannot wait")
    return Planned(
        many,
        given.documents,
        1,
        seconds,
        phases,
        needs.documents / max(1e-9, timeline.seconds),
        timeline.binding,
        relief,
        None if needs.within_s is None else seconds <= needs.within_s,
        room,
        timeline.batches,
    )


def _overhead(needs: Needs, figures: Mapping[str, Figure]) -> dict[str, float]:
    """Return the seconds of what goes on before and after the calls."""
    return {
        START: figures["start_s"].value,
        READ: needs.documents * figures["survey_us"].value / MICRO,
        WRITE: needs.documents * figures["write_us"].value / MICRO,
    }


def _phases(overhead: Mapping[str, float], timeline_s: float) -> dict[str, float]:
    return {
        START: overhead[START],
        READ: overhead[READ],
        CALLS: timeline_s,
        WRITE: overhead[WRITE],
    }


def _wanted_rate(needs: Needs, around_s: float) -> float:
    """Return the documents a second that the time left asks for.

    0 where no time is asked for, or none is left.
    """
    if needs.within_s is None:
        return 0.0
    left = needs.within_s - around_s - max(needs.calls.latencies_s)
    return needs.documents / left if left > 0 else 0.0


def _workers(needs: Needs, fleet: Fleet, figures: Mapping[str, Figure], rate: float) -> int:
    calls = rate / (1 - needs.calls.again)
    latency_s = sum(needs.calls.latencies_s) / len(needs.calls.latencies_s)
    limits = [_calls_per_second(one) for one in needs.quotas if one.per_minute is not None]
    calls = min([calls, *limits])  # more workers would wait for the provider
    by_slots = calls * latency_s * HEADROOM / fleet.concurrency
    by_cpu = calls * figures["worker_us"].value / MICRO / BUSY
    by_engine = (
        0.0 if needs.engine_per_second is None else calls * HEADROOM / needs.engine_per_second
    )
    return min(WORKERS_MAX, _at_least(max(by_slots, by_cpu, by_engine)))


def _play(
    needs: Needs,
    fleet: Fleet,
    figures: Mapping[str, Figure],
    workers: int,
    feeders: int,
    seed: int,
    without: str | None = None,
) -> Timeline:
    stages = [
        stage._replace(per_second=stage.per_second * 10) if stage.name == without else stage
        for stage in _stages(needs, figures, workers, feeders)
    ]
    slots = workers * fleet.concurrency * (10 if without == SLOTS else 1)
    return played(needs.documents, slots, stages, needs.calls, seed=seed, ramps=fleet.ramps)


def _stages(needs: Needs, figures: Mapping[str, Figure], workers: int, feeders: int) -> list[Stage]:
    stages = [
        Stage(FEEDERS, feeders * MICRO / figures["feeder_us"].value),
        Stage(REDIS, MICRO / figures["redis_us"].value),
        Stage(CPU, workers * MICRO / figures["worker_us"].value),
    ]
    if needs.engine_per_second is not None:
        stages.append(Stage(ENGINES, workers * needs.engine_per_second))
    stages += [
        Stage(_in_words(one), _calls_per_second(one))
        for one in needs.quotas
        if one.per_minute is not None and one.each
    ]
    return stages


def _calls_per_second(one: Quota) -> float:
    assert one.per_minute is not None
    return math.inf if one.each <= 0 else one.per_minute * MARGIN / 60 / one.each


def _in_words(one: Quota) -> str:
    return f"{one.per_minute:,.0f} {one.unit} a minute"


def _binding(timeline: Timeline, stages: Sequence[Stage], documents: int) -> str:
    """Return what most starts waited for, unless they waited for little beside their calls."""
    alone_s = (documents / one.per_second for one in stages if one.name == timeline.binding)
    return timeline.binding if next(alone_s, math.inf) > BOUND * timeline.seconds else ONE_CALL


def _relief(
    binding: str,
    needs: Needs,
    fleet: Fleet,
    figures: Mapping[str, Figure],
    workers: int,
    feeders: int,
    seed: int,
) -> str:
    """Return what to change, and what binds then."""
    ways = {
        SLOTS: "more workers, or more concurrency in each",
        CPU: "more workers",
        REDIS: "several fleets, each with a Redis of its own",
        FEEDERS: "more feeders, in as many control processes",
        ENGINES: "more cards, or faster ones",
        READING: "several jobs: one is read while another works",
        ONE_CALL: "a faster model: all documents are asked at once",
    }
    way = ways.get(binding, "a higher limit at the provider, or another lane")
    if binding in (READING, ONE_CALL):
        return way
    then = _play(needs, fleet, figures, workers, feeders, seed, without=binding)
    return (
        f"{way}; with ten times as much, {then.binding} would bind, at {then.per_second:,.0f} "
        "documents a second"
    )


def _quota_needed(needs: Needs, rate: float) -> dict[str, float]:
    return {
        one.unit: math.ceil(rate / (1 - needs.calls.again) * one.each * 60 / MARGIN)
        for one in needs.quotas
    }


def _at_least(number: float) -> int:
    return max(1, math.ceil(number))
