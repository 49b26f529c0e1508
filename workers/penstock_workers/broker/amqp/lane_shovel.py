"""The shovel's work for one queue of a lane.

One process leads the lane; it claims messages, announces, publishes and confirms them, keeps just
enough of them ready in RabbitMQ, and recalls those that RabbitMQ has lost. Each step is bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic
from typing import Any

import redis
from redis.exceptions import NoScriptError

from penstock_ledger import keys
from penstock_workers.broker.amqp.connect import CHANNEL_ERRORS, Publisher
from penstock_workers.broker.amqp.intake import PREFETCH_MAX
from penstock_workers.broker.amqp.relay_scripts import RelayScripts
from penstock_workers.broker.lease_scripts import (
    RESTORED_PER_SWEEP,
    Claim,
    ClaimScript,
    Lease,
    LeaseScripts,
)
from penstock_workers.broker.leases import SWEEPS_PER_TIMEOUT

log = logging.getLogger(__name__)

READY_MIN = 16  # enough for a slow lane until the next look
READY_MAX = 1_000  # some tenths of a second of what one shovel moves at best
SHRINK = 8  # the target shrinks by this part at a look that finds most of it still there
# messages per claim and per wait for confirmations; about 10 ms of Redis per script
GROUP_MAX = 500
LEAD_S = 5.0  # a shovel that was killed is replaced after this
# of the visibility timeout: what is not confirmed by then is still under the shovel's lease, and
# goes back
CONFIRM_SHARE = 3
CONFIRM_MAX_S = 10.0
# a lane whose queue RabbitMQ refuses (of another type, or no permission) is tried again after this
REFUSED_S = 10.0
LOOKS_PER_TIMEOUT = 3  # for lost messages: those that no worker took within a visibility timeout


class ReadyMessages:
    """The number of messages kept ready: enough for workers to find one at any time.

    Whatever is urgent waits behind these.

    A lane that empties the queue between two looks gets twice as much, one that leaves most of it
    gets an eighth less."""

    def __init__(self) -> None:
        self.target = READY_MIN

    def room(self, ready: int) -> int:
        """Return how many more to bring, for so many that are ready now."""
        if ready == 0:
            self.target = min(READY_MAX, 2 * self.target)
        elif 2 * ready > self.target:
            self.target = max(READY_MIN, self.target - self.target // SHRINK)
        return max(0, self.target - ready)


class Losses:
    """The relayed messages to recall: those that were old at one look, and again at the next.

    In between RabbitMQ had nothing ready. They may still wait in a worker; then the recall makes a
    second copy, and one of the two is dropped.

    Times are Redis' own, in seconds."""

    def __init__(self, after_s: float, between_s: float) -> None:
        self._after_s = after_s
        self._between_s = between_s
        self._suspected_at: float | None = None

    def look(self, oldest: float | None, ready: int, now: float) -> float | None:
        """Return the time up to which to recall relayed messages, or None.

        ``oldest`` is when the oldest of them was relayed."""
        if ready or oldest is None or oldest > now - self._after_s:
            self._suspected_at = None
            return None
        if self._suspected_at is None:
            self._suspected_at = now
        if now - self._suspected_at < self._between_s:
            return None
        before, self._suspected_at = self._suspected_at - self._after_s, None
        return before


class Lead:
    """The lease of the process that moves a lane's messages. Raises redis-py's errors."""

    def __init__(self, client: redis.Redis, queue: str, owner: str) -> None:
        self._client: Any = client
        self._key = keys.shovel(queue)
        self._owner = owner.encode()
        self._until = 0.0

    def leads(self) -> bool:
        """Return whether this process moves the lane's messages for the next seconds.

        It asks Redis twice in that time at most."""
        now = monotonic()
        if now < self._until - LEAD_S / 2:
            return True
        lead_ms = int(LEAD_S * 1000)
        if self._client.set(self._key, self._owner, nx=True, px=lead_ms):
            self._until = now + LEAD_S
        elif self._client.get(self._key) == self._owner:
            self._client.pexpire(self._key, lead_ms)
            self._until = now + LEAD_S
        else:
            self._until = 0.0
        return self._until > now

    def resign(self) -> None:
        """Leave the lane to another process."""
        if self._until:
            self._until = 0.0
            if self._client.get(self._key) == self._owner:
                self._client.delete(self._key)


class Mover:
    """Moves messages of one queue from Redis to RabbitMQ, each held in Redis until confirmed."""

    def __init__(
        self,
        client: redis.Redis,
        queue: str,
        scripts: RelayScripts,
        leases: LeaseScripts,
        confirm_s: float,
    ) -> None:
        self._client: Any = client
        self._queue, self._scripts, self._leases = queue, scripts, leases
        self._confirm_s = confirm_s
        self._claims = ClaimScript()

    def move(self, publisher: Publisher, room: int) -> int:
        """Move messages and return how many are safe in RabbitMQ now."""
        claim = self._claim(room)
        if not claim.messages:
            return 0
        leases = [Lease(claimed.tag, claim.score) for claimed in claim.messages]
        self._announce(leases)
        try:
            publisher.publish(
                [(claimed.tag, claimed.raw) for claimed in claim.messages], self._confirm_s
            )
        finally:
            refused = publisher.unconfirmed()
            self._scripts.confirm([lease for lease in leases if lease.tag not in refused])
            self._scripts.recall([lease.tag for lease in leases if lease.tag in refused])
        if refused:
            log.warning(
                "RabbitMQ refused %d messages of %s; they are back in Redis",
                len(refused),
                self._queue,
            )
        return len(leases) - len(refused)

    def _announce(self, leases: Sequence[Lease]) -> None:
        """Announce messages to Redis; when it is full and refuses, they go back at once."""
        try:
            self._scripts.announce(leases)
        except redis.ResponseError:
            self._leases.give_back(leases)
            raise

    def _claim(self, room: int) -> Claim:
        while True:
            command = self._claims.command(
                self._scripts.where, [(self._queue, self._queue)], (), room
            )
            try:
                return self._claims.read(self._client.execute_command(*command))
            except NoScriptError:
                self._claims.forget()


