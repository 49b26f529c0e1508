"""In what order a worker looks into its queues: that of jobs first, then those of items in turns.

Control messages are few and must not wait. The queues of a model's names and adapters are equals: a
full one must not keep the others waiting, so the one that was served last comes last.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock_producer.feed.queues import queue_name
from penstock_workers.settings import CONTROL_LANE

FIRST = queue_name(CONTROL_LANE)


class QueueOrder:
    """kombu's interface of a queue order strategy. Belongs to one channel."""

    def __init__(self, queues: Iterable[str] | None = None) -> None:
        self.items: list[str] = []  # the next one first
        self.update(queues or ())

    def update(self, queues: Iterable[str]) -> None:
        """The queues that are consumed now. Those that stay keep their turns."""
        given = list(dict.fromkeys(queues))
        known = [queue for queue in self.items if queue in given]
        self.items = known + [queue for queue in given if queue not in known]

    def consume(self, n: int) -> list[str]:
        """The queues in their order."""
        return sorted(self.items, key=lambda queue: queue != FIRST)[:n]

    def rotate(self, last_used: str) -> None:
        """This one was served: the others come first next time."""
        if last_used in self.items:
            self.items.remove(last_used)
            self.items.append(last_used)
