"""Typed stubs of the Lua scripts, one per atomic step.

``scripts/record.lua`` documents the keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any, NamedTuple

import redis

from penstock_ledger import QueueBook, keys
from penstock_producer.feed.wire import queue_name
from penstock_producer.job.lanes import LANES

__all__ = ["return_leases_of_the_dead"]


PARKED_KEY = keys.PARKED_UNKNOWN
SWEEP_KEY = "penstock:sweep"
RESTORED_PER_SWEEP = 500  # each costs Redis some 20 us: a sweep blocks Redis for 10 ms at most


class Lease(NamedTuple):
    """A message that this process holds."""

    tag: str
    seen: str  # its score in the index when Redis last returned it


class Keys(NamedTuple):
    """The keys of a broker's messages: transport options that all its workers share."""

    unacked: str
    unacked_index: str
    visibility_timeout_s: float
    prefix: str = ""
    steps: tuple[int, ...] = (0,)

    @property
    def parked(self) -> str:
        return self.prefix + PARKED_KEY

    @property
    def sweep(self) -> str:
        """Exists while a sweep of these leases would come too early."""
        return f"{self.prefix}{SWEEP_KEY}:{self.unacked.removeprefix(self.prefix)}"

    def of_older_workers(self) -> Keys:
        """Return where workers kept their messages before each lane had keys of its own."""
        return self._replace(
            unacked=self.prefix + keys.OLDER_UNACKED,
            unacked_index=self.prefix + keys.OLDER_UNACKED_INDEX,
        )

    @property
    def steps_text(self) -> str:
        return ",".join(map(str, self.steps))


@cache
def script_text(name: str) -> str:
    folder = files("penstock_workers.broker") / "scripts"
    return (folder / "record.lua").read_text("utf-8") + (folder / f"{name}.lua").read_text("utf-8")


class LeaseScripts:
    """The steps that the lease keeper takes, over a client of its own.

    All raise redis-py's errors."""

    def __init__(self, client: redis.Redis, where: Keys) -> None:
        self._where = where
        self._room = where.visibility_timeout_s, keys.REBUILT_S
        self._parking = [where.unacked, where.unacked_index, where.parked, keys.EPOCH_REBUILT]
        self._ack = client.register_script(script_text("ack"))
        self._renew = client.register_script(script_text("renew"))
        self._give_back = client.register_script(script_text("give_back"))
        self._set_aside = client.register_script(script_text("set_aside"))
        self._restore = client.register_script(script_text("restore"))

    def ack(self, leases: Sequence[Lease]) -> list[str]:
        """Forget concluded messages; returns the tags whose lease was lost."""
        where = self._where
        return _texts(
            self._ack(
                [where.unacked, where.unacked_index, keys.EPOCH_REBUILT],
                [*self._room, *_pairs(leases)],
            )
        )

    def renew(self, leases: Sequence[Lease]) -> tuple[str, list[str]]:
        """Extend leases; returns their new score, and the tags whose lease was lost."""
        score, *lost = _texts(
            self._renew(
                [self._where.unacked_index, keys.EPOCH_REBUILT], [*self._room, *_pairs(leases)]
            )
        )
        return score, lost

    def give_back(self, leases: Sequence[Lease]) -> list[str]:
        """Return messages to the front of their queues; returns the tags whose lease was lost."""
        where = self._where
        arguments = [*self._room, where.prefix, where.steps_text, *_pairs(leases)]
        return _texts(self._give_back(self._parking, arguments))

    def set_aside(self, leases: Sequence[Lease]) -> list[str]:
        """Keep messages aside that no task handles; returns the tags whose lease was lost."""
        return _texts(self._set_aside(self._parking, [*self._room, *_pairs(leases)]))

    def restore(self, next_sweep_s: float) -> int:
        """Return messages whose lease has run out to their queues, at most ``RESTORED_PER_SWEEP``.

        Returns how many; -1 when some worker did so less than ``next_sweep_s`` seconds ago.
        """
        where = self._where
        pause_ms = max(1, int(next_sweep_s * 1000))
        arguments: list[str | float] = [where.visibility_timeout_s, where.prefix, where.steps_text]
        arguments += [RESTORED_PER_SWEEP, pause_ms]
        return int(
            self._restore(
                [where.unacked, where.unacked_index, where.parked, where.sweep], arguments
            )
        )


