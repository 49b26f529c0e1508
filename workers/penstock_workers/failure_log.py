"""Logs repeated failures in few lines: each cause in full once, then its count every now and then.

A store that is away fails every call of every thread, several times a second, for as long as it
takes. A log that repeats that drowns what else happens, and fills the disk that may be the cause.
"""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from penstock_ledger import in_words

REPEATED_EACH_S = 30.0  # one line per cause, however often it comes
FORGOTTEN_S = 600.0  # a cause that did not occur for so long is logged in full again
CAUSES_KEPT = 64  # different ones at a time

# ids, ports, times: what differs between failures of one cause
_PARTICULAR = re.compile(r"\S*\d\S*")


@dataclass(slots=True)
class _Cause:
    told_at: float
    seen_at: float
    untold: int = 0


class FailureLog:
    """Logs each cause of failure once, then now and then. For one thread, or one event loop."""

    def __init__(self, log: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._known: OrderedDict[tuple[str, str], _Cause] = OrderedDict()

    def tell(
        self, what: str, error: BaseException, then: str, *, level: int = logging.WARNING
    ) -> None:
        """Log that ``what`` fails with ``error``; ``then`` says what happens next.

        One line with its traceback the first time, then a line per ``REPEATED_EACH_S`` that says
        how often."""
        now = self._clock()
        words = in_words(error)
        name = (what, _PARTICULAR.sub("#", words))
        cause = self._known.pop(name, None)
        if cause is None or now - cause.seen_at > FORGOTTEN_S:
            self._known[name] = _Cause(now, now)
            if len(self._known) > CAUSES_KEPT:
                self._known.popitem(last=False)
            self._log.log(level, "%s: %s; %s", what, words, then, exc_info=error)
            return
        self._known[name] = cause
        cause.seen_at = now
        cause.untold += 1
        if now - cause.told_at >= REPEATED_EACH_S:
            times, seconds = cause.untold, now - cause.told_at
            self._log.log(
                level, "%s: %s; %d times in %.0f s; %s", what, words, times, seconds, then
            )
            cause.told_at, cause.untold = now, 0
