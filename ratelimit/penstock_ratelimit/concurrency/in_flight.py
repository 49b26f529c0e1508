"""How many requests of this process may be in flight.

No bound, unless the quota is probed or controls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock_ratelimit.concurrency.adaptive import AdaptiveConcurrency
from penstock_ratelimit.provider.refusals import OK, Signal
from penstock_ratelimit.quota import Quota
from penstock_ratelimit.tickets import Feedback

UNBOUNDED: Final = 1 << 30
PROBE_S: Final = 3.0
"""A probe that was not refused within so long is being worked on: a refusal needs no model. Then
the others follow."""


class InFlight:
    """Counts what is in flight; with ``Quota.concurrency`` an ``AdaptiveConcurrency`` says how many
    may be.

    A quota with ``probe`` lets one request through until one of the fleet was answered well, or was
    not refused for ``PROBE_S``: it shows whether the key works, and what the limits are, before
    hundreds are sent.
    """

    def __init__(self, quota: Quota, clock: Callable[[], float]) -> None:
        self._probe = quota.probe
        self._clock = clock
        self.control = (
            None
            if quota.concurrency is None
            else AdaptiveConcurrency(maximum=quota.concurrency, clock=clock)
        )
        self.count = 0
        self._probing_since = 0.0  # loop time
        self._proven = False  # as Redis last said, or by a good answer since

    @property
    def opens_at(self) -> float | None:
        """Loop time at which a probe counts as not refused; None when no probe is under way."""
        return self._probing_since + PROBE_S if self._probe and self.count else None

    @property
    def limit(self) -> int | None:
        """Requests in flight allowed by the server's behaviour; None = not controlled."""
        return None if self.control is None else self.control.limit

    @property
    def most(self) -> int | None:
        """The largest that ``limit`` may become."""
        return None if self.control is None else self.control.maximum

    @property
    def climbing(self) -> bool:
        return self.control is not None and self.control.climbing

    def note(self, *, proven: bool) -> None:
        """Whether one of the fleet was answered well, as Redis has it."""
        self._proven = proven

    def places(self) -> int:
        """How many more may be granted now."""
        if self._probe and not self._proven and not self._probe_is_accepted():
            return 1 - self.count
        return UNBOUNDED if self.control is None else self.control.limit - self.count

    def _probe_is_accepted(self) -> bool:
        return self.count > 0 and self._clock() >= self._probing_since + PROBE_S

    def granted(self) -> None:
        """A ticket was granted."""
        if not self.count:
            self._probing_since = self._clock()
        self.count += 1

    def taken_back(self) -> None:
        """It was taken back before its caller had it."""
        self.count -= 1

    def sent(self) -> None:
        """Its caller has it, and sends."""
        if self.control is not None:
            self.control.started()

    def ended(self, since: float, feedback: Feedback | None) -> None:
        """Its request, sent at ``since`` (loop time), is over."""
        self.count -= 1
        if feedback is not None and feedback.signal is OK:
            self._proven = True  # the next call reports it to Redis
        if self.control is not None:
            signal = Signal.REFUSED if feedback is None else feedback.signal
            tokens = 0.0 if feedback is None else feedback.output_tokens
            self.control.finished(signal, self._clock() - since, tokens)