def return_leases_of_the_dead(client: redis.Redis) -> int:
    """Return every held message to its queue at once; returns how many.

    Call it only where no worker of this Redis is alive."""
    book = QueueBook(client)
    kept = [
        queue_keys(queue, visibility_timeout_s=0)
        for lane in LANES
        for queue in book.of(queue_name(lane))
    ]
    return sum(_return_all(client, where) for where in (*kept, kept[0].of_older_workers()))


def lane_keys(lane: str, *, visibility_timeout_s: float) -> Keys:
    """Return the keys of workers that host no model.

    Messages in the lane's own queue on their way to RabbitMQ have these, too."""
    return queue_keys(queue_name(lane), visibility_timeout_s=visibility_timeout_s)


def queue_keys(queue: str, *, visibility_timeout_s: float) -> Keys:
    """Return where the workers of one model keep their messages, by its queue."""
    return Keys(keys.unacked(queue), keys.unacked_index(queue), visibility_timeout_s)


def _return_all(client: redis.Redis, where: Keys) -> int:
    scripts = LeaseScripts(client, where)
    client.delete(where.sweep)  # a sweep just before they died must not delay this one
    returned = 0
    while (swept := scripts.restore(0.001)) > 0:
        returned += swept
    return returned


def _pairs(leases: Sequence[Lease]) -> Iterable[str | float]:
    return chain.from_iterable(leases)


def _texts(reply: Any) -> list[str]:
    return [part.decode() if isinstance(part, bytes) else str(part) for part in reply]


class Claimed(NamedTuple):
    """One message that was taken from its queue."""

    queue: str
    tag: str
    raw: bytes  # as it lay in the queue


class Claim(NamedTuple):
    """The messages of one claim."""

    score: str  # the lease time of all of them
    dropped: int  # duplicates of messages that some worker holds
    put_off: int  # retries that came before the earlier try was acknowledged
    messages: list[Claimed]


class ClaimScript:
    """One claim at a time: ``command``, then ``read`` with its answer.

    ``forget`` comes when the server has lost the script."""

    def __init__(self) -> None:
        self._text = script_text("claim")
        # how Redis names scripts
        self._digest = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()
        self._is_loaded = False
        self._queues: list[str] = []

    def command(
        self, keys: Keys, lists: Sequence[tuple[str, str]], unrecorded: Collection[str], room: int
    ) -> list[str | int]:
        """Return the command that takes up to ``room`` messages from ``lists``.

        These are pairs of queue and Redis list, in their order.

        Messages of ``unrecorded`` queues need no acknowledgement."""
        self._queues = [queue for queue, _ in lists]
        names = ["" if queue in unrecorded else json.dumps(queue) for queue in self._queues]
        paths = [
            keys.unacked,
            keys.unacked_index,
            keys.parked,
            *(keys.prefix + path for _, path in lists),
        ]
        script = ["EVALSHA", self._digest] if self._is_loaded else ["EVAL", self._text]
        return [*script, len(paths), *paths, room, *names]

    def read(self, reply: Any) -> Claim:
        self._is_loaded = True
        score, dropped, put_off, *found = reply
        messages = [
            Claimed(self._queues[number - 1], tag.decode(), raw)
            for number, tag, raw in zip(found[::3], found[1::3], found[2::3], strict=True)
        ]
        return Claim(score.decode(), dropped, put_off, messages)

    def forget(self) -> None:
        """Send the text with the next command, since Redis has no scripts after a restart."""
        self._is_loaded = False
