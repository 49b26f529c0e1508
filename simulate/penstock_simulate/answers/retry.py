"""How a refusal says when to come back: the headers that clients read, in every form that providers
send."""

from __future__ import annotations

import math
from collections.abc import Callable
from email.utils import formatdate

from penstock_simulate.choices import RetryStyle

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
