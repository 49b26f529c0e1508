"""Work that the doors do beside requests: each piece goes on after whatever went wrong in it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Final, Protocol

from penstock_gateway.backend import Backend
from penstock_gateway.metrics import DoorMetrics

__all__ = ["Task", "running"]

log = logging.getLogger("penstock.gateway")

FIRST_PAUSE_S: Final = 1.0  # after a failure; doubles with each further one
MOST_PAUSE_S: Final = 60.0
END_S: Final = 10.0  # for which the end of the server waits for them


class Task(Protocol):
    """A piece of it.

    ``run`` goes on for ever, with a named pause between its rounds, and calls
    ``backend.round_done(self)`` after each that went well."""

    async def run(self, backend: Backend) -> None: ...


@contextlib.asynccontextmanager
async def running(
    tasks: Iterable[Task], backend: Backend, metrics: DoorMetrics
) -> AsyncIterator[None]:
    """All of them, for as long as the block lasts."""
    tasks = list(tasks)
    for task in tasks:
        name = type(task).__name__
        metrics.task_failures.labels(name)  # 0 until it fails
        backend.on_round[name] = metrics.task_round.labels(name).set_to_current_time
    started = [
        asyncio.create_task(_kept_running(task, backend, metrics), name=type(task).__name__)
        for task in tasks
    ]
    try:
        yield
    finally:
        for one in started:
            one.cancel()
        if started:
            await asyncio.wait(started, timeout=END_S)


async def _kept_running(task: Task, backend: Backend, metrics: DoorMetrics) -> None:
    pause_s, failed = FIRST_PAUSE_S, ""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        try:
            await task.run(backend)
        except Exception as error:
            metrics.task_failures.labels(type(task).__name__).inc()
            if repr(error) != failed:  # once, not every second for as long as a server is away
                log.warning(
                    "%s has failed and goes on in %g s",
                    type(task).__name__,
                    pause_s,
                    exc_info=error,
                )
            failed = repr(error)
        if loop.time() - began > MOST_PAUSE_S:
            pause_s, failed = FIRST_PAUSE_S, ""
        await asyncio.sleep(pause_s)
        pause_s = min(MOST_PAUSE_S, pause_s * 2)
