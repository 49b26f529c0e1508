"""A provider's headers say how long to stay away, and how much of which limit is left.

Nothing here raises, whatever the header's text: values that make no sense are ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from penstock_ratelimit.provider.windows import DAY_S, MINUTE_S, Figures, Windows, infer_window
from penstock_ratelimit.rates import MAX_PAUSE_S

MAX_TEXT: Final = 100
"""No number, duration or date in a header is longer."""
MAX_LIMIT: Final = 1e15
"""As in ``PerMinute``: no limit is larger."""


# --- how long to stay away
# --------------------------------------------------------------------------------------------------


def parse_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds to wait from ``now`` (unix time), or None when the answer does not say.

    ``retry-after-ms`` goes before ``retry-after`` (seconds, whole or not, or an HTTP date; RFC
    9110, 10.2.3). A date is held against the answer's own ``date``, so that it does not matter
    whose clock is wrong. The past means 0, more than a day means a day, garbage and what is not a
    finite number mean None.
    """
    millis = _finite(header(headers, "retry-after-ms"))
    if millis is not None:
        return _bounded(millis / 1000.0)
    text = header(headers, "retry-after")
    seconds = _finite(text)
    if seconds is None:
        at = _http_date(text)
        seconds = None if at is None else at - _servers_clock(headers, now)
    return None if seconds is None else _bounded(seconds)


def header(headers: Mapping[str, str], name: str) -> str | None:
    """Return a header by its ``name`` in lower case; names have no case, but plain dicts do."""
    value = headers.get(name)
    if value is not None:
        return value
    return next((value for key, value in headers.items() if key.lower() == name), None)


# --- how much is left
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """One limit as an answer's headers state it.

    None where they do not state it, or state what cannot be right."""

    dim: str
    limit: float | None
    """Units per window."""
    remaining: float | None
    reset_s: float | None
    """Seconds until all of the limit is there again."""
    window_s: float | None
    """What the limit counts in: documented by the provider, or inferred. None: do not take the
    limit for a rate."""

    @property
    def per_second(self) -> float | None:
        return None if self.limit is None or self.window_s is None else self.limit / self.window_s


@dataclass(frozen=True, slots=True)
class HeaderLimit:
    """The limit in a header: its dimension, its window, and how far ``remaining`` may be off.

    The window is set where it is documented."""

    dim: str
    window_s: float | None = None
    rounding: float = 0.0


@dataclass(frozen=True, slots=True)
class Style:
    """One family of header names.

    ``{}`` in a name stands for a key of ``dims``; other headers are ignored."""

    dims: Mapping[str, HeaderLimit]
    limit: str = "x-ratelimit-limit-{}"
    remaining: str = "x-ratelimit-remaining-{}"
    reset: str = "x-ratelimit-reset-{}"
    infers: bool = True
    """Its reset is the time until the bucket is full again, so that the window can be computed from
    it."""


STYLES: Final[Mapping[str, Style]] = {
    # developers.openai.com/api/docs/guides/rate-limits, and relatives that use the same names
    "x-ratelimit": Style(
        {
            "requests": HeaderLimit("requests"),
            "tokens": HeaderLimit("tokens"),
            "input-tokens": HeaderLimit("input_tokens"),
            "output-tokens": HeaderLimit("output_tokens"),
            # a project's own limit, beside the organisation's
            "project-requests": HeaderLimit("requests"),
            "project-tokens": HeaderLimit("tokens"),
            # Cerebras has the window in the name
            "requests-minute": HeaderLimit("requests", MINUTE_S),
            "tokens-minute": HeaderLimit("tokens", MINUTE_S),
            "requests-day": HeaderLimit("requests", DAY_S),
            "tokens-day": HeaderLimit("tokens", DAY_S),
        }
    ),
    # The limit of requests counts 1 or 10 s and does not say which (learn.microsoft.com Q&A
    # 1336515, 2265464, 2283452); counters are "reset each minute" (how-to/quota), so the reset does
    # not show the window.
    "azure": Style(
        {"requests": HeaderLimit("requests"), "tokens": HeaderLimit("tokens", MINUTE_S)},
        infers=False,
    ),
    # console.groq.com/docs/rate-limits: requests "always refers to Requests Per Day", tokens to
    # "Tokens Per Minute"
    "groq": Style(
        {"requests": HeaderLimit("requests", DAY_S), "tokens": HeaderLimit("tokens", MINUTE_S)}
    ),
    # platform.claude.com/docs/en/api/rate-limits: limits per minute, token remainings "rounded to
    # the nearest thousand". The plain `tokens-*` shows "the most restrictive limit in effect",
    # whichever that is just now: left out.
    "anthropic": Style(
        {
            "requests": HeaderLimit("requests", MINUTE_S),
            "input-tokens": HeaderLimit("input_tokens", MINUTE_S, rounding=500.0),
            "output-tokens": HeaderLimit("output_tokens", MINUTE_S, rounding=500.0),
        },
        limit="anthropic-ratelimit-{}-limit",
        remaining="anthropic-ratelimit-{}-remaining",
        reset="anthropic-ratelimit-{}-reset",
    ),
    # curator's RATE_LIMIT_HEADER, curator#484: requests and tokens per second
    "together": Style(
        {"x-ratelimit": HeaderLimit("requests", 1.0), "x-tokenlimit": HeaderLimit("tokens", 1.0)},
        limit="{}-limit",
        remaining="{}-remaining",
        reset="{}-reset",
        infers=False,
    ),
    "none": Style({}),
}
"""By the name that a profile carries in ``header_style``."""

