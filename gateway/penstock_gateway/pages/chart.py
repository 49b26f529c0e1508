"""Where the line of a chart runs. The template draws it: nothing here is markup."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from penstock_producer.reporting.text import count, duration, rate
from penstock_producer.reporting.timeline import Stretch

__all__ = ["Chart", "Part", "parts", "rate_chart"]

WIDTH: Final = 720
HEIGHT: Final = 150
WIDE: Final = 1000.0  # a bar
LEAST: Final = 4.0  # of it, that can be seen
ROWS: Final = 12  # of the table that says the same in figures


class Chart(NamedTuple):
    """Documents per second over the time of a job. ``line``, ``area`` and ``dead`` are points."""

    width: int
    height: int
    line: str
    area: str
    dead: str
    most: str  # in words, as the next
    seconds: str
    title: str
    # until when, documents per second, those of them that failed
    rows: Sequence[tuple[str, str, str]]


class Part(NamedTuple):
    """A piece of a bar: where it begins and how wide it is, of 1000."""

    kind: str
    x: float
    width: float


def parts(numbers: Sequence[tuple[str, int]], whole: int) -> list[Part]:
    """Return the pieces of a bar whose whole is ``whole``; one that is there at all can be seen."""
    widths = {
        kind: max(LEAST, WIDE * number / whole)
        for kind, number in numbers
        if number > 0 and whole > 0
    }
    if widths:
        widest = max(widths, key=lambda kind: widths[kind])
        widths[widest] -= max(0.0, sum(widths.values()) - WIDE)
    found, at = list[Part](), 0.0
    for kind, width in widths.items():
        found.append(Part(kind, round(at, 1), round(width, 1)))
        at += width
    return found


def rate_chart(stretches: Sequence[Stretch]) -> Chart | None:
    """Return the chart of documents per second; None where nothing has ended."""
    if len(stretches) < 2 or not stretches[-1].finished:
        return None
    speeds = [_speed(before, after) for before, after in pairwise(stretches)]
    whole_s = max(1, stretches[-1].seconds)
    most = max(done for _, _, done, _ in speeds) or 1.0
    corners = [(since, until, done, dead) for since, until, done, dead in speeds]
    line = _steps([(since, until, done) for since, until, done, _ in corners], whole_s, most)
    dead = _steps([(since, until, failed) for since, until, _, failed in corners], whole_s, most)
    mean = stretches[-1].finished / whole_s
    title = (
        f"Documents per second over {duration(whole_s)}: {rate(mean)} on average, {rate(most)} at "
        f"most; {count(stretches[-1].dead)} of {count(stretches[-1].finished)} failed"
    )
    each = max(1, len(speeds) // ROWS)
    rows = [
        (duration(until), rate(done), rate(failed))
        for _, until, done, failed in speeds[each - 1 :: each]
    ]
    any_dead = stretches[-1].dead > 0
    return Chart(
        WIDTH,
        HEIGHT,
        line,
        _closed(line),
        _closed(dead) if any_dead else "",
        rate(most),
        duration(whole_s),
        title,
        rows,
    )


def _speed(before: Stretch, after: Stretch) -> tuple[int, int, float, float]:
    seconds = max(1, after.seconds - before.seconds)
    return (
        before.seconds,
        after.seconds,
        (after.finished - before.finished) / seconds,
        (after.dead - before.dead) / seconds,
    )


def _steps(spans: Sequence[tuple[int, int, float]], whole_s: int, most: float) -> str:
    points = list[tuple[float, float]]()
    for since, until, speed in spans:
        y = HEIGHT - (HEIGHT - 4) * speed / most
        points += [(WIDTH * since / whole_s, y), (WIDTH * until / whole_s, y)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _closed(line: str) -> str:
    return f"0,{HEIGHT} {line} {WIDTH},{HEIGHT}"
