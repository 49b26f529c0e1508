"""Where the lines of a chart run. The page draws them: nothing here is markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock_producer.reporting.text import count, duration

__all__ = ["Progress", "progress"]

if TYPE_CHECKING:
    from penstock_producer.reporting.course import Stretch

WIDTH: Final = 600
HEIGHT: Final = 160


class Progress(NamedTuple):
    """Documents that had ended, over time.

    ``finished`` and ``dead`` are points of areas that stand on the time axis."""

    width: int
    height: int
    finished: str
    dead: str
    most: str  # in words, as the next
    seconds: str
    title: str


def progress(stretches: Sequence[Stretch]) -> Progress | None:
    """Return the chart of progress; None where nothing has ended."""
    if not stretches or not stretches[-1].finished:
        return None
    last = stretches[-1]
    words = (
        f"{count(last.finished)} documents ended in {duration(last.seconds)}, {count(last.dead)} "
        "of them failed"
    )
    return Progress(
        WIDTH,
        HEIGHT,
        _area([(one.seconds, one.finished) for one in stretches]),
        _area([(one.seconds, one.dead) for one in stretches], most=last.finished)
        if last.dead
        else "",
        count(last.finished),
        duration(last.seconds),
        words,
    )


def _area(points: Sequence[tuple[int, int]], most: int | None = None) -> str:
    whole_s, highest = max(1, points[-1][0]), max(1, most or points[-1][1])
    places = [
        (WIDTH * seconds / whole_s, HEIGHT - HEIGHT * number / highest)
        for seconds, number in points
    ]
    corners = [(0.0, float(HEIGHT)), *places, (float(WIDTH), float(HEIGHT))]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
