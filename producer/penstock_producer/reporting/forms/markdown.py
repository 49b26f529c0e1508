"""The report as Markdown: for a pull request, a ticket or a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

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
    from penstock_producer.reporting.timeline import Timeline

__all__ = ["markdown"]

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
    yield (
        f"- {duration(report.seconds)} at {rate(report.items_per_second)}, {count(report.calls)} "
        f"calls, {count(report.retries)} retries, {count(report.rate_limited)} rate limited"
        f"{asked_again(report.repairs, report.fallbacks)}"
    )
    yield from (f"- {plain(sentence)}" for sentence in effort_lines(report))
