"""The thread that keeps this process's right to the messages that it holds.

With a connection of its own it renews every lease each third of the visibility timeout, so a busy
hub or a lost consumer connection cannot let them run out. It also tells Redis of concluded
messages, in groups, and returns the messages of workers that let their leases run out.

The messages that this process holds, from the claim to the broker action that ends it.

Shared by the hub thread (``claimed``, ``conclude``) and the thread of ``leases.py``, which keeps
the right to them; the lock is never held over I/O. It outlives broker connections: a reconnect
neither loses nor repeats what is in flight.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import islice
from typing import Protocol

import redis
from redis.exceptions import RedisError

from penstock_workers.broker.lease_scripts import RESTORED_PER_SWEEP, Keys, Lease, LeaseScripts

GROUP_MAX = 500  # leases per script call: 1,000 arguments, some 2 ms of Redis


class BrokerAction(Enum):
    """The broker's action on a message that this process holds no longer."""

    ACK = "ack"
    GIVE_BACK = "give back"  # to the front of its queue
    SET_ASIDE = "set aside"  # kept whole, for an operator


class LeaseOwner(Protocol):
    """The runner of held messages. Every method is called on the thread that keeps the leases."""

    def may_renew(self) -> bool:
        """Return whether items move: while they stand still others must be able to take them."""
        ...

    def lost(self, tags: Sequence[str]) -> None:
        """Learn that a renewal found that others may hold these by now."""

    def late(self, action: BrokerAction, tags: Sequence[str]) -> None:
        """Learn that these were concluded after their lease was lost."""


