"""Pace work: one shared quota of requests and tokens, tickets, a breaker and backoff.

Usable alone: docs/ratelimit.md."""

from penstock_ratelimit.blocking import BlockingLimiter
from penstock_ratelimit.errors import (
    BadCost,
    BadQuota,
    LimiterClosed,
    NeverFits,
    QuotaHeld,
    RateLimitError,
    UnknownQuota,
)
from penstock_ratelimit.estimates import Estimator, Learned
from penstock_ratelimit.fairness import Flow, Priority
from penstock_ratelimit.limiter import BoundQuota, Limiter, ServerGauges, TicketScope
from penstock_ratelimit.local import LocalLimiter
from penstock_ratelimit.provider.headers import parse_retry_after
from penstock_ratelimit.provider.profiles import PROFILES, Profile, Usage, profile_for
from penstock_ratelimit.provider.refusals import Refusal, Signal, classify
from penstock_ratelimit.quota import InteractiveTarget, Quota
from penstock_ratelimit.rates import PerMinute, PerSecond, Rate, Slope
from penstock_ratelimit.shared.limiter import SharedLimiter
from penstock_ratelimit.tickets import QuotaStats, Ticket, full_jitter

__all__ = [
    "PROFILES",
    "BadCost",
    "BadQuota",
    "BlockingLimiter",
    "BoundQuota",
    "Estimator",
    "Flow",
    "InteractiveTarget",
    "Learned",
    "Limiter",
    "LimiterClosed",
    "LocalLimiter",
    "NeverFits",
    "PerMinute",
    "PerSecond",
    "Priority",
    "Profile",
    "Quota",
    "QuotaHeld",
    "QuotaStats",
    "Rate",
    "RateLimitError",
    "Refusal",
    "ServerGauges",
    "SharedLimiter",
    "Signal",
    "Slope",
    "Ticket",
    "TicketScope",
    "UnknownQuota",
    "Usage",
    "classify",
    "full_jitter",
    "parse_retry_after",
    "profile_for",
]
