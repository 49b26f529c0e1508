"""A job's timeline shows documents over time, and how long answers took.

For the forms with charts; it reads every row of a job."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

__all__ = ["Latency", "Stretch", "Timeline", "percentiles", "summed", "timeline_of"]

if TYPE_CHECKING:
    from penstock_ledger import OutcomeStore
    from penstock_ledger.model import Job

STRETCHES: Final = 60  # that the time of a job is shown in, at most
PERCENTILES: Final = (50, 90, 95, 99, 100)


class Stretch(NamedTuple):
    """Documents that had ended by the end of a stretch of time.

    They are counted from the beginning of the job.
    """

    seconds: int
    succeeded: int
    dead: int

    @property
    def finished(self) -> int:
        return self.succeeded + self.dead


class Latency(NamedTuple):
    """So many answers in a hundred took at most so long."""

    percent: int
    milliseconds: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The timeline of a job: how many of its visible outcomes had ended by when.

    Those of replayed dead letters ended when their replay did.
    """

    stretches: Sequence[Stretch]
    latencies: Sequence[Latency]  # none where no lane measured any

    @property
    def seconds(self) -> int:
        return self.stretches[-1].seconds if self.stretches else 0


def timeline_of(store: OutcomeStore, job: Job) -> Timeline:
    since = job.created_at
    until = job.finished_at or time.time()
    each_s = max(1, math.ceil((until - since) / STRETCHES))
    return Timeline(
        summed(store.ended_in(job.job_id, since, each_s), each_s),
        percentiles(store.latencies(job.job_id)),
    )


def summed(ended: Sequence[tuple[int, int, int]], each_s: int) -> list[Stretch]:
    """Return the sums at the end of each stretch; the first is the beginning.

    ``ended``: number of a stretch, succeeded and dead in it; clocks of machines differ, so it may
    begin below 0.
    """
    found = [Stretch(0, 0, 0)]
    for number, succeeded, dead in ended:
        before = found[-1]
        behind = max(number, 0) * each_s
        if behind > before.seconds:  # nothing ended in between: the line stays flat until here
            found.append(before._replace(seconds=behind))
        found.append(Stretch(behind + each_s, before.succeeded + succeeded, before.dead + dead))
    return found


def percentiles(latencies: Sequence[tuple[int, int]]) -> list[Latency]:
    """Return percentiles by nearest rank.

    ``latencies``: milliseconds and how many took so long, the shortest first.
    """
    whole = sum(number for _, number in latencies)
    if not whole:
        return []
    return [
        Latency(percent, _at(latencies, math.ceil(whole * percent / 100)))
        for percent in PERCENTILES
    ]


def _at(latencies: Sequence[tuple[int, int]], rank: int) -> int:
    reached = 0
    for milliseconds, number in latencies:
        reached += number
        if reached >= rank:
            return milliseconds
    return latencies[-1][0]
