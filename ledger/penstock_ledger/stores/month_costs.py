"""The calendar month (UTC) in which a job was accepted: what it costs belongs to that one, however
long it runs."""

from __future__ import annotations

import datetime
from typing import NamedTuple

__all__ = ["Month", "month_of"]


class Month(NamedTuple):
    name: str  # as 2026-11
    began: float  # Unix seconds
    ends: float  # the first moment that is not in it


def month_of(now: float) -> Month:
    """The calendar month in UTC that a moment (Unix seconds) lies in."""
    day = datetime.datetime.fromtimestamp(now, datetime.UTC)
    first = day.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = (first + datetime.timedelta(days=32)).replace(day=1)
    return Month(f"{first:%Y-%m}", first.timestamp(), after.timestamp())
