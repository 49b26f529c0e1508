"""Progress of a job as server-sent events.

A browser's EventSource and any HTTP client read them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Annotated, Any, Final

from fastapi import Header, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.jobs.names import Reader, find_job
from penstock_gateway.jobs.watches import Progress, Watches, event_id
from penstock_gateway.routing import QUIET_S, SLOW_S, STILL_THERE, EventResponse, Router
from penstock_ledger import OutcomeStore

router = Router()
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
