"""The report as one page of HTML.

It has no script, nothing from elsewhere, and nothing in it that a document could have written.
The points of a chart's lines are computed apart: the page draws them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import Environment, StrictUndefined

from penstock_producer.reporting.text import asked_again, count, duration, one_line, percent, rate
from penstock_producer.reporting.words import (
    effort_lines,
    lane_name,
    milliseconds,
    moment,
    reasons_of,
    saved_rows,
)

if TYPE_CHECKING:
    from penstock_producer.reporting.account import Report
    from penstock_producer.reporting.timeline import Stretch, Timeline

__all__ = ["Progress", "page", "progress"]

WIDTH: Final = 600
HEIGHT: Final = 160

NAME_CHARS: Final = 300
PROGRESS_ROWS: Final = 12  # of the table beside the chart, which has all stretches


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


class Bar(NamedTuple):
    """A row of a table with a bar in it."""

    name: str
    figure: str
    share: float  # of the longest bar: 0 to 1
    kind: str = "plain"  # its colour
    command: str = ""
    more: tuple[str, ...] = ()


def page(report: Report, timeline: Timeline, *, dlq_command: str, now: float) -> str:
    style = files("penstock_producer.reporting.forms").joinpath("page.css").read_text("utf-8")
    template = (
        files("penstock_producer.reporting.forms").joinpath("page.html.jinja").read_text("utf-8")
    )
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return environment.from_string(template).render(
        style=style,
        style_digest=digest,
        job=one_line(report.job, NAME_CHARS),
        state=report.state,
        written=moment(now),
        figures=_figures(report),
        advice=report.advice,
        tiers=_tiers(report),
        reasons=_reasons(report, dlq_command),
        lanes=_lanes(report),
        cost=report.money.words,
        saved=saved_rows(report.saved),
        progress=progress(timeline.stretches),
        stretches=_stretches(timeline),
        latencies=_latencies(timeline),
        effort=_effort(report),
    )


def _figures(report: Report) -> list[tuple[str, str]]:
    return [
        ("succeeded", percent(report.succeeded, report.total)),
        ("documents", f"{count(report.finished)} of {count(report.total)}"),
        ("cost", report.money.words),
        ("time", duration(report.seconds)),
        ("speed", rate(report.items_per_second)),
    ]


def _tiers(report: Report) -> list[Bar]:
    """Return the bars of outcomes; the whole is the job, so that the bars are its shares."""
    rows = [
        ("succeeded at the first try", report.succeeded - report.succeeded_after_retry, "good"),
        ("succeeded after retry", report.succeeded_after_retry, "again"),
        ("failed", report.dead, "bad"),
    ]
    if open_ones := report.total - report.finished:
        rows.append(("not finished", open_ones, "open"))
    whole = max(1, report.total)
    return [
        Bar(name, count(number), number / whole, kind, more=(percent(number, report.total),))
        for name, number, kind in rows
    ]


def _reasons(report: Report, dlq_command: str) -> list[Bar]:
    found = reasons_of(report, dlq_command)
    most = max((row.documents for row in found), default=1)
    return [
        Bar(row.reason, count(row.documents), row.documents / most, "bad", row.command)
        for row in found
    ]


def _lanes(report: Report) -> list[Bar]:
    most = max((one.cost_usd or 0.0 for one in report.cost_by_lane), default=0.0)
    return [
        Bar(
            one_line(lane_name(one)),
            one.money.words,
            (one.cost_usd or 0.0) / most if most else 0.0,
            more=(count(one.documents), count(one.prompt_tokens), count(one.completion_tokens)),
        )
        for one in report.cost_by_lane
    ]


def _latencies(timeline: Timeline) -> list[Bar]:
    most = max((one.milliseconds for one in timeline.latencies), default=0)
    return [
        Bar(
            f"{one.percent} %",
            milliseconds(one.milliseconds),
            one.milliseconds / most if most else 0.0,
        )
        for one in timeline.latencies
    ]


def _stretches(timeline: Timeline) -> list[tuple[str, str, str]]:
    """Return some of the stretches, the last among these."""
    rows = timeline.stretches
    each = max(1, len(rows) // PROGRESS_ROWS)
    some = [*rows[each - 1 : -1 : each], *rows[-1:]]
    return [(duration(one.seconds), count(one.succeeded), count(one.dead)) for one in some]


def _effort(report: Report) -> list[Any]:
    return [
        f"{count(report.calls)} calls, {count(report.retries)} retries, "
        f"{count(report.rate_limited)} rate limited"
        f"{asked_again(report.repairs, report.fallbacks)}",
        f"{count(report.prompt_tokens)} tokens in, {count(report.completion_tokens)} out",
        *effort_lines(report),
    ]
