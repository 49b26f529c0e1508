"""Ctrl-C and SIGTERM, counted: the first asks for an orderly end, the second for an immediate
one."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

from penstock_cli.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Until ``defer`` is called an interrupt raises Interrupted where it strikes; after that it is
    only counted.

    Main thread only, like signal handlers themselves.
    """

    def __init__(self) -> None:
        self.count = 0  # written by the signal handler, read by the loop that it interrupts
        self._deferred = False
        self._before: dict[signal.Signals, Any] = {}

    def defer(self, deferred: bool = True) -> None:
        self._deferred = deferred

    @property
    def asked(self) -> bool:
        return self.count > 0

    def hurry(self) -> bool:
        return self.count > 1

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._strike) for number in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _strike(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if not self._deferred:
            raise Interrupted("interrupted")
