"""Durations as people write them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["seconds_of"]

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|m|h|d)", re.ASCII)
_PLAIN = re.compile(r"\d+(\.\d+)?", re.ASCII)
_MAX_CHARS: Final = 100


def seconds_of(text: str) -> float:
    """``90``, ``90s``, ``1h30m``, ``2d`` in seconds.

    Raises ValueError, which says how durations are written."""
    compact = text[: _MAX_CHARS + 1].strip().lower().replace(" ", "")
    if len(text) > _MAX_CHARS:
        compact = ""
    if _PLAIN.fullmatch(compact) is not None:
        seconds = float(compact)
    elif compact and _PART.sub("", compact) == "":
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(compact))
    else:
        raise ValueError("is not a duration; write seconds, or units such as 90s, 30m, 1h30m or 2d")
    if seconds <= 0:
        raise ValueError("must be longer than 0 s")
    return seconds
