"""Test code that waits, without waiting: an event loop whose clock jumps to the next timer.

For limiters, backoff and anything else that only sleeps. It knows no sockets: while a task waits
for one, the clock jumps.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

TICK_S = 1e-9
"""Each turn of the loop takes a nanosecond, so that a timer due by a rounding error ago cannot spin
for ever."""


class _Jump(selectors.DefaultSelector):
    """Instead of blocking for ``timeout``, move the clock by it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not events and timeout is None:
            raise RuntimeError(
                "virtual time cannot advance: every task waits for something other than a timer"
            )
        self.now += TICK_S if events or not timeout else timeout
        return events


class BlockingScripts:
    """A real Redis for a ``SharedLimiter`` in virtual time.

    Calls block, so that time stands still meanwhile.

    ``client`` is a blocking ``redis.Redis``. Set ``fault`` to make every call raise it.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self.fault: Exception | None = None
        self.calls = 0

    def register_script(self, script: str) -> Callable[..., Awaitable[Any]]:
        registered = self._client.register_script(script)

        async def call(*, keys: list[str], args: list[Any]) -> Any:
            self.calls += 1
            if self.fault is not None:
                raise self.fault
            return registered(keys=keys, args=args)

        return call


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that starts at second 0 and never sleeps."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time, as ``asyncio.run`` does in real time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
