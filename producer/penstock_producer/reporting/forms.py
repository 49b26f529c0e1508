"""The report of a job in the forms that people read: text, Markdown, and one page of HTML.

The page has no script, nothing from elsewhere, and nothing in it that a document could have
written. The points of a chart's lines are computed apart: the page draws them."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

from jinja2 import Environment, StrictUndefined

from penstock_producer.reporting.text import (
    asked_again,
    count,
    duration,
    one_line,
    percent,
    rate,
    safe,
)
from penstock_producer.reporting.words import (
    effort_lines,
    lane_lines,
    lane_name,
    milliseconds,
    moment,
    reasons_of,
    saved_rows,
)

if TYPE_CHECKING:
    from penstock_producer.reporting.account import Report
    from penstock_producer.reporting.timeline import Stretch, Timeline

__all__ = ["Progress", "effort", "headline", "markdown", "page", "plain_text", "progress"]


GAP = "   "
DEAD_LETTERS = "dead letters"


def plain_text(report: Report, *, dlq_command: str) -> str:
    """Return the report without colours, with a line break only where a sentence ends."""
    return "\n".join(_lines(report, dlq_command)) + "\n"


def headline(report: Report) -> list[tuple[str, str]]:
    """Return each part of the first line, with the colour that a terminal gives it."""
    parts = [
        (
            f"{percent(report.succeeded, report.total)} succeeded",
            "green" if report.succeeded else "default",
        ),
        (f", {percent(report.succeeded_after_retry, report.total)} after retry, ", ""),
        (f"{percent(report.dead, report.total)} dead", "red" if report.dead else "default"),
        (
            f"  ({count(report.succeeded)} + {count(report.dead)} of {count(report.total)} "
            "documents)",
            "",
        ),
    ]
    return parts if report.state == "completed" else [*parts, (f"  {report.state}", "yellow")]


def effort(report: Report) -> list[str]:
    """Return what the job took, and what was changed or saved on the way."""
    return [
        " · ".join((_pace(report), *_calls(report))),
        f"{count(report.prompt_tokens)} tokens in, {count(report.completion_tokens)} out · "
        f"{_cost(report)}",
        *lane_lines(report.cost_by_lane),
        *effort_lines(report, saved=True),
    ]


def _pace(report: Report) -> str:
    return f"{duration(report.seconds)} at {rate(report.items_per_second)}"


def _calls(report: Report) -> tuple[str, str, str]:
    again = asked_again(report.repairs, report.fallbacks)
    return (
        f"{count(report.calls)} calls",
        f"{count(report.retries)} retries",
        f"{count(report.rate_limited)} rate limited{again}",
    )


def _lines(report: Report, dlq_command: str) -> Iterator[str]:
    yield "".join(part for part, _ in headline(report))
    if report.dead:
        yield f"{DEAD_LETTERS}{GAP}reason"
        for reason, number in report.dead_by_reason.items():
            yield f"{count(number):>{len(DEAD_LETTERS)}}{GAP}{safe(reason)}"
        yield from map(safe, report.advice)
        yield f"list them:  {dlq_command}"
    yield from effort(report)


def _cost(report: Report) -> str:
    if report.cost_usd is None and not report.known_usd:
        return "cost unknown, as a price is missing"
    gpu = " of GPU time" if report.cost_usd and report.gpu_cost_usd == report.cost_usd else ""
    return f"{report.money.words}{gpu}"


CELL_CHARS = 300
_SPECIAL = re.compile(
    r"([\\`*_{}\[\]<>()#!|~&$@:])"
)  # what Markdown, or HTML in it, would take for its own
_BACKTICKS = re.compile(r"`+")


def markdown(report: Report, timeline: Timeline, *, dlq_command: str, now: float) -> str:
    lines = [
        f"# Report of job {plain(report.job)}",
        "",
        f"{plain(report.state)} · written {moment(now)}",
        "",
        *_account(report),
        *_reasons(report, dlq_command),
        *_lanes(report),
        *_saved(report),
        *_timeline(timeline),
        *_effort(report),
    ]
    return "\n".join(lines).rstrip() + "\n"


def plain(text: str) -> str:
    """Escape foreign text so that no renderer takes it for markup."""
    return _SPECIAL.sub(r"\\\1", one_line(text, CELL_CHARS))


def code(text: str) -> str:
    """Return foreign text as code, in more backticks than it has itself.

    Within a table a bar ends the cell even there.
    """
    shown = one_line(text, CELL_CHARS).replace("|", "\\|")
    longest = max((len(found) for found in _BACKTICKS.findall(shown)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {shown} {fence}" if longest else f"{fence}{shown}{fence}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Return a table; the first ``left`` columns are text, the others figures."""
    marks = ["---" if place < left else "---:" for place in range(len(header))]
    return [f"| {' | '.join(row)} |" for row in (header, marks, *rows)]


