"""Errors of quotas say what cannot be, and what to do about it.

RateLimitError
├── BadQuota       a quota was declared with a value that cannot be (at start-up)
├── BadCost        a cost is negative or not a number
├── UnknownQuota   this quota was not declared
├── NeverFits      a certain cost is larger than the provider's own capacity
├── QuotaHeld      the account is held: out of credit, or its key is refused
└── LimiterClosed  the limiter was closed while callers waited, or before
"""

from __future__ import annotations

from collections.abc import Iterable


class RateLimitError(Exception):
    """Root of every error raised by this package."""


class BadQuota(RateLimitError, ValueError):
    """A quota was declared with a value that cannot be."""

    def __init__(self, field: str, value: object, fix: str) -> None:
        super().__init__(f"{field} is {value!r}: {fix}")
        self.field, self.value, self.fix = field, value, fix


class BadCost(RateLimitError, ValueError):
    """A cost is negative or not a number; it would poison the quota that all processes share."""

    def __init__(self, dimension: str, value: object) -> None:
        super().__init__(f"cost {dimension!r} is {value!r}: give a number that is zero or more")
        self.dimension, self.value = dimension, value


class UnknownQuota(RateLimitError, LookupError):
    """This quota was not declared."""

    def __init__(self, quota_id: str, known: Iterable[str]) -> None:
        names = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"quota {quota_id!r} is not declared: pass it to the limiter (declared: {names})"
        )
        self.quota_id = quota_id


class NeverFits(RateLimitError):
    """A certain cost is larger than the provider can take at once: waiting would not help."""

    def __init__(self, quota_id: str, dimension: str, cost: float, cap: float) -> None:
        super().__init__(
            f"quota {quota_id!r}: {dimension} costs {cost:g} and no more than {cap:g} can ever "
            f"fit: make the request smaller, or raise caps[{dimension!r}] if the provider takes "
            "more"
        )
        self.quota_id, self.dimension, self.cost, self.cap = quota_id, dimension, cost, cap


class QuotaHeld(RateLimitError):
    """The account is held until a person acts, so callers do not wait for it."""

    def __init__(self, quota_id: str, reason: str) -> None:
        super().__init__(
            f"quota {quota_id!r} is held: {reason}; correct the account at the provider, then lift "
            "the hold"
        )
        self.quota_id, self.reason = quota_id, reason


class LimiterClosed(RateLimitError):
    """The limiter is closed: callers that still waited hold no ticket and were charged nothing."""

    def __init__(self, quota_id: str) -> None:
        super().__init__(f"quota {quota_id!r}: the limiter is closed; open a new one to go on")
        self.quota_id = quota_id
