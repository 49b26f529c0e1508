"""The end of the machine below this worker: how long the drain may take, and what the process does
after it.

A notice and a SIGTERM mean different things. A notice says when the machine ends. A SIGTERM says
that whatever sent it waits `drain_seconds` and a little longer, and then kills. Where both come,
the earlier end counts.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from time import monotonic
from typing import Any, Final

from penstock_workers.celery_app.ending_times import FINISH_S
from penstock_workers.spot.notice import Notice

log = logging.getLogger(__name__)

AFTERWARDS_S: Final = (
    60.0  # a machine that is still here so long after its end stays: the notice was withdrawn
)
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class MachineEnd:
    """Of this process. Any thread, but for ``stay``."""

    def __init__(self) -> None:
        self._ends_at: float | None = None  # of the monotonic clock, as all here
        self._asked_at: float | None = None
        self._asked = threading.Event()

    def noticed(self, notice: Notice, lane: str) -> None:
        left = max(0.0, notice.ends_at - time.time())
        self._ends_at = monotonic() + left
        log.warning(
            "spot notice of %s: %s, %.0f s are left. This worker of the lane %s takes no more "
            "items, finishes those that end within %.0f s, and gives the others back",
            notice.cloud,
            notice.event,
            left,
            lane,
            max(0.0, left - FINISH_S),
        )

    @property
    def is_noticed(self) -> bool:
        return self._ends_at is not None

    def asked_to_stop(self, *_: Any, **__: Any) -> bool:
        """A signal from outside. True for the first."""
        if self._asked_at is not None:
            return False
        self._asked_at = monotonic()
        self._asked.set()
        return True

    def drain_until(self, drain_seconds: float) -> float:
        """When a drain that is under way, or begins now, has to be over."""
        if self._ends_at is None:
            return monotonic() + drain_seconds
        until = self._ends_at - FINISH_S
        return until if self._asked_at is None else min(until, self._asked_at + drain_seconds)

    def stay(self) -> None:
        """After a drain for a notice: wait for SIGTERM or the machine's end, on the main thread.

        A process that ended would be started again by its orchestrator, on the machine that goes
        away.
        """
        if self._ends_at is None:
            return
        for number in SIGNALS:
            signal.signal(number, self.asked_to_stop)
        left = max(0.0, self._ends_at - monotonic()) + AFTERWARDS_S
        if not self._asked.is_set():
            log.warning(
                "drained; waiting for SIGTERM or the end of the machine, for %.0f s at most", left
            )
        self._asked.wait(left)


THIS_PROCESS = MachineEnd()
