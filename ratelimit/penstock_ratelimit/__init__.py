"""Pace work: one shared quota of requests and tokens, tickets and backoff. Usable alone."""

from penstock_ratelimit.backoff import full_jitter
from penstock_ratelimit.errors import BadCost, BadQuota, LimiterClosed, NeverFits, RateLimitError, UnknownQuota
from penstock_ratelimit.estimate import Estimator
from penstock_ratelimit.headers import parse_retry_after
from penstock_ratelimit.limits import PerMinute, PerSecond, Quota, Rate
from penstock_ratelimit.local import LocalLimiter
from penstock_ratelimit.shared import SharedLimiter
from penstock_ratelimit.tickets import Limiter, QuotaStats, Ticket, TicketScope

__all__ = [
    "BadCost",
    "BadQuota",
    "Estimator",
    "Limiter",
    "LimiterClosed",
    "LocalLimiter",
    "NeverFits",
    "PerMinute",
    "PerSecond",
    "Quota",
    "QuotaStats",
    "Rate",
    "RateLimitError",
    "SharedLimiter",
    "Ticket",
    "TicketScope",
    "UnknownQuota",
    "full_jitter",
    "parse_retry_after",
]
