"""How long documents take through the stages of a fleet and its calls: a simulation, one event for
each group of documents.

A call starts once a document is there, a slot is free and every stage lets it through: a stage is
anything that takes so many calls a second, a provider's limit, the feeders, the workers' CPU,
Redis, the engines. It holds its slot for one latency, which is drawn from those measured. A share
of the calls is followed by another one. What was waited for last is noted at each start: what most
starts waited for is what binds.

At most some tens of thousands of groups are played. A longer job goes on at the pace of the second
half of those, so that 100 million documents take as long to work out as 20,000, and its beginning
and end are played all the same.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

__all__ = ["SLOTS", "Calls", "Course", "Stage", "played"]

SLOTS: Final = "slots"  # what a start waits for where all slots are taken
PLAYED_MIN: Final = 20_000  # groups; what a longer job has in all else follows their pace
ROUNDS_PLAYED: Final = 10  # times every slot is used, at least, before a pace is believed
GROUPS_AT_ONCE: Final = 2_000  # in flight: a fleet with more slots moves documents in groups
FIRST_SLOTS: Final = (
    8  # at which a fleet begins that finds out how much a provider takes; doubled per round trip
)


class Stage(NamedTuple):
    """What takes so many calls a second in the whole fleet, and so many seconds of them at once
    after a rest."""

    name: str
    per_second: float
    burst_s: float = 0.0


class Calls(NamedTuple):
    """What the calls of a job are like."""

    latencies_s: Sequence[float]  # of one call, each as likely as the others
    again: float = 0.0  # share of calls that are followed by another of the same document
    wait_s: float = 0.5  # before that one
    attempts_max: int = 4


class Course(NamedTuple):
    """What was played: from the first document that could be fed to the last answer."""

    seconds: float
    calls: float
    unanswered: int  # documents whose last attempt failed, too
    waited_for: Mapping[str, float]  # share of starts that waited last for this: a stage or SLOTS
    # documents: the mean of a job that was played whole, else the pace between its beginning and
    # its end
    per_second: float

    @property
    def binding(self) -> str:
        """What most starts waited for."""
        return max(self.waited_for, key=self.waited_for.__getitem__, default=SLOTS)


class _Clock:
    """A stage as it is played: when it lets the next group through."""

    __slots__ = ("burst_s", "each_s", "name", "next_s")

    def __init__(self, stage: Stage, group: int) -> None:
        if not stage.per_second > 0:
            raise ValueError(
                f"stage {stage.name!r} lets {stage.per_second} calls a second through; give more "
                "than 0"
            )
        self.name, self.each_s, self.burst_s = stage.name, group / stage.per_second, stage.burst_s
        self.next_s = stage.burst_s  # it begins empty, as the shared quota does

    @property
    def open_s(self) -> float:
        return self.next_s - self.burst_s

    def passed(self, at_s: float) -> None:
        self.next_s = max(self.next_s, at_s) + self.each_s


def played(
    documents: int,
    slots: int,
    stages: Sequence[Stage],
    calls: Calls,
    *,
    seed: int = 0,
    ramps: bool = False,
) -> Course:
    """``ramps``: no limit is known, so that the fleet begins with few calls and doubles them with
    every round trip.

    Raises ValueError for what nothing could pass through.
    """
    if documents < 1 or slots < 1 or not calls.latencies_s or not 0 <= calls.again < 1:
        raise ValueError(
            "a job needs a document, a slot, a latency, and calls of which not all fail"
        )
    group = max(1, slots // GROUPS_AT_ONCE)
    groups, places = math.ceil(documents / group), max(1, slots // group)
    looked_at = min(groups, max(PLAYED_MIN, ROUNDS_PLAYED * places))
    play = _Play(
        places, [_Clock(stage, group) for stage in stages], calls, random.Random(seed), ramps=ramps
    )
    half_s, last_s = play.through(looked_at)
    more = groups - looked_at
    per_second = (
        groups / play.ended_s
        if not more
        else (looked_at - looked_at // 2) / max(1e-9, last_s - half_s)
    )
    share = groups / looked_at
    starts = play.waited.total()
    return Course(
        play.ended_s + more / per_second,
        play.calls * group * share * documents / (groups * group),
        round(play.unanswered * group * share),
        {name: number / starts for name, number in play.waited.items()},
        per_second * group,
    )


class _Play:
    def __init__(
        self,
        places: int,
        clocks: Sequence[_Clock],
        calls: Calls,
        luck: random.Random,
        *,
        ramps: bool,
    ) -> None:
        self._clocks, self._calls, self._luck = clocks, calls, luck
        self._free = sorted(
            _begins(places, sum(calls.latencies_s) / len(calls.latencies_s), ramps=ramps)
        )
        self._again: list[tuple[float, int]] = []  # when it may start, and its attempts so far
        self.waited: Counter[str] = Counter()  # since the half, where all of it moves
        self.ended_s, self.calls, self.unanswered = 0.0, 0, 0

    def through(self, groups: int) -> tuple[float, float]:
        """Play so many groups to their ends; when half of them had started, and the last one."""
        half = groups // 2
        half_s = last_s = 0.0
        begun = 0
        while begun < groups or self._again:
            slot_s = heapq.heappop(self._free)
            if self._again and (begun == groups or self._again[0][0] <= slot_s):
                due_s, attempts = heapq.heappop(self._again)
            else:
                due_s, attempts, begun = 0.0, 0, begun + 1
            at_s = self._start(max(slot_s, due_s), begun > half)
            if attempts == 0:
                half_s = at_s if begun == half else half_s
                last_s = at_s
            self._call(at_s, attempts + 1)
        return half_s, last_s

    def _start(self, ready_s: float, counts: bool) -> float:
        at_s, name = ready_s, SLOTS
        for clock in self._clocks:
            if clock.open_s > at_s:
                at_s, name = clock.open_s, clock.name
        for clock in self._clocks:
            clock.passed(at_s)
        if counts:
            self.waited[name] += 1
        return at_s

    def _call(self, at_s: float, attempts: int) -> None:
        done_s = at_s + self._luck.choice(self._calls.latencies_s)
        heapq.heappush(self._free, done_s)
        self.calls += 1
        self.ended_s = max(self.ended_s, done_s)
        if self._luck.random() < self._calls.again:
            if attempts < self._calls.attempts_max:
                heapq.heappush(self._again, (done_s + self._calls.wait_s, attempts))
            else:
                self.unanswered += 1


def _begins(places: int, latency_s: float, *, ramps: bool) -> Iterator[float]:
    """When each slot may be used first."""
    for place in range(places):
        trips = max(0, math.ceil(math.log2((place + 1) / FIRST_SLOTS))) if ramps else 0
        yield trips * latency_s