class HeldMessages:
    """The messages that this process holds. The prefetch limit bounds them and those going out."""

    def __init__(self) -> None:
        self.dropped = 0  # duplicates of messages that some worker holds
        self.put_off = 0  # retries that came before the earlier attempt was acknowledged
        # when Redis last answered a claim; written by the hub thread
        self.claim_heard_at: float | None = None
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
        """Say how many are held, for `inspect stats`.

        It shows the transport options, of which this is one."""
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
        """Note that Redis answered a claim.

        Or that a consumer waits at a broker that pushes its messages."""
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
        """Return the tags that are lost.

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


log = logging.getLogger(__name__)

RENEWALS_PER_TIMEOUT = 3  # two in a row may fail before a lease is lost
SWEEPS_PER_TIMEOUT = 4
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 2.0  # while Redis cannot be reached
FAILURES_LOGGED_EACH_S = 10.0

BROKER_ERRORS = (RedisError, OSError)


class Leases(HeldMessages):
    """Keeps leases and reports lost ones to ``owner``.

    Without an owner (a consumer outside of a worker) it only keeps them."""

    def __init__(self) -> None:
        super().__init__()
        # expired messages that this process has returned; written by the keeper thread
        self.restored = 0
        self.renewals = 0
        # when the keeper last reached Redis; written by the keeper thread
        self.kept_at: float | None = None
        # When what is held was surely this process's; None where no leases are kept. Written by
        # the keeper thread.
        self._renewed_at: float | None = None
        self._timeout_s = 0.0
        self._doubted_at = 0.0
        self._is_doubted = False  # renewals are asked for
        self.losses = 0  # groups that the owner has heard of; written by the keeper thread
        self._owner: LeaseOwner | None = None
        self._scripts: LeaseScripts | None = None
        # whose expired leases are swept here: this lane's, and those of older workers
        self._swept: tuple[LeaseScripts, ...] = ()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._more_to_sweep = False
        self._failed_at = 0.0
        self._is_renewing = True

    # -- any thread --------------------------------------------------------------------------------

    def serve(self, owner: LeaseOwner) -> None:
        """Name the owner, once, before the first claim."""
        self._owner = owner

    def open(self, connect: Callable[[], redis.Redis], keys: Keys) -> None:
        """Start keeping leases; does nothing when they are kept already."""
        with self._lock:
            if self._thread is not None:
                return
            self.listened()  # a claim is about to be sent
            self._renewed_at, self._timeout_s = time.monotonic(), keys.visibility_timeout_s
            client = connect()
            self._scripts = LeaseScripts(client, keys)
            self._swept = (self._scripts, LeaseScripts(client, keys.of_older_workers()))
            self._thread = threading.Thread(
                target=self._run, args=(keys,), name="penstock-leases", daemon=True
            )
            self._thread.start()

    def are_kept(self) -> bool:
        """Return False where others may hold by now what is held here.

        They may after this process stood still, or was cut off, for as long as a lease lasts, and
        after a ``doubt``, until the leases are renewed and the owner knows which are lost."""
        renewed_at = self._renewed_at
        return renewed_at is None or (
            renewed_at >= self._doubted_at and time.monotonic() - renewed_at < self._timeout_s
        )

    def doubt(self) -> None:
        """Renew all leases at once: Redis has forgotten them, and others may hold the same."""
        with self._lock:
            self._doubted_at, self._is_doubted = time.monotonic(), True
            self._lock.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until Redis knows of every conclusion.

        False when it does not within ``timeout_s`` seconds."""
        with self._lock:
            return self._thread is None or self._lock.wait_for(
                lambda: not self._is_leaving(), timeout_s
            )

    def close(self, timeout_s: float = 5.0) -> None:
        """Give back what is held, tell Redis of every conclusion, and end the thread."""
        self.conclude(self.tags(), BrokerAction.GIVE_BACK)
        if not self.flush(timeout_s):
            log.warning(
                "Redis is out of reach: %d messages return to their queues when their lease ends",
                len(self),
            )
        with self._lock:
            self._closing = True
            self._lock.notify_all()

    # -- the keeper thread -------------------------------------------------------------------------

    def _run(self, keys: Keys) -> None:
        renew_each_s = keys.visibility_timeout_s / RENEWALS_PER_TIMEOUT
        sweep_each_s = keys.visibility_timeout_s / SWEEPS_PER_TIMEOUT
        renew_at = time.monotonic() + renew_each_s
        sweep_at = time.monotonic()
        pause_s = 0.0
        while not self._closing:
            self._wait(min(renew_at, sweep_at), pause_s)
            well = True
            if time.monotonic() >= renew_at or self._is_doubted:
                self._is_doubted = False
                well = self._attempt(self._renew)
                renew_at = time.monotonic() + (renew_each_s if well else 0.0)
            well = self._attempt(self._settle) and well
            if time.monotonic() >= sweep_at:
                well = self._attempt(self._sweep, sweep_each_s) and well
                sweep_at = time.monotonic() + (
                    RETRY_FIRST_S if self._more_to_sweep else sweep_each_s
                )
            pause_s = 0.0 if well else min(RETRY_MAX_S, max(RETRY_FIRST_S, pause_s * 2))

    def _attempt(self, step: Callable[..., None], *arguments: float) -> bool:
        """Run one step; its failure must not stop the others, renewals above all."""
        try:
            step(*arguments)
        except BROKER_ERRORS as error:
            self._report(error)
            return False
        return True

    def _wait(self, until: float, pause_s: float) -> None:
        """Wait until a message is concluded or a step is due.

        After a failure it waits for all of ``pause_s``."""
        with self._lock:
            if pause_s:
                self._lock.wait_for(lambda: self._closing, pause_s)
            else:
                self._lock.wait_for(self._has_to_do, max(0.0, until - time.monotonic()))

    def _has_to_do(self) -> bool:
        return self._closing or self._is_doubted or self._is_leaving()

    def _settle(self) -> None:
        assert self._scripts is not None
        steps = {
            BrokerAction.ACK: self._scripts.ack,
            BrokerAction.GIVE_BACK: self._scripts.give_back,
            BrokerAction.SET_ASIDE: self._scripts.set_aside,
        }
        for action, step in steps.items():
            while group := self._take(action):
                try:
                    late = step(group)
                except BROKER_ERRORS:
                    self._put_back(action, group)
                    raise
                self._settled()
                if late and self._owner is not None:
                    self._owner.late(action, late)

    def _renew(self) -> None:
        """Renew all leases, unless the item loop is stuck.

        Then other workers must be able to take the items."""
        assert self._scripts is not None
        if not self._may_renew():
            return
        asked_at = time.monotonic()
        with self._lock:
            held = [Lease(tag, seen) for tag, seen in self._held.items()]
        leases = iter(held)
        while group := list(islice(leases, GROUP_MAX)):
            score, lost = self._scripts.renew(group)
            gone = self._note_renewal(group, score, set(lost))
            self.kept_at = time.monotonic()
            if gone and self._owner is not None:
                self._owner.lost(gone)
                self.losses += 1
        self._renewed_at = asked_at
        self.renewals += 1

    def _may_renew(self) -> bool:
        may, might = self._owner is None or self._owner.may_renew(), self._is_renewing
        self._is_renewing = may
        if might and not may:
            log.error(
                "the item loop is stuck: %d leases are not renewed, so that other workers take "
                "those items",
                len(self),
            )
        elif may and not might:
            log.warning("the item loop runs again, and leases are renewed again")
        return may

    def _sweep(self, each_s: float) -> None:
        found = [scripts.restore(each_s) for scripts in self._swept]
        self.kept_at = time.monotonic()
        self._more_to_sweep = max(found) >= RESTORED_PER_SWEEP
        restored = sum(count for count in found if count > 0)  # -1: another worker has just swept
        if restored:
            self.restored += restored
            log.warning(
                "%d messages were held by workers that are gone; they are back in their queues",
                restored,
            )

    def _report(self, error: Exception) -> None:
        if time.monotonic() - self._failed_at >= FAILURES_LOGGED_EACH_S:
            self._failed_at = time.monotonic()
            log.warning(
                "cannot renew or settle %d messages (%s); trying again until Redis answers",
                len(self),
                error,
            )
