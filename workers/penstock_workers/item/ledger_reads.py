"""Reads of the ledger that an item cannot go on without. They wait while it is away: an outage is no fault of the item."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final, TypeVar

from penstock_ledger import Trouble, trouble_of
from penstock_ratelimit import full_jitter
from penstock_workers.failure_log import FailureLog

log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.2
RETRY_CAP_S: Final = 10.0
"""Between two tries. Those who wait are bounded by the prefetch, and a drain gives them back."""

T = TypeVar("T")


class LedgerReads:
    """Used on one event loop."""

    def __init__(self) -> None:
        self._failure_log = FailureLog(log)

    async def read(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """What ``ask`` returns. Raises what it raises, but for a store that is away: that is waited for."""
        for attempt in count():
            try:
                return await ask()
            except Exception as error:
                if trouble_of(error) is not Trouble.AWAY:
                    raise
                wait_s = full_jitter(attempt, base_s=RETRY_FIRST_S, cap_s=RETRY_CAP_S)
                self._failure_log.tell(f"{what} cannot be read", error, f"items wait, next try in {wait_s:.1f} s")
                await asyncio.sleep(wait_s)
        raise AssertionError("unreachable: a read ends with an answer or an error")
