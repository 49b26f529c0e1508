"""A worker ends for a lane that can do nothing more, for a signal, or with its machine.

A lane ends its worker by a drain like any other, and an exit status that says so.

The drain is over at D. By D + GRACE_S the last outcomes are stored, and all other items are given
back; the thread of the leases writes that to Redis while the item engine stops, so those two run
side by side. The sums of these times have to fit what kills the worker.

A notice and a SIGTERM mean different things. A notice says when the machine ends. A SIGTERM says
that whatever sent it waits `drain_seconds` and a little longer, and then kills. Where both come,
the earlier end counts.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from time import monotonic
from typing import Any, Final

from penstock_ledger.errors import EXIT_FAILED
from penstock_workers.spot import Notice

GRACE_S: Final = 2.0  # for the engine's last group commit
# for a Redis that answers to learn what was given back: milliseconds for all items of a worker
RETURN_S: Final = 3.0
# for closing connections, and an engine with its processes; the thread is a daemon
STOP_TIMEOUT_S: Final = 7.0
# for a Redis that does not answer; messages whose write fails return when their lease ends
FLUSH_TIMEOUT_S: Final = 5.0
# of FLUSH_TIMEOUT_S, for what the engine said as it stopped, however long that took
LAST_S: Final = 1.0

FINISH_S: Final = GRACE_S + RETURN_S
"""Of a notice, kept for what follows the drain. An engine's processes may end after that: they go
with the machine."""

END_S: Final = GRACE_S + STOP_TIMEOUT_S + LAST_S
"""From the end of the drain to the end of the process, at most. Who kills a worker that hosts an
engine has to wait for it."""


log = logging.getLogger(__name__)


class Ending:
    """The end of this process that a lane has asked for.

    Celery's own exit status of a drain is 0, also where a signal asked for it."""

    def __init__(self) -> None:
        self._why: str | None = None

    @property
    def status(self) -> int:
        return 0 if self._why is None else EXIT_FAILED

    def begin(self, why: str) -> None:
        """Give back what is here and end. Called again, it changes nothing."""
        if self._why is not None:
            return
        self._why = why
        log.error(
            "%s; this worker gives back what it holds and ends with status %d, to be replaced",
            why,
            self.status,
        )
        os.kill(os.getpid(), signal.SIGTERM)


THIS_PROCESS = Ending()


def end_this_worker(why: str) -> None:
    THIS_PROCESS.begin(why)


# a machine that is still here so long after its end stays: the notice was withdrawn
AFTERWARDS_S: Final = 60.0
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class MachineEnd:
    """The end of this process that a notice or a signal asks for. Any thread, but for ``stay``."""

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
        """Note a signal from outside; return True for the first."""
        if self._asked_at is not None:
            return False
        self._asked_at = monotonic()
        self._asked.set()
        return True

    def drain_until(self, drain_seconds: float) -> float:
        """Return when a drain that is under way, or begins now, has to be over."""
        if self._ends_at is None:
            return monotonic() + drain_seconds
        until = self._ends_at - FINISH_S
        return until if self._asked_at is None else min(until, self._asked_at + drain_seconds)

    def stay(self) -> None:
        """Wait for SIGTERM or the machine's end after a drain for a notice, on the main thread.

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


MACHINE_END = MachineEnd()
