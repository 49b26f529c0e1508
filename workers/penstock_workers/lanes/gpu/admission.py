"""Items get into the engine as it has room, and suspects alone."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

from penstock_workers.item.answer import NoAnswer, Tried
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.lane import Prepared, Turn
from penstock_workers.item.run.quarantine import SUSPECT_AFTER_CRASHES, died_alone, line_of
from penstock_workers.lanes.gpu.engine.engine_queue import EnginePlace, EngineQueue
from penstock_workers.lanes.gpu.gpu_lane import GpuLane
from penstock_workers.lanes.gpu.sidecar import SidecarLane


class EngineAdmission:
    """Implements ``admission.Admission``: an item's turn comes when the engine has a place."""

    def __init__(self, queue: EngineQueue) -> None:
        self._queue = queue

    def at_once(self, attempt: Attempt) -> None:
        """Let nothing start at once: the queue hands out the places."""

    async def turn(self, attempt: Attempt, prepared: Prepared) -> EngineTurn:
        place = await self._queue.enter(
            prepared.tokens, attempt.job.flow, sequences=prepared.sequences
        )
        return EngineTurn(self._queue, place)

    def is_down(self, provider: str) -> bool:
        return False  # an engine has no breaker

    def may_retry(self, attempt: Attempt) -> bool:
        return True

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class EngineTurn:
    """A place in the engine."""

    __slots__ = ("_place", "_queue")

    def __init__(self, queue: EngineQueue, place: EnginePlace) -> None:
        self._queue, self._place = queue, place

    def start(self) -> None:
        """Do nothing: a place costs nothing but time."""

    def conclude(self, tried: Tried, happened: Failure | Reply) -> None:
        used = None
        if isinstance(happened, Reply) and happened.prompt_tokens is not None:
            used = happened.prompt_tokens + (happened.completion_tokens or 0)
        self._queue.leave(self._place, used)

    def release(self) -> None:
        self._queue.leave(self._place)


class EngineQuarantine:
    """Implements ``quarantine.Quarantine`` in the worker's own engine.

    Another engine would not fit beside it. An item that was in the engine at two deaths of it runs
    among a few other suspects; after a third, it runs alone. If the engine dies then, it was that
    item.
    """

    def __init__(self, lane: GpuLane | SidecarLane) -> None:
        self._lane = lane

    def place(self, attempt: Attempt) -> AbstractAsyncContextManager[None]:
        """Wait for nothing here: ``infer`` waits until the engine is empty."""
        attempt.line = line_of(attempt.crashes)
        return nullcontext()

    async def infer(self, attempt: Attempt, prepared: Prepared, turn: Turn) -> Tried:
        turn.release()  # the engine is emptied for suspects, of this one too
        alone = attempt.crashes > SUSPECT_AFTER_CRASHES
        async with self._lane.queue.isolated(alone=alone):
            tried = await self._lane.infer(prepared)
        died = isinstance(tried, NoAnswer) and tried.failure == "engine_died"
        return died_alone(attempt.crashes) if died and alone else tried