_NAMES: Final = {
    name: tuple(
        (style.limit.format(key), style.remaining.format(key), style.reset.format(key), meant)
        for key, meant in style.dims.items()
    )
    for name, style in STYLES.items()
}  # spelled out once, because every answer is read


def read_limits(
    headers: Mapping[str, str], style: str, now: float, windows: Windows | None = None
) -> tuple[Reading, ...]:
    """Return the limits in these headers, one reading per dimension.

    Where two limit the same, the tightest of both.

    ``style`` is a key of ``STYLES``; ``now`` is unix time, used where the answer has no ``date`` of
    its own. ``windows`` remembers what earlier answers of the provider showed; without it each
    window is as this answer alone has it.
    """
    family = STYLES[style]
    lowered = {name.lower(): value for name, value in headers.items()}
    readings: dict[str, Reading] = {}
    for limit_name, remaining_name, reset_name, meant in _NAMES[style]:
        limit, remaining = _amount(lowered.get(limit_name)), _amount(lowered.get(remaining_name))
        if limit == 0 or (limit is None and remaining is None):
            continue
        if limit is not None and remaining is not None:
            remaining = min(remaining, limit)
        reset_s, quantum_s = _reset(lowered.get(reset_name), lowered, now)
        window_s = meant.window_s
        if family.infers:
            figures = None
            if limit is not None and remaining is not None and reset_s is not None:
                figures = Figures(limit, remaining, reset_s, meant.rounding, quantum_s)
            window_s = _longer(window_s, _inferred(limit_name, figures, windows))
        # a bucket of a day shows in the plain tokens header too (community.openai.com/t/541210):
        # never a rate per minute
        dim = f"{meant.dim}_per_day" if window_s == DAY_S else meant.dim
        reading = Reading(dim, limit, remaining, reset_s, window_s)
        readings[dim] = _tightest(readings[dim], reading) if dim in readings else reading
    return tuple(readings.values())


def _inferred(name: str, figures: Figures | None, windows: Windows | None) -> float | None:
    if windows is not None:
        return windows.of(name, figures)
    return None if figures is None else infer_window(figures)


def _longer(documented: float | None, inferred: float | None) -> float | None:
    """Return the documented window, unless the answers show a longer one.

    A shorter one would be a higher rate."""
    if documented is None or inferred is None:
        return documented if inferred is None else inferred
    return max(documented, inferred)


def _tightest(one: Reading, other: Reading) -> Reading:
    """Join two limits on the same thing: the lower rate, and the fewer units left."""
    slower, faster = sorted((one, other), key=_rate)
    fewer = min(
        one, other, key=lambda reading: math.inf if reading.remaining is None else reading.remaining
    )
    base = faster if slower.limit is None else slower
    return replace(base, remaining=fewer.remaining, reset_s=fewer.reset_s)


def _rate(reading: Reading) -> tuple[float, float]:
    """Return a key to sort by: units per second, then units per window of unknown length."""
    per_second = math.inf if reading.per_second is None else reading.per_second
    return per_second, math.inf if reading.limit is None else reading.limit


# --- texts
# --------------------------------------------------------------------------------------------------

_GO_UNITS: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": DAY_S,
}
_GO_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h|d)")
_EPOCH: Final = 1e9
"""A reset of more seconds than this is a date (2001 or later); no limit lasts 30 years."""
_EPOCH_MS: Final = 1e12


def parse_duration(text: str) -> float | None:
    """Return the seconds in a Go-style duration such as "12ms", "6m0s" or "4m12.172s".

    It is None for anything else."""
    parts = _GO_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    seconds = sum(float(number) * _GO_UNITS[unit] for number, unit in parts)
    return seconds if math.isfinite(seconds) else None


def _reset(text: str | None, headers: Mapping[str, str], now: float) -> tuple[float | None, float]:
    """Return the seconds until the reset, and what the last digit of them is worth.

    The text is a duration, a number or a date."""
    text = "" if text is None or len(text) > MAX_TEXT else text.strip()
    if not text:
        return None, 0.0
    seconds = parse_duration(text)
    if seconds is not None:
        # OpenAI rounds to milliseconds and drops zeros at the end: "1s" is 1.000 s
        return (seconds, 0.001)
    seconds = _finite(text)
    at = _rfc3339(text) if seconds is None else None
    if seconds is not None and seconds > _EPOCH:
        at = seconds / 1000.0 if seconds > _EPOCH_MS else seconds
    if at is not None:
        return max(0.0, at - _servers_clock(headers, now)), 1.0
    if seconds is None or seconds < 0:
        return None, 0.0
    return seconds, 1.0 if "." not in text else 0.001


def _amount(text: str | None) -> float | None:
    value = _finite(text)
    return value if value is not None and 0 <= value <= MAX_LIMIT else None


def _finite(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None and len(text) <= MAX_TEXT else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _servers_clock(headers: Mapping[str, str], now: float) -> float:
    at = _http_date(header(headers, "date"))
    return now if at is None else at


def _http_date(text: str | None) -> float | None:
    try:
        return _unix(parsedate_to_datetime(text or ""))
    except (ValueError, OverflowError):
        return None


def _rfc3339(text: str) -> float | None:
    try:
        return _unix(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None


def _unix(at: datetime) -> float:
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_PAUSE_S)
