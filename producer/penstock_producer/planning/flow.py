"""A simulation plays documents through a fleet and its calls, one event per group of them.

A call starts once a document is there, a slot is free and every stage lets it through: a stage is
anything that takes so many calls a second, a provider's limit, the feeders, the workers' CPU,
Redis, the engines. It holds its slot for one latency, which is drawn from those measured. A share
of the calls is followed by another one. What was waited for last is noted at each start: what most
starts waited for is what binds.

At most some tens of thousands of groups are played. A longer job goes on at the pace of the second
half of those, so that 100 million documents take as long to work out as 20,000, and its beginning
and end are played all the same. Batches of providers have a timeline of their own.

What is taken for granted are figures, each with its unit and where it comes from: measured
(`measured.toml`) or given.
"""

from __future__ import annotations

import heapq
import math
import random
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

__all__ = [
    "SLOTS",
    "Batches",
    "Calls",
    "Figure",
    "Stage",
    "Timeline",
    "batches_played",
    "measured",
    "played",
]

_ALL: Final = "lane"


class Figure(NamedTuple):
    """One assumption."""

    name: str
    value: float
    unit: str
    source: str


def measured(lane: str) -> Mapping[str, Figure]:
    """Return the figures that come with this release, by name.

    They are those that hold for all lanes, and in the place of these what the lane has of its own.
    """
    raw = _table()
    where = raw["machine"]
    rows = sorted(raw["figures"], key=lambda row: _ALL in row)
    return {
        row["name"]: Figure(
            row["name"],
            float(row["value"]),
            row["unit"],
            f"{row['source']}; measured on {where['date']}, {where['machine']}",
        )
        for row in rows
        if row.get(_ALL, lane) == lane
    }


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(
        files("penstock_producer.planning").joinpath("measured.toml").read_text("utf-8")
    )


PLAYED_MAX: Final = 20_000  # batches of a round; what goes beyond takes as long as those do
ROUNDS_MAX: Final = 20  # of what had no answer: attempts are bounded well below it
PACKER, ROOM, PROVIDER = "packing", "room for enqueued tokens", "the provider's time for a batch"


class Batches(NamedTuple):
    """The shape of a job's batches."""

    documents: int  # in one batch
    tokens: int  # that the account counts for a document
    turnarounds_s: Sequence[float]  # from create to end, each as likely as the others
    tokens_max: int | None = None  # that the account may have at the provider; None = no limit
    again: float = 0.0  # share of documents that come back without an answer
    attempts_max: int = 4
    pack_s: float = 0.0  # for a document, in one worker
    collect_s: float = 0.0  # likewise
    look_first_s: float = 5.0  # after its create a batch is looked at so often at first,
    look_growth: float = 1.5
    look_cap_s: float = 120.0  # and so often in the end
    # between the last answer of a round and the next round: a look at the journal, or two
    rest_s: float = 2.0


class BatchTimeline(NamedTuple):
    """The timeline of the batches that were played."""

    seconds: float
    batches: int
    rounds: int
    at_once: int  # batches at the provider, at most
    unanswered: int
    binding: str


def batches_played(documents: int, given: Batches, *, seed: int = 0) -> BatchTimeline:
    """Simulate a job on a lane that packs. Raises ValueError for a batch that never fits."""
    if documents < 1 or given.documents < 1 or not given.turnarounds_s:
        raise ValueError(
            "a job needs a document, a batch that takes one, and the time that batches take"
        )
    if (
        given.tokens_max is not None
        and given.documents * given.tokens > given.tokens_max
        and given.documents > 1
    ):
        raise ValueError(
            f"a batch of {given.documents} documents with {given.tokens} tokens each is more than "
            f"the {given.tokens_max} that the account may have at once"
        )
    luck = random.Random(seed)
    at_s, left, number, rounds, at_once = 0.0, documents, 0, 0, 0
    waits: dict[str, float] = {PACKER: 0.0, ROOM: 0.0, PROVIDER: 0.0}
    while left and rounds < min(given.attempts_max, ROUNDS_MAX):
        batches = math.ceil(left / given.documents)
        turn = _Round(given, luck, at_s + (given.rest_s if rounds else 0.0), waits)
        at_s = turn.through(_sizes(min(left, PLAYED_MAX * given.documents), given.documents))
        if batches > PLAYED_MAX:
            at_s += (at_s - turn.began_s) / PLAYED_MAX * (batches - PLAYED_MAX)
        number, rounds, at_once = number + batches, rounds + 1, max(at_once, turn.at_once)
        left = _binomial(luck, left, given.again)
    return BatchTimeline(at_s, number, rounds, at_once, left, max(waits, key=waits.__getitem__))


