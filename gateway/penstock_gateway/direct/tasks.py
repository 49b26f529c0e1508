"""What goes on beside the calls: answers are fetched, jobs of hours that are over are closed, old
keys are forgotten."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from penstock_gateway.backend import Backend
from penstock_gateway.direct.calls import Calls
from penstock_gateway.direct.open_jobs import close_old

__all__ = ["CloseOldCalls", "FetchAnswers"]

CLOSE_EVERY_S: Final = 60.0
GRACE_S: Final = 60.0  # after the end of an hour: the clocks of doors differ


class FetchAnswers:
    async def run(self, backend: Backend) -> None:
        calls = backend.part(Calls)
        try:
            await calls.answers.run(partial(backend.round_done, self))
        finally:
            calls.close()


class CloseOldCalls:
    async def run(self, backend: Backend) -> None:
        calls = backend.part(Calls)
        while True:
            await backend.run(close_old, calls.store, calls.jobs, GRACE_S)
            await backend.run(calls.store.forget_expired)
            backend.round_done(self)
            await asyncio.sleep(CLOSE_EVERY_S)
