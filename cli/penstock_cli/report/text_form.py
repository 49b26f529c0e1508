"""The report as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock_producer.reporting.account import Report
from penstock_producer.reporting.changes import changes
from penstock_producer.reporting.reasons import retried_line, reused_lines
from penstock_producer.reporting.text import asked_again, count, duration, percent, rate, safe, usd
from penstock_producer.reporting.words import batches_line, lane_lines, made_with_line, saved_line, twice_line

if TYPE_CHECKING:
    from rich.console import Console


def show(
    report: Report,
    console: Console,
    *,
    dlq_command: str,
    advice: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> None:
    """The report for people: shares, the reasons of the dead letters, what it took, and where the files are."""
    from rich.table import Table
    from rich.text import Text

    console.print(_headline(report))
    if report.dead:
        table = Table("dead letters", "reason", box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
        for reason, number in report.dead_by_reason.items():
            table.add_row(Text(count(number), justify="right"), Text(safe(reason)))
        console.print(table)
        for text in advice:
            console.print(Text(text, style="yellow"), soft_wrap=True)
        console.print(Text.assemble("list them:  ", (dlq_command, "bold")), soft_wrap=True)
    for text in _effort(report):
        console.print(text, style="dim")
    for name, place in (files or {}).items():
        console.print(Text(f"{name:<10} {place}"), soft_wrap=True)


def _headline(report: Report) -> Any:
    from rich.text import Text

    parts: list[str | tuple[str, str]] = [
        (f"{percent(report.succeeded, report.total)} succeeded", "green" if report.succeeded else "default"),
        f", {percent(report.succeeded_after_retry, report.total)} after retry, ",
        (f"{percent(report.dead, report.total)} dead", "red" if report.dead else "default"),
        f"  ({count(report.succeeded)} + {count(report.dead)} of {count(report.total)} documents)",
    ]
    if report.state != "completed":
        parts.append((f"  {report.state}", "yellow"))
    return Text.assemble(*parts)


def _effort(report: Report) -> list[str]:
    retried = retried_line(report.retried_by_reason)
    return [
        f"{duration(report.seconds)} at {rate(report.items_per_second)} · {count(report.calls)} calls · "
        f"{count(report.retries)} retries · {count(report.rate_limited)} rate limited"
        f"{asked_again(report.repairs, report.fallbacks)}",
        f"{count(report.prompt_tokens)} tokens in, {count(report.completion_tokens)} out · {_cost(report)}",
        *lane_lines(report.cost_by_lane),
        *batches_line(report.batches),
        *reused_lines(report.deduplicated, report.cached),
        *saved_line(report.saved),
        *([] if retried is None else [retried]),
        *twice_line(report),
        *dict.fromkeys(map(made_with_line, report.made_with)),
        *changes(report.rows_cut, report.tokens_saved),
    ]


def _cost(report: Report) -> str:
    if report.cost_usd is None:
        return "cost unknown, as a price is missing"
    return (
        f"{usd(report.cost_usd)}{' of GPU time' if report.cost_usd and report.gpu_cost_usd == report.cost_usd else ''}"
    )
