"""The admission of the `embed` lane: none, as its own queue is the limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock_workers.item.answer import Tried
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.lane import Prepared, Turn


class Unpaced:
    """Implements ``admission.Admission``: every item starts at once, as far as the slots allow."""

    def at_once(self, attempt: Attempt) -> Turn | None:
        return FreeTurn()

    async def turn(self, attempt: Attempt, prepared: Prepared) -> Turn:
        return FreeTurn()

    def is_down(self, provider: str) -> bool:
        return False  # where the server is away, items wait for it

    def may_retry(self, attempt: Attempt) -> bool:
        return True

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class WhileUp(Unpaced):
    """Lets items start while the server upstream is there.

    Until then they wait here, and no start of theirs is counted."""

    def __init__(self, is_up: Callable[[], bool], up: Callable[[], Awaitable[None]]) -> None:
        self._is_up, self._up = is_up, up

    def at_once(self, attempt: Attempt) -> Turn | None:
        return FreeTurn() if self._is_up() else None

    async def turn(self, attempt: Attempt, prepared: Prepared) -> Turn:
        await self._up()
        return FreeTurn()


class FreeTurn:
    """A turn that costs nothing."""

    def start(self) -> None:
        """Do nothing: there is nothing to spend."""

    def conclude(self, tried: Tried, happened: Failure | Reply) -> None:
        """Do nothing: there is nothing to learn from it."""

    def release(self) -> None:
        """Do nothing: there is nothing to give back."""
