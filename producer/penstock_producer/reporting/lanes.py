"""Where a job's documents go, since when and why."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock_producer.reporting.text import one_line

__all__ = ["lane_line", "lanes_of"]

if TYPE_CHECKING:
    from penstock_ledger import LaneMove

WHY_CHARS = 300


def lane_line(moves: Sequence[LaneMove]) -> str | None:
    """Return a line on a job whose lane was chosen or has changed.

    None for one that is where it was submitted to.
    """
    if not moves:
        return None
    last = moves[-1]
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last.at))
    before = "" if last.before is None else f", before in {last.before}"
    return (
        f"lane {last.lane} since {since}{before}: {one_line(last.why, WHY_CHARS)} ({last.reason})"
    )


def lanes_of(moves: Iterable[LaneMove]) -> list[dict[str, Any]]:
    """Return the moves for JSON."""
    return [
        {
            "at": move.at,
            "before": move.before,
            "lane": move.lane,
            "reason": move.reason,
            "why": move.why,
        }
        for move in moves
    ]
