"""How many requests of this process may be in flight. Open, unless the quota is probed first or its server is felt out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock_ratelimit.concurrency import AdaptiveConcurrency
from penstock_ratelimit.limits import Quota
from penstock_ratelimit.refusals import Signal
from penstock_ratelimit.tickets import Heard

UNBOUNDED: Final = 1 << 30


class Gate:
    """Counts what is in flight; with ``Quota.concurrency`` an ``AdaptiveConcurrency`` says how many may be.

    A quota with ``probe`` lets one request through until one of the fleet was answered well: it shows whether the key
    works, and what the limits are, before hundreds find out.
    """

    def __init__(self, quota: Quota, clock: Callable[[], float]) -> None:
        self._probe = quota.probe
        self._clock = clock
        self.control = (
            None if quota.concurrency is None else AdaptiveConcurrency(maximum=quota.concurrency, clock=clock)
        )
        self.in_flight = 0

    @property
    def limit(self) -> int | None:
        """Requests in flight allowed by the server's behaviour; None = not controlled."""
        return None if self.control is None else self.control.limit

    def room(self, *, proven: bool) -> int:
        """How many more may be granted now."""
        if self._probe and not proven:
            return 1 - self.in_flight
        return UNBOUNDED if self.control is None else self.control.limit - self.in_flight

    def enter(self) -> None:
        """A ticket was granted."""
        self.in_flight += 1

    def leave(self) -> None:
        """It was taken back before its caller had it."""
        self.in_flight -= 1

    def depart(self) -> None:
        """Its caller has it, and sends."""
        if self.control is not None:
            self.control.started()

    def arrive(self, since: float, heard: Heard | None) -> None:
        """Its request, sent at ``since`` (loop time), is over."""
        self.in_flight -= 1
        if self.control is not None:
            signal = Signal.REFUSED if heard is None else heard.signal
            tokens = 0.0 if heard is None else heard.output_tokens
            self.control.finished(signal, self._clock() - since, tokens)
