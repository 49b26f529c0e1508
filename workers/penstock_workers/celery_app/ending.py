"""How a lane ends its worker when it can do nothing more: a drain like any other, and an exit
status that says so."""

from __future__ import annotations

import logging
import os
import signal

from penstock_ledger.errors import EXIT_FAILED

log = logging.getLogger(__name__)


class Ending:
    """Of this process.

    Celery's own exit status of a drain is 0, also where a signal asked for it."""

    def __init__(self) -> None:
        self._why: str | None = None

    @property
    def status(self) -> int:
        return 0 if self._why is None else EXIT_FAILED

    def begin(self, why: str) -> None:
        """What is here goes back to the queue. Said again, it changes nothing."""
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
