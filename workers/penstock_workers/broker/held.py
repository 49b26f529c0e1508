"""The messages that this process holds, from the claim to the broker action that ends it.

Shared by the hub thread (``claimed``, ``conclude``) and the thread of ``leases.py``, which keeps
the right to them; the lock is never held over I/O. It outlives broker connections: a reconnect
neither loses nor repeats what is in flight.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Protocol

from penstock_workers.broker.lease_scripts import Lease

GROUP_MAX = 500  # leases per script call: 1,000 arguments, some 2 ms of Redis


class BrokerAction(Enum):
    """What the broker does with a message that this process holds no longer."""

    ACK = "ack"
    GIVE_BACK = "give back"  # to the front of its queue
    SET_ASIDE = "set aside"  # kept whole, for an operator


class LeaseOwner(Protocol):
    """What runs the held messages. Every method is called on the thread that keeps the leases."""

    def may_renew(self) -> bool:
        """False while the items stand still: then other workers must be able to take them."""
        ...

    def lost(self, tags: Sequence[str]) -> None:
        """A renewal found that others may hold these by now."""

    def late(self, action: BrokerAction, tags: Sequence[str]) -> None:
        """These were concluded after their lease was lost."""


class HeldMessages:
    """Bounded by the prefetch limit, the messages on their way out included."""

    def __init__(self) -> None:
        self.dropped = 0  # duplicates of messages that some worker holds
        self.put_off = 0  # retries that came before the earlier attempt was acknowledged
        self.claim_heard_at: float | None = (
            None  # when Redis last answered a claim; written by the hub thread
        )
        self._held: dict[str, str] = {}  # tag -> score last seen
        self._leaving: dict[BrokerAction, deque[Lease]] = {
            action: deque() for action in BrokerAction
        }
        self._settling = 0  # leases handed to Redis by a call under way
        self._lock = threading.Condition()

    def __len__(self) -> int:
        return len(self._held) + self._settling + sum(map(len, self._leaving.values()))

    def __contains__(self, tag: str) -> bool:
        return tag in self._held

    def __json__(self) -> str:
        """`inspect stats` shows the transport options, of which this is one."""
        return f"{len(self)} held"

    def tags(self) -> list[str]:
        with self._lock:
            return list(self._held)

    def claimed(self, tags: Iterable[str], score: str, dropped: int = 0, put_off: int = 0) -> None:
        """Note what a claim brought, and how many duplicates and early retries it met."""
        self.listened()
        with self._lock:
            self._held.update(dict.fromkeys(tags, score))
            self.dropped += dropped
            self.put_off += put_off

    def listened(self) -> None:
        """Redis answered a claim, or a consumer waits at a broker that pushes its messages."""
        self.claim_heard_at = time.monotonic()

    def conclude(self, tags: Iterable[str], action: BrokerAction) -> None:
        """Let go of messages. Returns at once; tags that are not held are passed over."""
        with self._lock:
            leaving = self._leaving[action]
            for tag in tags:
                seen = self._held.pop(tag, None)
                if seen is not None:
                    leaving.append(Lease(tag, seen))
            self._lock.notify_all()

    # -- for the thread that keeps the leases ------------------------------------------------------

    def _is_leaving(self) -> bool:
        return self._settling > 0 or any(self._leaving.values())

    def _take(self, action: BrokerAction) -> list[Lease]:
        with self._lock:
            leaving = self._leaving[action]
            group = [leaving.popleft() for _ in range(min(GROUP_MAX, len(leaving)))]
            self._settling = len(group)
            return group

    def _put_back(self, action: BrokerAction, group: list[Lease]) -> None:
        with self._lock:
            self._leaving[action].extendleft(reversed(group))
            self._settling = 0

    def _settled(self) -> None:
        with self._lock:
            self._settling = 0
            self._lock.notify_all()

    def _note_renewal(self, group: Sequence[Lease], score: str, lost: set[str]) -> list[str]:
        """Returns the tags that are lost.

        One that was concluded or claimed anew meanwhile is not touched."""
        gone = []
        with self._lock:
            for tag, seen in group:
                if self._held.get(tag) != seen:
                    continue
                if tag in lost:
                    del self._held[tag]
                    gone.append(tag)
                else:
                    self._held[tag] = score
        return gone
