"""The messages that this process holds, and the thread that keeps its right to them.

One thread with a connection of its own renews every lease each third of the visibility timeout, so a busy hub or a
lost consumer connection cannot let them run out. The same thread hands concluded messages over to Redis, in groups, and
sweeps for leases that others have let run out. It outlives broker connections: a reconnect neither loses nor repeats
what is in flight.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import islice

import redis
from redis.exceptions import RedisError

from penstock_workers.broker.lease_scripts import RESTORED_PER_SWEEP, Keys, Lease, LeaseScripts

log = logging.getLogger(__name__)

GROUP_MAX = 500  # leases per script call: 1,000 arguments, some 2 ms of Redis
RENEWALS_PER_TIMEOUT = 3  # two in a row may fail before a lease is lost
SWEEPS_PER_TIMEOUT = 4
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 2.0  # while Redis cannot be reached
FAILURES_LOGGED_EACH_S = 10.0

BROKER_ERRORS = (RedisError, OSError)


class Fate(Enum):
    """What becomes of a message that this process holds no longer."""

    ACK = "ack"
    GIVE_BACK = "give back"
    PARK = "park"


class Leases:
    """Shared by the hub thread (``claimed``, ``conclude``) and the keeper thread; its lock is never held over I/O.

    ``on_lost`` hears of leases that a renewal found lost, ``on_late`` of conclusions that came too late; both are
    called on the keeper thread.
    """

    def __init__(self) -> None:
        self.on_lost: Callable[[Sequence[str]], None] = _ignore
        self.may_renew: Callable[[], bool] = _always  # False while the loop of the items is stuck; asked by the keeper
        self.on_late: Callable[[Fate, Sequence[str]], None] = lambda _fate, _tags: None
        self.restored = 0  # messages of others that this process has returned; written by the keeper thread
        self.renewals = 0
        self.dropped = 0  # duplicates of messages that some worker holds
        self.put_off = 0  # retries that came before the earlier try was acknowledged
        self.claim_heard_at: float | None = None  # when Redis last answered a claim; written by the hub thread
        self.kept_at: float | None = None  # when the keeper last reached Redis; written by the keeper thread
        self._held: dict[str, str] = {}  # tag -> score last seen; bounded by prefetch
        self._leaving: dict[Fate, deque[Lease]] = {fate: deque() for fate in Fate}  # counted by len(), so bounded too
        self._lock = threading.Condition()
        self._settling = 0  # leases handed to Redis by a call under way
        self._scripts: LeaseScripts | None = None
        self._swept: tuple[LeaseScripts, ...] = ()  # whose ended leases are returned here: ours, and older workers'
        self._thread: threading.Thread | None = None
        self._closing = False
        self._more_to_sweep = False
        self._failed_at = 0.0
        self._is_renewing = True

    # -- any thread ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Messages held, those on their way out included."""
        return len(self._held) + self._settling + sum(map(len, self._leaving.values()))

    def __json__(self) -> str:
        """`inspect stats` shows the transport options, of which this is one."""
        return f"{len(self)} held"

    def __contains__(self, tag: str) -> bool:
        return tag in self._held

    def tags(self) -> list[str]:
        with self._lock:
            return list(self._held)

    def open(self, connect: Callable[[], redis.Redis], keys: Keys) -> None:
        """Start keeping leases; does nothing when they are kept already."""
        with self._lock:
            if self._thread is not None:
                return
            self.claim_heard_at = time.monotonic()  # somebody is about to claim
            client = connect()
            self._scripts = LeaseScripts(client, keys)
            self._swept = (self._scripts, LeaseScripts(client, keys.of_older_workers()))
            self._thread = threading.Thread(target=self._run, args=(keys,), name="penstock-leases", daemon=True)
            self._thread.start()

    def claimed(self, tags: Iterable[str], score: str, dropped: int = 0, put_off: int = 0) -> None:
        """Note the outcome of a claim: what it brought, and how many duplicates and early retries it met."""
        self.claim_heard_at = time.monotonic()
        with self._lock:
            self._held.update(dict.fromkeys(tags, score))
            self.dropped += dropped
            self.put_off += put_off

    def listened(self) -> None:
        """Messages are brought here without asking, and a consumer waits for them: as good as a claim."""
        self.claim_heard_at = time.monotonic()

    def conclude(self, tags: Iterable[str], fate: Fate) -> None:
        """Let go of messages. Returns at once; tags that are not held are passed over."""
        with self._lock:
            leaving = self._leaving[fate]
            for tag in tags:
                seen = self._held.pop(tag, None)
                if seen is not None:
                    leaving.append(Lease(tag, seen))
            self._lock.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until Redis knows of every conclusion. False when it does not within ``timeout_s`` seconds."""
        with self._lock:
            return self._thread is None or self._lock.wait_for(lambda: not self._is_leaving(), timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Give back what is held, tell Redis of every conclusion, and end the thread."""
        self.conclude(self.tags(), Fate.GIVE_BACK)
        if not self.flush(timeout_s):
            log.warning("Redis is out of reach: %d messages return to their queues when their lease ends", len(self))
        with self._lock:
            self._closing = True
            self._lock.notify_all()

    # -- the keeper thread -------------------------------------------------------------------------------------------

    def _run(self, keys: Keys) -> None:
        renew_each_s = keys.visibility_timeout_s / RENEWALS_PER_TIMEOUT
        sweep_each_s = keys.visibility_timeout_s / SWEEPS_PER_TIMEOUT
        renew_at = time.monotonic() + renew_each_s
        sweep_at = time.monotonic()
        pause_s = 0.0
        while not self._closing:
            self._wait(min(renew_at, sweep_at), pause_s)
            well = True
            if time.monotonic() >= renew_at:
                well = self._attempt(self._renew)
                renew_at = time.monotonic() + (renew_each_s if well else 0.0)
            well = self._attempt(self._settle) and well
            if time.monotonic() >= sweep_at:
                well = self._attempt(self._sweep, sweep_each_s) and well
                sweep_at = time.monotonic() + (RETRY_FIRST_S if self._more_to_sweep else sweep_each_s)
            pause_s = 0.0 if well else min(RETRY_MAX_S, max(RETRY_FIRST_S, pause_s * 2))

    def _attempt(self, step: Callable[..., None], *arguments: float) -> bool:
        """One failing step must not keep the others from their turn: renewals above all."""
        try:
            step(*arguments)
        except BROKER_ERRORS as error:
            self._report(error)
            return False
        return True

    def _wait(self, until: float, pause_s: float) -> None:
        """Until something leaves or is due; after a failure, for ``pause_s`` whatever leaves."""
        with self._lock:
            if pause_s:
                self._lock.wait_for(lambda: self._closing, pause_s)
            else:
                self._lock.wait_for(lambda: self._closing or self._is_leaving(), max(0.0, until - time.monotonic()))

    def _settle(self) -> None:
        assert self._scripts is not None
        steps = {Fate.ACK: self._scripts.ack, Fate.GIVE_BACK: self._scripts.give_back, Fate.PARK: self._scripts.park}
        for fate, step in steps.items():
            while group := self._take(fate):
                try:
                    late = step(group)
                except BROKER_ERRORS:
                    self._put_back(fate, group)
                    raise
                self._settled()
                if late:
                    self.on_late(fate, late)

    def _take(self, fate: Fate) -> list[Lease]:
        with self._lock:
            leaving = self._leaving[fate]
            group = [leaving.popleft() for _ in range(min(GROUP_MAX, len(leaving)))]
            self._settling = len(group)
            return group

    def _put_back(self, fate: Fate, group: list[Lease]) -> None:
        with self._lock:
            self._leaving[fate].extendleft(reversed(group))
            self._settling = 0

    def _settled(self) -> None:
        with self._lock:
            self._settling = 0
            self._lock.notify_all()

    def _renew(self) -> None:
        """Unless the items of this process stand still: then others must be able to take them."""
        assert self._scripts is not None
        if not self._may_renew():
            return
        with self._lock:
            held = [Lease(tag, seen) for tag, seen in self._held.items()]
        leases = iter(held)
        while group := list(islice(leases, GROUP_MAX)):
            score, lost = self._scripts.renew(group)
            gone = self._note_renewal(group, score, set(lost))
            self.kept_at = time.monotonic()
            if gone:
                self.on_lost(gone)
        self.renewals += 1

    def _may_renew(self) -> bool:
        may, might = self.may_renew(), self._is_renewing
        self._is_renewing = may
        if might and not may:
            log.error(
                "the item loop is stuck: %d leases are not renewed, so that other workers take those items", len(self)
            )
        elif may and not might:
            log.warning("the item loop turns again; leases are renewed again")
        return may

    def _note_renewal(self, group: Sequence[Lease], score: str, lost: set[str]) -> list[str]:
        """Returns the tags that are lost. One that was concluded or claimed anew meanwhile is not touched."""
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

    def _sweep(self, each_s: float) -> None:
        found = [scripts.restore(each_s) for scripts in self._swept]
        self.kept_at = time.monotonic()
        self._more_to_sweep = max(found) >= RESTORED_PER_SWEEP
        restored = sum(count for count in found if count > 0)  # -1: somebody else has just swept
        if restored:
            self.restored += restored
            log.warning("%d messages were held by workers that are gone; they are back in their queues", restored)

    def _is_leaving(self) -> bool:
        return self._settling > 0 or any(self._leaving.values())

    def _report(self, error: Exception) -> None:
        if time.monotonic() - self._failed_at >= FAILURES_LOGGED_EACH_S:
            self._failed_at = time.monotonic()
            log.warning("cannot renew or settle %d messages (%s); trying again until Redis answers", len(self), error)


def _always() -> bool:
    return True


def _ignore(_tags: Sequence[str]) -> None:
    return None
