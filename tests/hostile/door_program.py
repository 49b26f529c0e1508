"""`penstock gateway` with one route more, which says for how long the event loop stood still.

That is counted in CPU time of the whole process: a machine that is busy with something else does
not make a door look slow, and a thread that keeps the interpreter's lock holds the loop up as much
as work on the loop does.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from starlette.requests import Request

PATH: Final = "/heartbeat"
BEAT_S: Final = 0.01

router = APIRouter()


class Heartbeat:
    """The most CPU time that the process used between two ticks of its loop."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._last_s = time.process_time()
        self._task = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self._tick()

    def _tick(self) -> None:
        now = time.process_time()
        self._longest_s, self._last_s = max(self._longest_s, now - self._last_s), now

    def longest_s(self) -> float:
        """Since it was asked before."""
        self._tick()
        found, self._longest_s = self._longest_s, 0.0
        return found


@router.get(PATH, include_in_schema=False)
async def heartbeat(request: Request) -> dict[str, float]:
    app: Any = request.app
    assert isinstance(app, FastAPI)
    if not hasattr(app.state, "heartbeat"):
        app.state.heartbeat = Heartbeat()
    found: Heartbeat = app.state.heartbeat
    return {"longest_s": found.longest_s(), "cpu_s": time.process_time()}


if __name__ == "__main__":
    from penstock_cli.entry import main
    from penstock_gateway import app as doors
    from penstock_gateway import serve

    # Two seconds of a machine that is busy with other tests are nothing that an attack did.
    serve.LOOK_S = 30.0  # type: ignore[misc]
    doors.ROUTERS = (*doors.ROUTERS, "__main__:router")  # type: ignore[misc]  # Final is for the product
    main()