def _account(report: Report) -> Iterator[str]:
    first_time = report.succeeded - report.succeeded_after_retry
    rows = [
        ("succeeded at the first try", first_time),
        ("succeeded after retry", report.succeeded_after_retry),
        ("failed", report.dead),
    ]
    if open_ones := report.total - report.finished:
        rows.append(("not finished", open_ones))
    shown = [(name, count(number), percent(number, report.total)) for name, number in rows]
    yield from _table(("documents", count(report.total), ""), shown)
    yield ""
    for sentence in report.advice:
        yield f"> {plain(sentence)}"
        yield ""


def _reasons(report: Report, dlq_command: str) -> Iterator[str]:
    if not report.dead:
        return
    yield from ("## Failed", "")
    rows = [
        (plain(row.reason), code(row.command) if row.command else "", count(row.documents))
        for row in reasons_of(report, dlq_command)
    ]
    yield from _table(("reason", "list them", "documents"), rows, left=2)
    yield ""


def _lanes(report: Report) -> Iterator[str]:
    if not report.cost_by_lane:
        return
    yield from ("## Cost", "")
    rows = [
        (
            plain(lane_name(one)),
            count(one.documents),
            count(one.prompt_tokens),
            count(one.completion_tokens),
            one.money.words,
        )
        for one in report.cost_by_lane
    ]
    total = (
        "together",
        count(report.finished),
        count(report.prompt_tokens),
        count(report.completion_tokens),
    )
    yield from _table(
        ("lane", "documents", "tokens in", "tokens out", "cost"),
        [*rows, (*total, report.money.words)],
    )
    yield ""


def _saved(report: Report) -> Iterator[str]:
    if rows := saved_rows(report.saved):
        yield from (*_table(("saved by", "about"), rows), "")


def _timeline(timeline: Timeline) -> Iterator[str]:
    if timeline.latencies:
        yield from ("## Latency", "")
        rows = [(f"{one.percent} %", milliseconds(one.milliseconds)) for one in timeline.latencies]
        yield from (*_table(("of the answers took at most", "time"), rows), "")


def _effort(report: Report) -> Iterator[str]:
    yield from ("## Effort", "")
    yield "- " + ", ".join((_pace(report), *_calls(report)))
    yield from (f"- {plain(sentence)}" for sentence in effort_lines(report))


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
    style = files("penstock_producer.reporting").joinpath("page.css").read_text("utf-8")
    template = files("penstock_producer.reporting").joinpath("page.html.jinja").read_text("utf-8")
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
        reasons=_reason_bars(report, dlq_command),
        lanes=_lane_bars(report),
        cost=report.money.words,
        saved=saved_rows(report.saved),
        progress=progress(timeline.stretches),
        stretches=_stretches(timeline),
        latencies=_latencies(timeline),
        effort=_calls_and_tokens(report),
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


def _reason_bars(report: Report, dlq_command: str) -> list[Bar]:
    found = reasons_of(report, dlq_command)
    most = max((row.documents for row in found), default=1)
    return [
        Bar(row.reason, count(row.documents), row.documents / most, "bad", row.command)
        for row in found
    ]


def _lane_bars(report: Report) -> list[Bar]:
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


def _calls_and_tokens(report: Report) -> list[str]:
    return [
        ", ".join(_calls(report)),
        f"{count(report.prompt_tokens)} tokens in, {count(report.completion_tokens)} out",
        *effort_lines(report),
    ]
