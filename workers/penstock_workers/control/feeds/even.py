"""Control processes share the shards of a source, and shards share the room of a job.

Each process knows how many control processes run, and sees in SQL who leads what. So each takes
shards one by one until it has its part, and lets go of one where it has more: a process that joins
gets its part, and the shards of one that died are taken by the others when their leases end. No
process asks another.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from time import monotonic
from typing import Final

from penstock_ledger import LiveFeed, LiveJob, RedisLedger

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
