"""Why calls fail: in the worker's log, and in Redis for `penstock status`, `limits` and the panel.

A good answer costs nothing here. Failures are added up in memory and written every ``FLUSH_S``; the
log has a line at the first of a kind and then one in ``LOG_EVERY_S``, with the count.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from penstock_ledger import Cause
from penstock_ledger.log_lines import one_line
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply

log = logging.getLogger(__name__)

FLUSH_S: Final = 2.0
LOG_EVERY_S: Final = 60.0
KINDS_MAX: Final = 500
"""Jobs times classes remembered between two lines in the log, and between two writes."""
LOGGED_CHARS: Final = 300

Note = Callable[[Iterable[Cause]], None]
Kind = tuple[str, str, str]  # provider, job, class


class Causes:
    """``note`` is called on the item loop; ``write`` runs in a thread.

    Without a ``write`` there is only the log."""

    def __init__(self, write: Note | None = None, clock: Callable[[], float] = time.time) -> None:
        self._write, self._clock = write, clock
        self._fresh: dict[Kind, Cause] = {}  # not written yet
        self._logged: dict[
            Kind, tuple[float, int]
        ] = {}  # when the last line was logged, and how many failures since
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="causes of failures")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()

    def note(self, attempt: Attempt, happened: Failure | Reply) -> None:
        """What one call came to."""
        if isinstance(happened, Reply):
            return
        now = self._clock()
        kind = (attempt.job.spec.provider, attempt.key.job_id, happened.name)
        cause = self._fresh.get(kind)
        if cause is not None:
            self._fresh[kind] = replace(
                cause, text=happened.detail, count=cause.count + 1, last=now
            )
        elif len(self._fresh) < KINDS_MAX:
            self._fresh[kind] = Cause(*kind[:2], kind[2], happened.detail, 1, now, now)
        self._log(kind, happened, now)

    async def flush(self) -> None:
        """Write to Redis; while it is away the causes are kept for the next time."""
        if self._write is None or not self._fresh:
            return
        causes, self._fresh = self._fresh, {}
        try:
            await asyncio.to_thread(self._write, list(causes.values()))
        except Exception as error:
            log.debug(
                "causes of failures are not written yet (%s); next try in %.0f s", error, FLUSH_S
            )
            for kind, cause in causes.items():
                newer = self._fresh.get(kind)
                self._fresh[kind] = cause if newer is None else _sum(cause, newer)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    def _log(self, kind: Kind, failure: Failure, now: float) -> None:
        logged_at, unlogged = self._logged.pop(kind, (float("-inf"), 0))
        if now - logged_at < LOG_EVERY_S:
            self._logged[kind] = (logged_at, unlogged + 1)
            return
        self._logged[kind] = (
            now,
            0,
        )  # at the end: the first is the one that was logged longest ago
        if len(self._logged) > KINDS_MAX:
            del self._logged[next(iter(self._logged))]
        more = f", and {unlogged} more since the last such line" if unlogged else ""
        provider, job, name = kind
        log.warning(
            "job %s: a call to provider %s failed: %s: %s%s",
            job,
            provider,
            name,
            one_line(failure.detail[:LOGGED_CHARS]),
            more,
        )


def _sum(earlier: Cause, newer: Cause) -> Cause:
    return replace(newer, count=earlier.count + newer.count, since=earlier.since)
