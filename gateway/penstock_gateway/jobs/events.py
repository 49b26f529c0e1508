"""Progress of a job for those who listen, as server-sent events.

A browser's EventSource and any HTTP client read them. The stores are asked once a second and job,
however many listen to it here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import Annotated, Any, Final, NamedTuple

import orjson
from fastapi import Header, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.admission import Shares
from penstock_gateway.jobs.listing import remaining, serialize_job
from penstock_gateway.jobs.names import Reader, find_job
from penstock_gateway.refused import Refused
from penstock_gateway.routing import QUIET_S, SLOW_S, STILL_THERE, EventResponse, Router
from penstock_ledger import JobNotFound, JobStore, OutcomeStore, PenstockError
from penstock_ledger.model import Counts, Job

LOOK_S: Final = 1.0  # between two looks at a job
RATE_S: Final = 15.0  # over which items per second are counted
# of one process, over all jobs; the next one is refused, and may try another replica
LISTENERS_MAX: Final = 1_000


class Progress(NamedTuple):
    """A job's progress at one moment."""

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


router = Router(prefix="/v1/jobs", tags=["jobs"])
log = logging.getLogger("penstock.gateway")

AGAIN_MS: Final = 2_000  # after which an EventSource that lost its connection comes back
END: Final = "end"

_EXAMPLE: Final = (
    "retry: 2000\n\n"
    "id: running-1-497-3-512-0\nevent: progress\n"
    'data: {"object":"job","id":"job_k3v7q2m4n6p8r2t4w6y2","state":"running",'
    '"counts":{"total":1000,"succeeded":497,"dead":3},"items_per_second":4.7,"eta_s":106.4}\n\n'
)
_EVENT: Final[dict[str, Any]] = {  # of each of them
    "type": "object",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string", "enum": ["progress", END]},
        "data": {"type": "string", "description": "The job as JSON."},
    },
}
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Events `progress`, each with the whole state, and `end` as the last one.",
        "content": {"text/event-stream": {"schema": _EVENT, "example": _EXAMPLE}},
    },
    204: {"description": "The job has ended, and you have its last event."},
}


@router.get("/{job}/events", response_class=Response, responses=_ANSWERS, operation_id="follow_job")
async def events(
    request: Request,
    job: str,
    caller: Reader,
    last_event_id: Annotated[
        str | None, Header(description="The id of the last event that you have.")
    ] = None,
) -> Response:
    """Follow a job as server-sent events until it ends.

    An event is sent when something has changed, once a second at most. Each has all of the state,
    so none has to be sent again: with `Last-Event-ID` the stream begins with what has changed
    since.
    """
    backend = backend_of(request)

    def look() -> tuple[str, bool]:
        found = find_job(backend, caller, job)
        id_now = event_id(found, OutcomeStore(backend.database).counts(found.job_id))
        return found.job_id, found.state.final and last_event_id == id_now

    job_id, is_over = await backend.run(look)
    if is_over:
        # an EventSource that comes back after the last event stays away then
        return Response(status_code=204)
    watches: Watches = request.app.state.watches
    return EventStream(backend, watches, job_id, last_event_id, caller.tenant)


class EventStream(EventResponse):
    """Sends until the job has ended, the reader has gone, or it takes nothing any more."""

    def __init__(
        self,
        backend: Backend,
        watches: Watches,
        job_id: str,
        last_id: str | None,
        tenant: str | None,
    ) -> None:
        """Start to listen. Raises Refused where too many listen."""
        super().__init__()
        self._backend = backend
        self._watches = watches
        self._job_id = job_id
        self._tenant = tenant  # of the reader
        # left where the answer is sent, which follows at once
        self._listener = watches.listen(job_id, tenant)
        self._last_id = last_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_until_gone(receive), name="sse reader")
        try:
            await self.begin(send)
            await self._send(send, f"retry: {AGAIN_MS}\n\n".encode(), gone)
            while not gone.done() and not self._backend.closing:
                progress = await self._next(gone)
                if progress is None:
                    await self._send(send, STILL_THERE, gone)
                elif progress.id != self._last_id or progress.ended:
                    await self._send(send, _event(progress), gone)
                    self._last_id = progress.id
                    if progress.ended:
                        break
            if not gone.done():
                await self.end(send)
        except TimeoutError:
            log.warning(
                "a reader of the events of job %s took nothing for %g s and is dropped",
                self._job_id,
                SLOW_S,
            )
        except OSError:
            pass  # it has gone while something was sent
        finally:
            gone.cancel()
            self._watches.leave(self._job_id, self._listener, self._tenant)

    async def _next(self, gone: asyncio.Task[None]) -> Progress | None:
        """Return what has changed; None after a quiet while, and when the reader has gone."""
        coming = asyncio.create_task(self._listener.next())
        try:
            await asyncio.wait({coming, gone}, timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED)
            return coming.result() if coming.done() else None
        finally:
            coming.cancel()

    async def _send(self, send: Send, data: bytes, gone: asyncio.Task[None]) -> None:
        """Send a piece. Raises TimeoutError for a reader that takes nothing."""
        if not gone.done():
            await self.send_piece(send, data)


async def _until_gone(receive: Receive) -> None:
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass


def _event(progress: Progress) -> bytes:
    name = END if progress.ended else "progress"
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (progress.id.encode(), name.encode(), progress.data)
