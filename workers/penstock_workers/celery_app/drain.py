"""The end of a worker: what is in flight ends or goes back, and only then the process ends.

The hub does not run any more when Celery stops its pool, so the drain does the hub's work until
nothing is left.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol

from celery.worker import state

from penstock_workers.celery_app.ending import (
    FLUSH_TIMEOUT_S,
    GRACE_S,
    LAST_S,
    SIGNALS,
    STOP_TIMEOUT_S,
    MachineEnd,
)
from penstock_workers.celery_app.engine_thread import EngineThread

log = logging.getLogger(__name__)

TURN_S = 0.01


class DrainedPool(Protocol):
    """The part of the pool that the drain needs."""

    def deliver(self) -> None: ...

    def is_idle(self) -> bool: ...

    def give_back_all(self) -> int: ...

    def finish(self, timeout_s: float) -> None: ...


class Drain:
    """The drain of a worker, which runs once, when the pool stops."""

    def __init__(
        self,
        pool: DrainedPool,
        engine: EngineThread,
        hub: Any,
        drain_seconds: float,
        machine_end: MachineEnd,
    ) -> None:
        self._pool = pool
        self._engine = engine
        self._hub = hub
        self._drain_seconds = drain_seconds
        self._end = machine_end
        self._until = (
            monotonic() if state.should_terminate else machine_end.drain_until(drain_seconds)
        )
        self._hurried = threading.Event()

    def hurry(self) -> None:
        """Give back what is still here now, after a second signal."""
        self._hurried.set()

    def signalled(self) -> None:
        """Note a signal that comes while it runs.

        The first SIGTERM after a notice only says that there may be less time than the notice
        gives.
        """
        if not (self._end.is_noticed and self._end.asked_to_stop()):
            self.hurry()

    def run(self) -> None:
        with self._signals_hurry():
            self._drain()
        given_back = self._pool.give_back_all()
        # the leases' own thread writes, while the engine stops
        flushed_by = monotonic() + FLUSH_TIMEOUT_S
        if given_back:
            log.warning("%d items did not end in time; they are back in their queues", given_back)
        if not self._engine.stop(STOP_TIMEOUT_S):
            log.warning(
                "the item engine did not stop within %.0f s; ending without it", STOP_TIMEOUT_S
            )
        self._pool.finish(max(LAST_S, flushed_by - monotonic()))

    def _drain(self) -> None:
        drained = self._engine.drain(max(0.0, self._until - monotonic()))
        while monotonic() < self._until + GRACE_S and not self._hurried.is_set():
            self._turn()
            if drained.done() and (self._pool.is_idle() or monotonic() >= self._until):
                break
        drained.cancel()
        self._turn()
        try:
            drained.result(timeout=0)
        except (CancelledError, TimeoutError):
            pass
        except Exception:
            log.exception("the item engine failed to drain; what it holds goes back")

    def _turn(self) -> None:
        self._until = min(self._until, self._end.drain_until(self._drain_seconds))
        self._pool.deliver()
        self._hub.fire_timers()  # the worker's heartbeat and the hub's other timers
        self._hurried.wait(TURN_S)

    @contextmanager
    def _signals_hurry(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, lambda *_: self.signalled()) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
