"""An item names a model, which this worker serves or not.

An item of another model goes to that model's queue, uncounted.

Feeds put an item into the queue of its model, so most need no look: those do that lie in the lane's
own queue (jobs that name no model, and what earlier releases have fed), those whose job changes
requests by a hook, those that have come to another model of their job's `fallback`, and those that
the lane refuses.

A job that names no model is answered by one model, whichever its first item finds: with one model
served that is the one, and from then on the job is bound to it. With several, the job is paused and
says so: which of them answers must not be chance.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from penstock_ledger import RedisLedger
from penstock_ledger.reasons import By, Code, Reason
from penstock_producer.feed.queues import Served, Serving, queue_name, serving_of
from penstock_producer.feed.routes import model_of
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import TurnedAway
from penstock_workers.item.outcome import Parked, Released
from penstock_workers.item.run.reading import Reads

JOBS_KEPT: Final = 1_000
"""Bound jobs that a worker remembers; each costs some hundred bytes."""
SHOWN_CHARS: Final = 200
"""Of a model's name in a log line."""


class ModelCheck:
    """The check of models of one worker, on its item loop."""

    def __init__(self, lane: str, hot: RedisLedger, reads: Reads) -> None:
        self._lane = lane
        self._own = queue_name(lane)
        self._hot = hot
        self._reads = reads
        self._served = Served(())
        self._queues: frozenset[str] = frozenset()
        self._bound: OrderedDict[str, str] = OrderedDict()  # job -> queue; a binding never changes
        # one look at the fleet, however many items of a job ask at once
        self._binding = asyncio.Lock()

    def open(self, served: Served) -> None:
        """Take what the lane serves, now that it is up."""
        self._served = served
        self._queues = frozenset(served.queues(self._lane))

    def needs_look(self, attempt: Attempt) -> bool:
        """Return False for an item from a queue of this worker's model.

        It asks for no other model since its feed put it there."""
        of_another = attempt.delivery.queue not in self._queues or attempt.models_left > 0
        return of_another or attempt.job.spec.preprocess is not None

    async def check(self, attempt: Attempt) -> None:
        """Raise TurnedAway for an item of another worker, or one for a person to decide."""
        model = model_of(attempt.body)
        if model is None:
            await self._check_bound(attempt)
        elif model not in self._served.every_name:
            self._send_away(
                queue_name(self._lane, model), f"this worker does not serve {model[:SHOWN_CHARS]}"
            )

    async def _check_bound(self, attempt: Attempt) -> None:
        job_id = attempt.key.job_id
        async with self._binding:
            queue = self._bound.get(job_id)
            if queue is None:
                queue = await self._reads.of_fleet(lambda: asyncio.to_thread(self._bind, job_id))
                if not self._hot.queues.is_of(self._own, queue):
                    raise TurnedAway(Parked(pauses=_strange(queue)))
                self._bound[job_id] = queue
                if len(self._bound) > JOBS_KEPT:
                    self._bound.popitem(last=False)
        self._send_away(queue, "its job names no model, and another one began to answer it")

    def _send_away(self, queue: str, why: str) -> None:
        if queue not in self._queues:
            raise TurnedAway(Released(why, to=queue))

    # -- in a thread -------------------------------------------------------------------------------

    def _bind(self, job_id: str) -> str:
        bound = self._hot.bound(job_id)
        if bound is not None:
            return bound
        found = serving_of(self._hot.workers(), self._lane)
        fleet = Serving(self._lane, (*found.workers, self._served))
        if len(fleet.models()) > 1:
            raise TurnedAway(Parked(pauses=_several(found)))
        return self._hot.bind(job_id, queue_name(self._lane, self._common_name(fleet)))

    def _common_name(self, fleet: Serving) -> str:
        """Return the shortest name that all workers of the model share."""
        common = set(self._served.names)
        for served in fleet.workers:
            common = common & set(served.names) or common
        return min(common, key=lambda name: (len(name), name))


def _strange(queue: str) -> Reason:
    detail = (
        f"something other than Penstock has written that queue {queue[:SHOWN_CHARS]!r} answers "
        "this job, which is none of its lane; find out what can write to Redis, then cancel the "
        "job and submit it again"
    )
    return Reason(Code.FOREIGN_QUEUE, By.CONTROL, {"detail": detail})


def _several(serving: Serving) -> Reason:
    detail = (
        f"the job names no model, and workers of lane {serving.lane} serve several: "
        f"{serving.in_words()}. Cancel it and submit it again with one of them as its "
        "model; resumed, it goes on once only one of them is served"
    )
    return Reason(Code.MODEL_UNCLEAR, By.CONTROL, {"detail": detail})
