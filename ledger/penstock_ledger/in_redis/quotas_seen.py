"""What stops a provider's quota now, for those who look at it from outside: the few fields of its
Redis hash that say so.

The hash is the rate limiter's own (`ratelimit/`, store/scripts/reserve.lua lists its fields), which
reads all of it in ``penstock_ratelimit.read_quotas``; tests/contract/test_quotas_seen.py holds the
two together. What cannot be read is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

import redis

__all__ = ["COUNTED", "QuotaSeen", "counted", "quotas_seen"]

QUOTAS_READ: Final = 256  # a fleet has a few; more than this is one quota per customer
TEXT_CHARS: Final = 500  # of why it is held
LIMITS_READ: Final = 32  # of one quota
_IDS: Final = "penstock:quotas"
_FIELDS: Final = (
    "config",
    "hold",
    "hat",
    "bs",
    "bu",
    "nb",
    "n",
    "x:throttled",
    "x:ramp",
    "x:failed",
)


# What the counters of a quota count, in the words of every screen. All of them begin when Redis
# first knows the quota, go on from job to job, and begin anew where Redis has lost its data.
COUNTED: Final[Mapping[str, str]] = {
    "granted": "calls started",
    "throttled": "answered 429",
    "failures": "failed at the provider",
}

QuotaState = Literal["open", "held", "failing", "waiting"]


class QuotaSeen(NamedTuple):
    """One quota. Seconds are from now on, by the clock of Redis."""

    quota_id: str
    limits: Mapping[str, float]  # units per second that the provider allows, by what is limited
    granted: int
    throttled: int
    failures: int
    hold: str  # why the account is held; empty = it is not
    held_s: float
    pause_left_s: float  # the provider said: nothing for so long
    open_left_s: float  # it fails: nothing for so long
    probing: bool  # a few trial requests decide whether it is back

    @property
    def state(self) -> QuotaState:
        """What keeps requests from starting: the account is held, the provider fails, it said wait;
        or nothing."""
        if self.hold:
            return "held"
        if self.open_left_s > 0 or self.probing:
            return "failing"
        return "waiting" if self.pause_left_s > 0 else "open"


def counted(granted: int, throttled: int, failures: int) -> list[tuple[int, str]]:
    """Return the counters of a quota with what each counts, as every screen says it."""
    return list(zip((granted, throttled, failures), COUNTED.values(), strict=True))


def quotas_seen(client: redis.Redis, clock_us: Callable[[], int] | None = None) -> list[QuotaSeen]:
    """By id. ``clock_us`` replaces Redis's own clock in tests. Raises redis.RedisError."""
    pool: Any = client
    ids = sorted(_text(name) for name in pool.srandmember(_IDS, QUOTAS_READ))
    with pool.pipeline(transaction=False) as pipe:
        pipe.time()
        for quota_id in ids:
            pipe.hmget(f"penstock:{{q:{quota_id}}}", _FIELDS)
        (seconds, micros), *rows = pipe.execute()
    now_us = seconds * 1_000_000 + micros if clock_us is None else clock_us()
    return [
        _seen(quota_id, dict(zip(_FIELDS, row, strict=True)), now_us)
        for quota_id, row in zip(ids, rows, strict=True)
    ]


def _seen(quota_id: str, row: Mapping[str, Any], now_us: float) -> QuotaSeen:
    state = int(_number(row["bs"]))
    hold = _text(row["hold"] or b"")[:TEXT_CHARS]
    return QuotaSeen(
        quota_id,
        _limits(row["config"]),
        int(_number(row["n"])),
        int(_number(row["x:throttled"])) + int(_number(row["x:ramp"])),
        int(_number(row["x:failed"])),
        hold,
        max(0.0, (now_us - _number(row["hat"])) / 1_000_000) if hold and row["hat"] else 0.0,
        max(0.0, (_number(row["nb"]) - now_us) / 1_000_000),
        max(0.0, (_number(row["bu"]) - now_us) / 1_000_000) if state == 1 else 0.0,
        state == 2,
    )


def _limits(config: Any) -> dict[str, float]:
    try:
        dims = json.loads(config or b"{}")["dims"]
        return {str(name): float(values[0]) for name, values in sorted(dims.items())[:LIMITS_READ]}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return {}


def _number(value: Any) -> float:
    try:
        number = float(value or 0)
    except (ValueError, TypeError):
        return 0.0
    return number if math.isfinite(number) else 0.0


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