class Sweep:
    """Returns messages that dead shovels held.

    Workers of the lane do so, too, but the lane may have none."""

    def __init__(self, leases: LeaseScripts, each_s: float) -> None:
        self._leases, self._each_s = leases, each_s
        self._next_at = 0.0

    def look(self) -> None:
        if monotonic() >= self._next_at:
            is_cut = self._leases.restore(self._each_s) >= RESTORED_PER_SWEEP
            self._next_at = monotonic() + (0.0 if is_cut else self._each_s)


class LostMessages:
    """Recalls messages that RabbitMQ has confirmed and has no more."""

    def __init__(self, scripts: RelayScripts, queue: str, visibility_timeout_s: float) -> None:
        self._scripts, self._queue = scripts, queue
        self._each_s = visibility_timeout_s / LOOKS_PER_TIMEOUT
        self._losses = Losses(visibility_timeout_s, self._each_s)
        self._next_at = 0.0

    def is_due(self, relayed: int) -> bool:
        return relayed > 0 and monotonic() >= self._next_at

    def look(self, ready: int) -> None:
        """Recall what is lost; ``ready`` messages lie in RabbitMQ's queue."""
        self._next_at = monotonic() + self._each_s
        before = self._losses.look(self._scripts.oldest(), ready, self._scripts.now())
        returned = 0 if before is None else self._scripts.recall_before(before)
        if returned:
            log.warning(
                "RabbitMQ has lost %d messages of %s; they are back in Redis", returned, self._queue
            )


class TargetQueue:
    """The lane's queue in RabbitMQ, which may refuse what is published to it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._publisher: Publisher | None = None
        self._is_refused = False
        self._not_before = 0.0

    def may_try(self) -> bool:
        return monotonic() >= self._not_before

    def publisher(self, broker: Any) -> Publisher:
        if self._publisher is None:
            self._publisher = Publisher(broker.connection.channel(), self._name)
        return self._publisher

    def note_accepted(self) -> None:
        self._is_refused = False

    def note_refused(self, error: Exception) -> None:
        if not self._is_refused:
            log.error(
                "RabbitMQ refuses the queue %s, so its messages wait in Redis: %s",
                self._name,
                error,
            )
        self._is_refused = True
        self._not_before = monotonic() + REFUSED_S
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()

    def disconnect(self) -> None:
        self._publisher = None


class LaneShovel:
    """Moves one lane's messages, on the shovel's thread. Raises redis-py's and py-amqp's errors."""

    def __init__(
        self, client: redis.Redis, queue: str, visibility_timeout_s: float, *, owner: str
    ) -> None:
        scripts = RelayScripts(client, queue, visibility_timeout_s)
        leases = LeaseScripts(client, scripts.where)
        confirm_s = min(CONFIRM_MAX_S, visibility_timeout_s / CONFIRM_SHARE)
        self.queue = queue
        self.lead = Lead(client, queue, owner)
        self.sweep = Sweep(leases, visibility_timeout_s / SWEEPS_PER_TIMEOUT)
        self.target = TargetQueue(queue)
        self._mover = Mover(client, queue, scripts, leases, confirm_s)
        self._lost = LostMessages(scripts, queue, visibility_timeout_s)
        self._depth = ReadyMessages()

    def is_due(self, waiting: int, relayed: int) -> bool:
        return self.target.may_try() and (waiting > 0 or self._lost.is_due(relayed))

    def turn(self, broker: Any, waiting: int, relayed: int) -> bool:
        """Top up the queue.

        Return True when it was empty, or a whole group was moved: then there is more to do at once.
        What RabbitMQ refuses about this queue must not hold up the other lanes.
        """
        publisher = self.target.publisher(broker)
        try:
            more = self._top_up(publisher, waiting, relayed)
        except CHANNEL_ERRORS as error:
            self.target.note_refused(error)
            return False
        self.target.note_accepted()
        return more

    def _top_up(self, publisher: Publisher, waiting: int, relayed: int) -> bool:
        look = publisher.look()
        if self._lost.is_due(relayed):
            self._lost.look(look.ready)
        room = self._depth.room(look.ready)
        # a queue that loses confirmed messages must not get all of them
        most = self._depth.target + look.consumers * PREFETCH_MAX
        room = min(room, most - relayed, waiting, GROUP_MAX)
        if room <= 0:
            return False
        moved = self._mover.move(publisher, room)
        return moved == GROUP_MAX or (look.ready == 0 and moved > 0)
