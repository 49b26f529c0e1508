"""The runner's way into the engine, and the way of suspects."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

from penstock_workers.item.admission import Turn
from penstock_workers.item.answer import NoAnswer, Tried
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.lane import Prepared
from penstock_workers.item.quarantine import SUSPECT_AFTER_CRASHES, died_alone, line_of
from penstock_workers.lanes.gpu.lane import GpuLane
from penstock_workers.lanes.gpu.room import EngineRoom, Guest
from penstock_workers.lanes.gpu.sidecar import SidecarLane


class RoomAdmission:
    """Implements ``admission.Admission``: an item's turn comes when the engine has room for it."""

    def __init__(self, room: EngineRoom) -> None:
        self._room = room

    async def turn(self, attempt: Attempt, prepared: Prepared) -> RoomTurn:
        return RoomTurn(self._room, await self._room.enter(prepared.tokens, attempt.job.flow))

    def may_retry(self, attempt: Attempt) -> bool:
        return True

    async def close(self) -> None:
        """Nothing to close."""


class RoomTurn:
    """A place in the engine."""

    __slots__ = ("_guest", "_room")

    def __init__(self, room: EngineRoom, guest: Guest) -> None:
        self._room, self._guest = room, guest

    def start(self) -> None:
        """A place costs nothing but time."""

    def conclude(self, tried: Tried, happened: Failure | Reply) -> None:
        used = None
        if isinstance(happened, Reply) and happened.prompt_tokens is not None:
            used = happened.prompt_tokens + (happened.completion_tokens or 0)
        self._room.leave(self._guest, used)

    def release(self) -> None:
        self._room.leave(self._guest)


class EngineQuarantine:
    """Implements ``quarantine.Quarantine`` in the worker's own engine: another one would not fit beside it.

    An item that flew in two deaths runs among a few other suspects; one that flew in a third, all by itself. If the engine
    dies then, there is no doubt left.
    """

    def __init__(self, lane: GpuLane | SidecarLane) -> None:
        self._lane = lane

    def place(self, attempt: Attempt) -> AbstractAsyncContextManager[None]:
        """The engine itself makes room for suspects."""
        attempt.line = line_of(attempt.crashes)
        return nullcontext()

    async def infer(self, attempt: Attempt, prepared: Prepared, turn: Turn) -> Tried:
        turn.release()  # the engine is emptied for suspects, of this one too
        alone = attempt.crashes > SUSPECT_AFTER_CRASHES
        async with self._lane.room.isolated(alone=alone):
            tried = await self._lane.infer(prepared)
        died = isinstance(tried, NoAnswer) and tried.failure == "engine_died"
        return died_alone(attempt.crashes) if died and alone else tried
