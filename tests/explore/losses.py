"""What must not be needed while Redis keeps its data, since the product repairs it in silence.

A lost message costs two rounds of reconciling, and a lost document a reading of the whole source:
then every document has its outcome in the end, and no other invariant sees that work did not go on.
Likewise a message that is held and that is recorded nowhere is found by reconciling only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from explore.actors import LANE, Provider, Worker
from explore.scheduler import Violation, World
from explore.seams import RedisOfWorld
from explore.virtual import Entered
from penstock_ledger import keys
from penstock_ledger.model import JobState
from penstock_ledger.stores.feeds import FeedStore
from penstock_producer.feed.feeder import Feeder
from penstock_producer.feed.queues import queue_name
from penstock_producer.feed.wire import item_tag
from penstock_workers.control.feeds import reconcile

KEPT: Final = "no message is lost while Redis keeps its data"
READ: Final = "no source is read again while Redis keeps its data"
HELD: Final = "what a worker holds is recorded"
SLOTS: Final = "no more answers wait to be stored than a worker has slots"
LOSES: Final = frozenset(("Redis forgets", "Redis restarts empty", "Redis is restored"))
RENEWED_S: Final = 30.0
"""A worker that stood still for no longer than this has renewed its leases in time."""


def _has_lost(world: World) -> bool:
    return not LOSES.isdisjoint(world.faults)


def _is_needed(invariant: str, what: str) -> None:
    world = Entered.world
    if world is not None and world.violation is None and not _has_lost(world):
        world.violation = Violation(invariant, what)


def _republished(feeder: Feeder, missing: Sequence[tuple[str, str]]) -> int:
    world, job_id = Entered.world, feeder.feed.job_id
    found = [doc_id for doc_id, _ in missing]
    if world is not None and world.has_moved(job_id):
        # what workers of the lane before have dropped is found so; not what they hold
        found = [doc_id for doc_id in found if world.is_held(item_tag(feeder.key(doc_id)))]
    if found:
        _is_needed(KEPT, f"{job_id}: {', '.join(found)}")
    return _republish(feeder, missing)


def _rewound(feeds: FeedStore, job_id: str, *, generation: int | None = None) -> bool:
    is_rewound = _rewind(feeds, job_id, generation=generation)
    world = Entered.world
    # a rebuild names no generation, and a job that is being cancelled reads again what was fed
    # before it, also where who leads it stood still since it looked
    is_for_losses = is_rewound and generation is not None
    if is_for_losses and world is not None and world.state_of(job_id) != JobState.CANCELLING:
        _is_needed(READ, job_id)
    return is_rewound


_reconcile: Any = reconcile
_republish: Final[Callable[..., int]] = _reconcile.republish
_rewind: Final = FeedStore.rewind_feeds
_feeds: Any = FeedStore
_reconcile.republish, _feeds.rewind_feeds = _republished, _rewound


class Holdings:
    """What the workers of one world hold."""

    def __init__(
        self, world: World, server: RedisOfWorld, provider: Provider, workers: Sequence[Worker]
    ) -> None:
        self._world, self._server, self._provider = world, server, provider
        self._workers = workers
        self._stored: set[str] = set()  # documents
        world.is_held = self._is_held

    def look(self) -> None:
        """Look at the records of what is held, after a step that has changed them."""
        if _has_lost(self._world):
            return
        recorded: set[str] | None = None
        for worker in self._workers:
            if not self._renews(worker):
                continue
            for tag in worker.leases.tags():
                recorded = self._recorded() if recorded is None else recorded
                if tag not in recorded:
                    raise Violation(HELD, f"{worker.name} holds {tag}")

    def _is_held(self, tag: str) -> bool:
        """Return whether a worker holds a message that has not stood still or been cut off."""
        return any(tag in worker.leases for worker in self._workers if self._renews(worker))

    def _renews(self, worker: Worker) -> bool:
        away = (self._world.away.get(("redis", who), -RENEWED_S) for who in ("", worker.name))
        stood_until = max(worker.frozen_until, *away)
        return not worker.is_dead and stood_until + RENEWED_S <= self._world.now

    def look_at_slots(self, ended: set[str], concurrency: int) -> None:
        """Look at the answers that came and are not stored; ``ended`` are documents."""
        self._stored |= ended
        for worker in self._workers:
            if worker.is_dead:
                continue
            waiting = {
                one.document
                for one in self._provider.sent
                if one.by is worker and one.heard and not one.is_refused
                if one.document not in self._stored
            }
            if len(waiting) > concurrency:
                raise Violation(SLOTS, f"{worker.name} has {', '.join(sorted(waiting))}")

    def _recorded(self) -> set[str]:
        found: list[bytes] = self._server.ask("HKEYS", keys.unacked(queue_name(LANE)))
        return {tag.decode() for tag in found}
