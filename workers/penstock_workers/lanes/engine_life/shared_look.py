"""One look for all who want one at the same time: hundreds of items ask as one when the server
beside a worker goes away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Seen = TypeVar("Seen")


class SharedLook(Generic[Seen]):
    """Used on one event loop. ``look`` is not called again while it runs."""

    def __init__(self, look: Callable[[], Awaitable[Seen]]) -> None:
        self._look = look
        self._one_at_a_time = asyncio.Lock()
        self._last: tuple[float, Seen] | None = None  # when it began, and what was seen

    async def take(self) -> Seen:
        """What is seen by a look that begins after this call. Raises what ``look`` raises."""
        asked_at = time.monotonic()
        async with self._one_at_a_time:
            if self._last is not None and self._last[0] >= asked_at:
                return self._last[1]
            began = time.monotonic()
            seen = await self._look()
            self._last = began, seen
            return seen
