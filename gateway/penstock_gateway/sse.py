"""Server-sent events: how an answer is sent piece by piece to a reader that may be slow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Send

__all__ = ["QUIET_S", "SLOW_S", "STILL_THERE", "EventResponse"]

# without an event; then a comment says that the connection lives, also to proxies between
QUIET_S: Final = 15.0
SLOW_S: Final = 30.0  # for which a reader may take nothing of what was sent; then it is dropped
STILL_THERE: Final = b": still there\n\n"


class EventResponse(Response):
    """An answer whose length is not known; what it sends is its own."""

    media_type = "text/event-stream"

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        always = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(headers={**always, **(headers or {})})
        del self.headers["content-length"]

    async def begin(self, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})

    async def send_piece(self, send: Send, data: bytes) -> None:
        """Send a piece. Raises TimeoutError for a reader that takes nothing."""
        async with asyncio.timeout(SLOW_S):
            await send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"", "more_body": False})
