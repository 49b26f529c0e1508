"""A lane has its own queue, and one for each model that jobs name or workers serve.

Which models there are is not known beforehand (a batch line may name any), so each queue is noted
in Redis by what puts messages into it and by the workers that take them out. What a stranger writes
there is passed over unless it is a queue of the lane.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import redis

from penstock_ledger import keys
from penstock_ledger.in_redis.redis_scripts import chunks, registered

QUEUES_MAX: Final = 256
"""Queues of models in one lane that feeds may open. Documents of further models wait in the lane's
own queue."""
WORKER_QUEUES_MAX: Final = 1_024
"""The same for workers, whose models must be found whatever feeds have noted before them."""
IDLE_S: Final = 3_600
"""An empty queue is forgotten so long after it was last noted."""
LOOKED_AT: Final = 50
"""Queues that one call looks at to forget them: a few hundred microseconds of Redis."""
NO_ROOM_WAIT_S: Final = 30.0
"""Messages for whose queue there is no room are looked at again after this."""


FOUND_SHOWN_MAX: Final = 10_000
"""Messages that an autoscaler is shown for the adapters of one model: more pods than there are
cards, a few bytes for each."""
FOUND_BELIEVED_S: Final = 600
"""It is shown so long after it was last counted: beyond that no control loop runs."""


class QueueBook:
    """``lane`` is the name of the lane's own queue, here and below. Raises redis.RedisError."""

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._note = registered(client, "note_queues")
        self._forget = registered(client, "forget_queues")
        self._note_found = registered(client, "note_found")
        self._show_found = registered(client, "show_found")
        self._move = registered(client, "move")

    def note(
        self, lane: str, queues: Collection[str], *, by_worker: bool = False
    ) -> frozenset[str]:
        """Note queues that are in use; returns those for which the lane has no room."""
        named = sorted(queue for queue in queues if queue != lane)
        if not named:
            return frozenset()
        most = WORKER_QUEUES_MAX if by_worker else QUEUES_MAX
        refused = self._note([keys.queues(lane)], [most, *named])
        return frozenset(name.decode() for name in refused)

    def of(self, lane: str) -> list[str]:
        """Return all queues of a lane, its own first."""
        found = self._client.zrange(keys.queues(lane), 0, WORKER_QUEUES_MAX - 1)
        names = (name.decode("utf-8", "replace") for name in found)
        return [lane, *sorted(name for name in names if keys.is_queue_of(lane, name))]

    def is_of(self, lane: str, name: str) -> bool:
        """Return whether a name that was read somewhere can be that of a queue of this lane."""
        return name == lane or keys.is_queue_of(lane, name)

    def forget_idle(self, lane: str) -> int:
        """Forget queues that have been empty and unused for a while; returns how many."""
        return int(self._forget([keys.queues(lane)], [IDLE_S, LOOKED_AT]))

    def note_found(self, lane: str, home: str, queues: Collection[str]) -> None:
        """Note the queues of adapters that workers of a model have found, in place of those before.

        Kept when they end.

        ``home`` is the queue under whose name those workers keep what they hold.
        """
        self._note_found([keys.found(lane)], [home, WORKER_QUEUES_MAX, *sorted(queues)])

    def found(self, lane: str) -> Mapping[str, str]:
        """Return the queues of adapters that workers have found, each with its model's queue."""
        noted = self._client.hgetall(keys.found(lane))
        read = {
            name.decode("utf-8", "replace"): home.decode("utf-8", "replace")
            for name, home in noted.items()
        }
        return {
            name: home
            for name, home in read.items()
            if self.is_of(lane, name) and self.is_of(lane, home)
        }

    def show_found(self, home: str, waiting: int) -> None:
        """Show an autoscaler how many messages wait for adapters of this model."""
        shown = [min(waiting, FOUND_SHOWN_MAX), FOUND_BELIEVED_S]
        self._show_found([keys.found_waiting(home)], shown)

    def move(self, queue: str, messages: Sequence[tuple[str, bytes]]) -> int:
        """Send (tag, message) pairs to another queue of their lane, once they are acknowledged."""
        lane, moved = keys.lane_queue(queue), 0
        names = [
            keys.queues(lane),
            keys.delayed(queue),
            keys.delayed_raw(queue),
            keys.delayed(lane),
            keys.delayed_raw(lane),
        ]
        for chunk in chunks(messages):
            pairs = [part for message in chunk for part in message]
            moved += int(self._move(names, [queue, QUEUES_MAX, NO_ROOM_WAIT_S, *pairs]))
        return moved