class _Round:
    def __init__(
        self, given: Batches, luck: random.Random, began_s: float, waits: dict[str, float]
    ) -> None:
        self._given, self._luck, self.began_s, self._waits = given, luck, began_s, waits
        self._open: list[tuple[float, int]] = []  # when the provider frees its tokens, and how many
        self._held = 0
        self._last_s = began_s  # when the latest was created: they are in order
        self.at_once = 0

    def through(self, sizes: Sequence[int]) -> float:
        """Return when the last answer of these batches is stored."""
        given, packed_s, free_s = self._given, self.began_s, self.began_s
        noticed: list[tuple[float, int]] = []
        for size in sizes:
            packed_s += size * given.pack_s
            created_s = self._room(packed_s, size * given.tokens)
            took_s = self._luck.choice(given.turnarounds_s)
            seen_s = created_s + _noticed(took_s, given)
            heapq.heappush(self._open, (seen_s, size * given.tokens))
            self._held += size * given.tokens
            self.at_once = max(self.at_once, len(self._open))
            noticed.append((seen_s, size))
            self._waits[PROVIDER] += took_s / len(sizes)
        for seen_s, size in sorted(noticed):
            free_s = max(free_s, seen_s) + size * given.collect_s
        self._waits[PACKER] += packed_s - self.began_s
        self._waits[ROOM] += self._last_s - packed_s
        return free_s

    def _room(self, at_s: float, tokens: int) -> float:
        """Return when the account has room for so many tokens, from this time on."""
        most, at_s = self._given.tokens_max, max(at_s, self._last_s)
        while self._open and (
            self._open[0][0] <= at_s or (most is not None and self._held + tokens > most)
        ):
            freed_s, freed = heapq.heappop(self._open)
            self._held -= freed
            at_s = max(at_s, freed_s)
        self._last_s = at_s
        return at_s


def _noticed(took_s: float, given: Batches) -> float:
    """Return when a batch that took so long is first looked at, by the pauses between looks."""
    at_s, pause_s = 0.0, given.look_first_s
    while at_s < took_s:
        if pause_s >= given.look_cap_s:
            return at_s + math.ceil((took_s - at_s) / given.look_cap_s) * given.look_cap_s
        at_s, pause_s = at_s + pause_s, min(given.look_cap_s, pause_s * given.look_growth)
    return at_s


def _sizes(documents: int, most: int) -> list[int]:
    whole, rest = divmod(documents, most)
    return [most] * whole + ([rest] if rest else [])


def _binomial(luck: random.Random, number: int, share: float) -> int:
    """Draw how many of ``number`` have the luck that a ``share`` has.

    The normal form is used, which large numbers have.
    """
    if share <= 0:
        return 0
    drawn = luck.gauss(number * share, math.sqrt(number * share * (1 - share)))
    return min(number, max(0, round(drawn)))


SLOTS: Final = "slots"  # what a start waits for where all slots are taken
PLAYED_MIN: Final = 20_000  # groups; what a longer job has in all else follows their pace
ROUNDS_PLAYED: Final = 10  # times every slot is used, at least, before a pace is believed
GROUPS_AT_ONCE: Final = 2_000  # in flight: a fleet with more slots moves documents in groups
# at which a fleet begins that finds out how much a provider takes; doubled per round trip
FIRST_SLOTS: Final = 8


class Stage(NamedTuple):
    """A stage that takes so many calls a second in the whole fleet.

    After a rest it takes so many seconds of them at once.
    """

    name: str
    per_second: float
    burst_s: float = 0.0


class Calls(NamedTuple):
    """The shape of a job's calls."""

    latencies_s: Sequence[float]  # of one call, each as likely as the others
    again: float = 0.0  # share of calls that are followed by another of the same document
    wait_s: float = 0.5  # before that one
    attempts_max: int = 4


class Timeline(NamedTuple):
    """The timeline that was played: from the first document that could be fed to the last."""

    seconds: float
    calls: float
    unanswered: int  # documents whose last attempt failed, too
    waited_for: Mapping[str, float]  # share of starts that waited last for this: a stage or SLOTS
    # documents: the mean of a job that was played whole, else the pace between its beginning and
    # its end
    per_second: float

    @property
    def binding(self) -> str:
        """Return what most starts waited for."""
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
) -> Timeline:
    """Simulate a job on a lane whose documents are messages.

    ``ramps``: no limit is known, so that the fleet begins with few calls and doubles them with
    every round trip. Raises ValueError for what nothing could pass through.
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
    return Timeline(
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
        """Play so many groups to their ends; return when half of them had started, and the last."""
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
    """Yield when each slot may be used first."""
    for place in range(places):
        trips = max(0, math.ceil(math.log2((place + 1) / FIRST_SLOTS))) if ramps else 0
        yield trips * latency_s
