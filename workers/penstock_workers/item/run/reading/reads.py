"""What an item cannot go on without: its job and its body.

An outage of the ledger is waited for: no item is at fault."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final, TypeVar

from penstock_ledger import Trouble, trouble_of
from penstock_producer.errors import RowChanged
from penstock_ratelimit import full_jitter
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.attempt import Item, JobView
from penstock_workers.item.run.reading.bodies import Bodies
from penstock_workers.item.run.reading.jobs import JobBook
from penstock_workers.item.slots import Waiting

log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.2
RETRY_CAP_S: Final = 10.0
"""Between two tries. Items that wait are bounded by the prefetch, and a drain ends their
waiting."""

T = TypeVar("T")


class Reads:
    """Used on one event loop."""

    def __init__(self, jobs: JobBook, bodies: Bodies, waiting: Waiting) -> None:
        self._jobs = jobs
        self._bodies = bodies
        self._waiting = waiting
        self._failure_log = FailureLog(log)

    def known_job(self, job_id: str, endpoint: str | None = None) -> JobView | None:
        """The job if it is here already: so it is for nearly every item, without a task switch."""
        return self._jobs.known(job_id, endpoint)

    async def job(self, job_id: str, endpoint: str | None = None) -> JobView:
        """``endpoint``: of an item that is not for the job's.

        Raises JobNotFound, JobCannotRun and SpecError."""
        return await self._read("a job", lambda: self._jobs.get(job_id, endpoint))

    async def body(self, item: Item) -> bytes:
        """Of a message that travels by reference; empty where the item is ``lost``.

        Raises SourceUnavailable, SourceChanged and BadReference.
        """
        try:
            return await self._read("a document", lambda: self._bodies.fetch(item))
        except RowChanged as error:
            item.lost = str(error)
            return b""

    async def of_fleet(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What Redis knows of the other workers."""
        return await self._read("what the fleet serves", ask)

    async def _read(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        with self._waiting:
            for failures in count():
                try:
                    return await ask()
                except Exception as error:
                    if trouble_of(error) is not Trouble.AWAY:
                        raise
                    wait_s = full_jitter(failures, base_s=RETRY_FIRST_S, cap_s=RETRY_CAP_S)
                    self._failure_log.tell(
                        f"{what} cannot be read", error, f"items wait, next try in {wait_s:.1f} s"
                    )
                    await asyncio.sleep(wait_s)
        raise AssertionError("unreachable: a read ends with an answer or an error")
