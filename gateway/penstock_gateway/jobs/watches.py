"""Progress of jobs for those who listen.

The stores are asked once a second and job, however many listen to it here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import Any, Final, NamedTuple

import orjson

from penstock_gateway.backend import Backend
from penstock_gateway.callers.admission import Shares
from penstock_gateway.jobs.serialized import remaining, serialize_job
from penstock_gateway.refused import Refused
from penstock_ledger import JobNotFound, JobStore, OutcomeStore, PenstockError
from penstock_ledger.model import Counts, Job

__all__ = ["LISTENERS_MAX", "Listener", "Progress", "Watches", "event_id"]

log = logging.getLogger("penstock.gateway")

LOOK_S: Final = 1.0  # between two looks at a job
RATE_S: Final = 15.0  # over which items per second are counted
# of one process, over all jobs; the next one is refused, and may try another replica
LISTENERS_MAX: Final = 1_000


class Progress(NamedTuple):
    """How far a job is at one moment."""

    id: str  # another one whenever something has changed
    data: bytes  # JSON
    ended: bool


class Listener:
    """One reader: it gets the newest state, and misses those between where it is slow."""

    def __init__(self) -> None:
        self._newest: Progress | None = None
        self._changed = asyncio.Event()

    def tell(self, progress: Progress) -> None:
        self._newest = progress
        self._changed.set()

    async def next(self) -> Progress:
        await self._changed.wait()
        self._changed.clear()
        assert self._newest is not None, "it is there before the event is set"
        return self._newest


class Watches:
    """All jobs that are listened to in this process."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._shares = backend.part(Shares)
        self._jobs: dict[str, _Watch] = {}
        self.listeners = 0

    def listen(self, job_id: str, tenant: str | None) -> Listener:
        """Return a listener of ``tenant``, until ``leave``.

        Raises Refused: 429 where its share is used up, 503 where too many listen.
        """
        self._shares.take("streams", tenant)
        try:
            return self._listen(job_id)
        except Refused:
            self._shares.leave("streams", tenant)
            raise

    def _listen(self, job_id: str) -> Listener:
        if self.listeners >= LISTENERS_MAX:
            raise Refused(
                503,
                f"{LISTENERS_MAX} connections follow jobs here already; try again later, or ask "
                "for the job itself",
                code="overloaded",
                headers={"retry-after": "30"},
            )
        watch = self._jobs.get(job_id)
        if watch is None:
            watch = self._jobs[job_id] = _Watch(self._backend, job_id)
        listener = Listener()
        watch.add(listener)
        self.listeners += 1
        return listener

    def leave(self, job_id: str, listener: Listener, tenant: str | None) -> None:
        self._shares.leave("streams", tenant)
        self.listeners -= 1
        watch = self._jobs[job_id]
        watch.remove(listener)
        if not watch.listeners:
            watch.end()
            del self._jobs[job_id]


class _Watch:
    """Looks at one job until it has ended or no one listens any more."""

    def __init__(self, backend: Backend, job_id: str) -> None:
        self._backend = backend
        self._job_id = job_id
        self._rates = deque[tuple[float, int]]()
        self._last: Progress | None = None
        self.listeners = set[Listener]()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"watch {job_id}")

    def add(self, listener: Listener) -> None:
        self.listeners.add(listener)
        if self._last is not None:
            listener.tell(self._last)

    def remove(self, listener: Listener) -> None:
        self.listeners.discard(listener)

    def end(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        away = False
        while True:
            with contextlib.suppress(Refused):  # too much to do: the next look comes in a second
                try:
                    self._tell(await self._backend.run(self._look))
                    away = False
                except JobNotFound:  # purged
                    self._tell(
                        Progress(
                            "gone",
                            orjson.dumps({"id": self._job_id, "state": "purged"}),
                            ended=True,
                        )
                    )
                except PenstockError as error:
                    if not away:
                        log.warning(
                            "job %s cannot be looked at for those who follow it: %s",
                            self._job_id,
                            error,
                        )
                    away = True
            await asyncio.sleep(LOOK_S)

    def _tell(self, progress: Progress) -> None:
        if self._last is not None and progress.id == self._last.id:
            return
        self._last = progress
        for listener in self.listeners:
            listener.tell(progress)

    def _look(self) -> Progress:
        job = JobStore(self._backend.database).get(self._job_id)
        counts = OutcomeStore(self._backend.database).counts(job.job_id)
        return Progress(
            event_id(job, counts), orjson.dumps(self._shown(job, counts)), job.state.final
        )

    def _shown(self, job: Job, counts: Counts) -> dict[str, Any]:
        now, finished = time.monotonic(), counts.succeeded + counts.dead
        self._rates.append((now, finished))
        while now - self._rates[0][0] > RATE_S:
            self._rates.popleft()
        before, had = self._rates[0]
        rate = max(0.0, (finished - had) / (now - before)) if now > before else None
        left = remaining(job, counts)
        shown = serialize_job(job, counts).model_dump(mode="json")
        shown["items_per_second"] = None if rate is None else round(rate, 2)
        shown["eta_s"] = round(left / rate, 1) if left and rate else None
        return shown


def event_id(job: Job, counts: Counts) -> str:
    """Return an id of the job's progress that is the same in every replica.

    A listener that comes back elsewhere goes on where it was.
    """
    figures = (job.generation, counts.succeeded, counts.dead, counts.calls, job.moves)
    return f"{job.state}-{'-'.join(map(str, figures))}"
