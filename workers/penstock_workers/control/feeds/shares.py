"""Documents of each job wait in a queue by fair shares, or in turns.

Classes by priority, tenants evenly inside a class, jobs by weight inside a tenant. A queue is first
in, first out, so a job that keeps twice as many documents in it is served twice as often. Urgent
documents go to the consuming end instead; there may be only so many of them at once that every
moment some slots claim others.

A thousand jobs with a thousandth of a window each would be fed a few documents at a time: a script
call and a transaction for each handful, and a queue in which no two neighbours belong to one job,
so that workers start and settle them one by one. So they take turns: at most ``TURNS`` of them fill
the room that they share, each with a step worth its price, and next comes the one that has had
least for its part (start-time fair queueing, as in the line of a worker). No credit for idle time.

Control processes share the shards of a source in the same way, and shards the room of a job. Each
process knows how many control processes run, and sees in SQL who leads what. So each takes shards
one by one until it has its part, and lets go of one where it has more: a process that joins gets
its part, and the shards of one that died are taken by the others when their leases end. No process
asks another.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from time import monotonic
from typing import Final, NamedTuple, TypeVar

from penstock_ledger import LiveFeed, LiveJob, RedisLedger
from penstock_ratelimit import Flow, Priority
from penstock_ratelimit.for_penstock import CLASS_STEP


class Share(NamedTuple):
    """The documents that one job may have outstanding."""

    documents: int
    urgent: bool  # at the consuming end


def shares(flows: Collection[Flow], front: int, window: int) -> dict[str, Share]:
    """Return by job how many documents may wait, each at least one.

    Urgent jobs share ``front`` documents, the others a ``window``. Urgent jobs that find no place
    at the front, because there are more jobs than places, are fed as normal ones.
    """
    placed = _placed(flows, front)
    found = {job: Share(documents, True) for job, documents in placed.items()}
    found |= {
        job: Share(max(1, int(window * part)), False)
        for job, part in _parts_beside(flows, placed).items()
    }
    return found


def parts_of_window(flows: Collection[Flow], front: int) -> dict[str, float]:
    """Return which part of the window each job gets that has no place at the front."""
    return _parts_beside(flows, _placed(flows, front))


def parts(flows: Iterable[Flow]) -> dict[str, float]:
    """Return which part of the whole each job gets; the parts add up to one."""
    classes: dict[int, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for flow in flows:
        classes[flow.priority][flow.tenant][flow.job] = flow.weight
    return {
        job: of_class * of_tenant * of_job
        for priority, of_class in _split(
            {priority: CLASS_STEP**-priority for priority in classes}
        ).items()
        for tenant, of_tenant in _split(dict.fromkeys(classes[priority], 1.0)).items()
        for job, of_job in _split(classes[priority][tenant]).items()
    }


_Name = TypeVar("_Name", bound=Hashable)


def _split(weights: Mapping[_Name, float]) -> dict[_Name, float]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _placed(flows: Collection[Flow], front: int) -> dict[str, int]:
    return _places([flow for flow in flows if flow.priority == Priority.URGENT], front)


def _parts_beside(flows: Collection[Flow], placed: Collection[str]) -> dict[str, float]:
    return parts(
        replace(flow, priority=max(flow.priority, Priority.NORMAL))
        for flow in flows
        if flow.job not in placed
    )


def _places(urgent: Collection[Flow], front: int) -> dict[str, int]:
    """Return by job its places at the front, all together never more than there are.

    When they run out the largest parts come first."""
    placed: dict[str, int] = {}
    for job, part in sorted(parts(urgent).items(), key=lambda row: (-row[1], row[0])):
        wanted = max(1, int(front * part))
        if sum(placed.values()) + wanted <= front:
            placed[job] = wanted
    return placed


# steps that fill the shared room: fewer would let small jobs wait longer, more would be smaller
# steps
TURNS = 8
# times what the fleet needs for a whole window: documents that are out for longer wait for
# something else
STUCK = 2.0


class Turns:
    """The turns of the jobs of one queue.

    Belongs to the control thread; ``begin`` comes first in every round."""

    def __init__(self) -> None:
        self._parts: Mapping[str, float] = {}  # of the window, by job that takes turns
        self._had: dict[str, float] = {}  # job -> documents fed for its part, in virtual time
        self._virtual = 0.0  # of the latest turn: a job that comes later starts here
        # job with documents outstanding -> when its latest turn was
        self._fed_at: dict[str, float] = {}
        self._stuck: frozenset[str] = frozenset()
        self._now = 0.0
        self._room = self._step = 0

    def begin(
        self,
        parts: Mapping[str, float],
        outstanding: Mapping[str, int],
        window: int,
        per_s: float,
        now: float,
    ) -> None:
        """Begin a round.

        ``parts`` holds the part of the ``window`` of each job that takes turns, ``outstanding`` the
        documents without an outcome of each live job; ``per_s`` is how many documents the fleet
        finishes a second.
        """
        self._parts, self._now = parts, now
        self._had = {
            job: had for job, had in self._had.items() if job in outstanding and had > self._virtual
        }
        self._fed_at = {job: self._fed_at.get(job, now) for job in parts if outstanding[job]}
        stuck_before = now - (STUCK * window / per_s if per_s > 0 else math.inf)
        self._stuck = frozenset(job for job in parts if self._fed_at.get(job, now) < stuck_before)
        whole = window * sum(parts.values())
        held = sum(
            min(outstanding[job], window * part) if job in self._stuck else outstanding[job]
            for job, part in parts.items()
        )
        self._room = round(whole - held)
        self._step = max(1, min(window // TURNS, round(whole) // 2))

    def __bool__(self) -> bool:
        """Return whether any jobs take turns in this round."""
        return bool(self._parts)

    def applies_to(self, job: str) -> bool:
        """Return whether a job takes turns.

        If not, its own share says what it may have outstanding. That also holds for a job whose
        documents are stuck.
        """
        return job in self._parts and job not in self._stuck

    def room(self) -> int:
        """Return how many documents the job whose turn it is may add: a whole step, or none."""
        return self._step if self._room >= self._step else 0

    def place(self, job: str) -> float:
        """Return a job's place in the line: the lower it is, the sooner it is this job's turn."""
        return max(self._virtual, self._had.get(job, 0.0)) if self._parts else 0.0

    def note(self, job: str, documents: int) -> None:
        """Note that a job was fed so many documents in this turn.

        The job may be one that had nothing to feed until now, and so has no part yet."""
        if not documents or not self._parts:
            return
        self._virtual = self.place(job)
        self._had[job] = self._virtual + documents / self._parts.get(job, min(self._parts.values()))
        self._fed_at[job] = self._now
        self._room -= documents


SAID_EVERY_S: Final = 3.0
"""A process says so often that it turns, while a source that is split is read."""
FORGOTTEN_S: Final = 12.0
"""A process that has not said so for so long has no part: about as long as the lease of a feed."""

WORTH_A_STEP: Final = 500
"""Documents that are worth a call of Redis and a transaction of their own."""


class Processes:
    """The number of control processes that turn.

    Belongs to the control thread. ``number`` raises redis.RedisError."""

    def __init__(self, hot: RedisLedger, owner: str) -> None:
        self._hot = hot
        self._owner = owner
        self._number = 1
        self._again_at = 0.0

    def number(self, live: Sequence[LiveJob]) -> int:
        """Return how many control processes run.

        Redis is asked only while a source that is split is read."""
        if not any(feed.shards for _, feeds in live for feed in feeds):
            return 1
        if monotonic() >= self._again_at:
            self._number = max(1, self._hot.controls(self._owner, FORGOTTEN_S))
            self._again_at = monotonic() + SAID_EVERY_S
        return self._number

    def leave(self) -> None:
        """Leave the shared count as this process ends, so that the others take its part at once.

        Raises redis.RedisError."""
        if self._again_at:
            self._hot.control_left(self._owner)


def taken_on(shards: Sequence[LiveFeed], owner: str, processes: int) -> list[LiveFeed]:
    """Return the next shard to lead, as a list of one or none.

    One is taken in each round, so that processes that see the same free shards each get some of
    them.
    """
    if _led(shards, owner) >= _part(shards, processes):
        return []
    return [shard for shard in shards if shard.free][:1]


def given_up(shards: Sequence[LiveFeed], owner: str, processes: int) -> list[LiveFeed]:
    """Return the shard to let go of, which is the last one, or nothing."""
    if _led(shards, owner) <= _part(shards, processes):
        return []
    return [shard for shard in shards if shard.led_by(owner)][-1:]


def room_of(place: int, shards: int, room: int) -> int:
    """Return how much of ``room`` the shard at ``place`` (from 0) may add.

    ``shards`` is how many of them have a leader. They feed at the same time, in processes that see
    the same room; so their parts add up to it and to no more. Where the room is for a few steps
    only, feeding is not what the job waits for, and the first shards alone are read.
    """
    steps = max(1, min(shards, room // WORTH_A_STEP))
    whole, rest = divmod(room, steps)
    if place >= steps:
        return 0
    return whole + 1 if place < rest else whole


def _led(shards: Sequence[LiveFeed], owner: str) -> int:
    return sum(shard.led_by(owner) for shard in shards)


def _part(shards: Sequence[LiveFeed], processes: int) -> int:
    return ceil(len(shards) / processes)
