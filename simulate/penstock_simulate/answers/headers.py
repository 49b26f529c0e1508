"""The headers of providers: rate limits, and when a refused call may come back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import lru_cache

from penstock_simulate.capacity import DAY_S, MINUTE_S, TOLERANCE, FixedWindow, Meter
from penstock_simulate.choices import HeaderStyle, RetryStyle

ROUNDED_TO = 1_000  # Anthropic shows remaining tokens in whole thousands

Meters = Mapping[str, Meter]
Writer = Callable[[Meters, float, float], dict[str, str]]  # (meters, now, Unix time of now)


def openai(meters: Meters, now: float, _: float) -> dict[str, str]:
    """Show limits per minute, resets as Go durations.

    A daily limit takes the place of the minute's, as seen at OpenAI and Groq.

    Where a bucket holds less than a minute's worth, what is left is shown of the minute, as at
    OpenAI: 429s come although the headers show that much is left. A counter shows the budget of its
    own window.
    """
    found: dict[str, str] = {}
    for name, meter in meters.items():
        shown = name.removesuffix("_per_day")
        if shown == name and name + "_per_day" in meters:
            continue
        limit, remaining, reset = _OPENAI_NAMES[shown]
        budget = (
            meter.capacity
            if isinstance(meter, FixedWindow)
            else meter.rate * (MINUTE_S if shown == name else DAY_S)
        )
        found[limit] = f"{budget:.0f}"
        found[remaining] = str(_whole(_left(meter, budget, now)))
        found[reset] = go_duration(meter.reset_s(now))
    return found


def groq(meters: Meters, now: float, wall: float) -> dict[str, str]:
    """Show limits as OpenAI does, but the figures of requests are always the day's limit."""
    shown = {name: meter for name, meter in meters.items() if name != "requests"}
    return openai(shown, now, wall)


def azure(meters: Meters, now: float, _: float) -> dict[str, str]:
    """Return the budget of the window that is really enforced, and nothing about its end.

    That is 1 s, 10 s or a minute."""
    found: dict[str, str] = {}
    for name, meter in _by_minute(meters).items():
        limit, remaining, _reset = _OPENAI_NAMES[name]
        found[limit] = str(_whole(meter.capacity))
        found[remaining] = str(_whole(meter.available(now)))
    return found


def anthropic(meters: Meters, now: float, wall: float) -> dict[str, str]:
    """Write them per minute, resets as RFC 3339 times, remaining tokens in thousands.

    `tokens` is the sum of input and output."""
    found: dict[str, str] = {}
    for name, meter in _by_minute(meters).items():
        budget = meter.rate * MINUTE_S
        found |= _anthropic(name, budget, _left(meter, budget, now), wall + meter.reset_s(now))
    parts = [meters[name] for name in ("input_tokens", "output_tokens") if name in meters]
    if len(parts) > 1 and "tokens" not in meters:
        limit = sum(meter.rate * MINUTE_S for meter in parts)
        remaining = sum(_left(meter, meter.rate * MINUTE_S, now) for meter in parts)
        found |= _anthropic(
            "tokens", limit, remaining, wall + max(meter.reset_s(now) for meter in parts)
        )
    return found


def together(meters: Meters, now: float, _: float) -> dict[str, str]:
    """Show limits per second.

    Requests and tokens have names of their own, and `reset` is in seconds."""
    found: dict[str, str] = {}
    for name, head in (("requests", "x-ratelimit"), ("tokens", "x-tokenlimit")):
        meter = meters.get(name)
        if meter is not None:
            found[head + "-limit"] = f"{meter.rate:g}"
            found[head + "-remaining"] = str(_whole(_left(meter, meter.rate, now)))
            found[head + "-reset"] = str(math.ceil(meter.reset_s(now)))
    return found


def none(_: Meters, __: float, ___: float) -> dict[str, str]:
    return {}


WRITERS: Mapping[HeaderStyle, Writer] = {
    HeaderStyle.OPENAI: openai,
    HeaderStyle.ANTHROPIC: anthropic,
    HeaderStyle.TOGETHER: together,
    HeaderStyle.AZURE: azure,
    HeaderStyle.GROQ: groq,
    HeaderStyle.NONE: none,
}

_OPENAI_NAMES = {
    name: tuple(
        f"x-ratelimit-{part}-{name.replace('_', '-')}" for part in ("limit", "remaining", "reset")
    )
    for name in ("requests", "tokens", "input_tokens", "output_tokens")
}


def go_duration(seconds: float) -> str:
    """Write seconds as Go does, in whole milliseconds rounded up: `0s`, `1.5s`, `6m0s`."""
    millis = math.ceil(seconds * 1000 - TOLERANCE)
    if 0 < millis < 1000:
        return f"{millis}ms"
    minutes, rest = divmod(max(0, millis), 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def rfc3339(unix_s: float) -> str:
    """Write whole seconds, rounded up, in UTC."""
    return _stamp(math.ceil(unix_s))


@lru_cache(maxsize=256)  # neighbouring answers name the same few seconds
def _stamp(unix_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))


def _anthropic(name: str, limit: float, remaining: float, full_at: float) -> dict[str, str]:
    step = 1 if name == "requests" else ROUNDED_TO
    head = f"anthropic-ratelimit-{name.replace('_', '-')}-"
    shown = round(remaining / step) * step if step > 1 else _whole(remaining)
    return {
        head + "limit": f"{limit:.0f}",
        head + "remaining": str(shown),
        head + "reset": rfc3339(full_at),
    }


def _left(meter: Meter, budget: float, now: float) -> float:
    """Return what is left of a budget that is whole again when the meter is full.

    It is what `remaining` and `reset` mean beside it."""
    return max(0.0, budget - (meter.capacity - meter.available(now)))


def _by_minute(meters: Meters) -> Meters:
    return {name: meter for name, meter in meters.items() if not name.endswith("_per_day")}


def _whole(units: float) -> int:
    return max(0, int(units + TOLERANCE))


# What a client must survive: no number, no time, no finite time, and times that make no sense.
ABSURD_VALUES = (
    "-5",
    "soon",
    "",
    "nan",
    "inf",
    "1e400",
    "99999999999",
    "1,5",
    "0x10",
    "Thu, 01 Jan 1970 00:00:00 GMT",
)


class RetryHeaders:
    """Writes waits in one style. ``wall`` gives Unix seconds, for dates."""

    def __init__(self, style: RetryStyle, wall: Callable[[], float]) -> None:
        self._style = style
        self._wall = wall
        self._written = 0

    def write(self, wait_s: float) -> dict[str, str]:
        match self._style:
            case RetryStyle.NONE:
                return {}
            case RetryStyle.SECONDS:
                return {"retry-after": str(math.ceil(wait_s))}
            case RetryStyle.MILLISECONDS:
                return {"retry-after-ms": str(math.ceil(wait_s * 1000))}
            case RetryStyle.DATE:
                return {"retry-after": formatdate(math.ceil(self._wall() + wait_s), usegmt=True)}
            case RetryStyle.ABSURD:
                self._written += 1
                value = ABSURD_VALUES[(self._written - 1) % len(ABSURD_VALUES)]
                return {"retry-after": value, "retry-after-ms": value}
        return {
            "retry-after": str(math.ceil(wait_s)),
            "retry-after-ms": str(math.ceil(wait_s * 1000)),
        }
