"""Typed stubs of the scripts that move messages between Redis and RabbitMQ, and their queues.

``penstock:relayed:<queue>`` holds the tags that lie in RabbitMQ, or are on their way there, and the
time of each. A message is recorded in ``unacked`` all the while: under the shovel's lease until
RabbitMQ has confirmed it, under none (+inf) until a worker takes it, then under the worker's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import chain
from time import monotonic
from typing import Any, Final, NamedTuple

import redis

from penstock_ledger import QueueBook, keys
from penstock_producer.feed.queues import queue_name
from penstock_producer.job.lanes import LANES
from penstock_workers.broker.lease_scripts import Keys, Lease, queue_keys, script_text
from penstock_workers.settings import CONTROL_LANE, WorkerSettings

log = logging.getLogger(__name__)

RECALL_MAX = 500  # messages per call


class Arrived(NamedTuple):
    """A message as RabbitMQ delivered it."""

    queue: str
    tag: str
    raw: bytes
    record: str = ""  # for a message that no shovel has recorded


class Taken(NamedTuple):
    """The arrived messages that were taken, in their order."""

    score: str  # the lease time of those that were taken
    held: list[bool]  # False: a copy


class TakeScript:
    """Takes arrived messages for a worker. Raises redis-py's errors."""

    def __init__(self, client: redis.Redis, where: Keys) -> None:
        self._where = where
        self._take = client.register_script(script_text("take"))

    def take(self, arrived: Sequence[Arrived]) -> Taken:
        names = list(dict.fromkeys(message.queue for message in arrived))
        paths = [self._where.unacked, self._where.unacked_index]
        for name in names:
            paths += [keys.unacked(name), keys.unacked_index(name), keys.relayed(name)]
        arguments: list[str | int] = []
        for message in arrived:
            arguments += [names.index(message.queue) + 1, message.tag, message.record]
        score, *found = self._take(paths, arguments)
        return Taken(_text(score), [bool(is_held) for is_held in found])


class RelayScripts:
    """Records what a shovel moves of one queue. Raises redis-py's errors."""

    def __init__(self, client: redis.Redis, queue: str, visibility_timeout_s: float) -> None:
        self.where = queue_keys(queue, visibility_timeout_s=visibility_timeout_s)
        self.key = keys.relayed(queue)
        self._client: Any = client
        self._relay = client.register_script(script_text("relay"))
        self._recall = client.register_script(script_text("recall"))

    def announce(self, leases: Sequence[Lease]) -> None:
        """Record messages before they are published.

        RabbitMQ may deliver one before it confirms it."""
        self._client.zadd(self.key, {lease.tag: lease.seen for lease in leases})

    def confirm(self, leases: Sequence[Lease]) -> int:
        """Record that RabbitMQ has the messages; returns how many no worker has taken yet."""
        if not leases:
            return 0
        arguments: list[str | float] = [
            self.where.visibility_timeout_s,
            *chain.from_iterable(leases),
        ]
        return int(self._relay([self.where.unacked_index, self.key], arguments))

    def recall(self, tags: Sequence[str]) -> int:
        """Return messages to the list; returns how many no worker had taken."""
        if not tags:
            return 0
        where = self.where
        paths = [where.unacked, where.unacked_index, where.parked, self.key]
        return int(self._recall(paths, [where.prefix, where.steps_text, *tags]))

    def recall_before(self, seconds: float) -> int:
        """Recall what was relayed before this time of the server's clock.

        ``RECALL_MAX`` messages at most."""
        found = self._client.zrangebyscore(self.key, "-inf", seconds, start=0, num=RECALL_MAX)
        return self.recall([_text(tag) for tag in found])

    def recall_unclaimed(self) -> int:
        """Recall messages that no worker took within the visibility timeout; returns how many."""
        before = self.now() - self.where.visibility_timeout_s
        returned = 0
        while found := self.recall_before(before):
            returned += found
        return returned

    def oldest(self) -> float | None:
        """Return when the oldest relayed message was relayed, by the server's clock."""
        found = self._client.zrange(self.key, 0, 0, withscores=True)
        return float(found[0][1]) if found else None

    def now(self) -> float:
        seconds, micros = self._client.time()
        return float(seconds) + float(micros) / 1e6


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


LOOK_EACH_S: Final = 1.0
"""So late the first message of a new model reaches RabbitMQ."""


class FleetQueues:
    """The queues of the fleet, for one thread. Raises redis-py's errors."""

    def __init__(self, client: redis.Redis) -> None:
        self._book = QueueBook(client)
        self._known: list[str] = []
        self._look_at = 0.0

    def now(self) -> list[str]:
        """Return the queues, in an order that stays."""
        if monotonic() >= self._look_at:
            self._known = [name for lane in LANES for name in self._book.of(queue_name(lane))]
            self._known.append(queue_name(CONTROL_LANE))
            self._look_at = monotonic() + LOOK_EACH_S
        return self._known


log = logging.getLogger(__name__)


class SwitchBack:
    """Recalls messages that RabbitMQ, the broker of before, still has.

    The fleet's broker is Redis now."""

    def __init__(self, client: redis.Redis, settings: WorkerSettings) -> None:
        self._client = client
        self._queues = FleetQueues(client)
        self._each_s = settings.visibility_timeout_s
        self._next_at = 0.0

    def look(self) -> None:
        """Recall once per visibility timeout; does nothing in between. Raises Redis's errors."""
        if monotonic() < self._next_at:
            return
        self._next_at = monotonic() + self._each_s
        for queue in self._queues.now():
            returned = RelayScripts(self._client, queue, self._each_s).recall_unclaimed()
            if returned:
                log.warning(
                    "%d messages of %s were still in RabbitMQ; they are back in Redis",
                    returned,
                    queue,
                )
