"""The report as text: shares, the reasons of the dead letters, and what it took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock_producer.reporting.text import asked_again, count, duration, percent, rate, safe
from penstock_producer.reporting.words import (
    effort_lines,
    lane_lines,
)

if TYPE_CHECKING:
    from penstock_producer.reporting.account import Report

__all__ = ["effort", "headline", "plain_text"]

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
        f"{duration(report.seconds)} at {rate(report.items_per_second)} · {count(report.calls)} "
        f"calls · {count(report.retries)} retries · {count(report.rate_limited)} rate limited"
        f"{asked_again(report.repairs, report.fallbacks)}",
        f"{count(report.prompt_tokens)} tokens in, {count(report.completion_tokens)} out · "
        f"{_cost(report)}",
        *lane_lines(report.cost_by_lane),
        *effort_lines(report, saved=True),
    ]


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
