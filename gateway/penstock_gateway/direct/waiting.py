"""How many calls wait, in all and of each tenant: what is too much is refused at once, with a time
to come back after."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Final

from penstock_gateway.refused import Refused
from penstock_gateway.settings import DirectFields

__all__ = ["Waiting", "too_many"]

LATEST: Final = 0.1  # of the newest call in the average of how long calls take
MOST_S: Final = 30  # that a caller is asked to stay away


class Waiting:
    """Belongs to the event loop."""

    def __init__(self, limits: DirectFields) -> None:
        self._limits = limits
        self.now = 0
        self.of_tenant: Counter[str | None] = Counter()
        self._usual_s = 1.0

    @contextlib.contextmanager
    def room_for(self, tenant: str | None, calls: int) -> Iterator[None]:
        """They wait while the block lasts. Raises Refused (429)."""
        if self.now + calls > self._limits.waiting:
            raise too_many(f"{self.now} calls wait at this server already", self.retry_after_s)
        if self.of_tenant[tenant] + calls > self._limits.tenant_waiting:
            raise too_many(
                f"{self.of_tenant[tenant]} calls of yours wait already", self.retry_after_s
            )
        self.now += calls
        self.of_tenant[tenant] += calls
        try:
            yield
        finally:
            self.now -= calls
            self.of_tenant[tenant] -= calls
            if not self.of_tenant[tenant]:
                del self.of_tenant[tenant]

    def note(self, took_s: float) -> None:
        """A call was answered."""
        self._usual_s += LATEST * (took_s - self._usual_s)

    @property
    def retry_after_s(self) -> int:
        """About as long as a call takes now."""
        return min(MOST_S, max(1, math.ceil(self._usual_s)))


def too_many(why: str, retry_after_s: int, code: str = "rate_limit_exceeded") -> Refused:
    return Refused(
        429,
        f"{why}; try again in {retry_after_s} s",
        code=code,
        kind="rate_limit_error",
        headers={"retry-after": str(retry_after_s)},
    )
