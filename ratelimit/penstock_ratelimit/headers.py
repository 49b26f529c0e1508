"""What a provider's answer says about waiting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

from penstock_ratelimit.limits import MAX_PAUSE_S


def parse_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait from ``now`` (unix time), or None when the answer does not say.

    ``retry-after-ms`` goes before ``retry-after`` (seconds, whole or not, or an HTTP date). The past means 0, more than
    a day means a day, garbage and what is not a finite number mean None.
    """
    millis = _finite(_get(headers, "retry-after-ms"))
    if millis is not None:
        return _bounded(millis / 1000.0)
    text = _get(headers, "retry-after")
    seconds = _finite(text)
    if seconds is None:
        at = _http_date(text)
        seconds = None if at is None else at - now
    return None if seconds is None else _bounded(seconds)


def _get(headers: Mapping[str, str], name: str) -> str | None:
    """Header names have no case; plain dicts do."""
    value = headers.get(name)
    if value is not None:
        return value
    return next((value for key, value in headers.items() if key.lower() == name), None)


def _finite(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _http_date(text: str | None) -> float | None:
    try:
        at = parsedate_to_datetime(text or "")
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_PAUSE_S)
