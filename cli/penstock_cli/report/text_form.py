"""The report as text for people at a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock_producer.reporting.account import Report
from penstock_producer.reporting.forms.plain import effort, headline
from penstock_producer.reporting.text import count, safe

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
    """The report for people: shares, the reasons of the dead letters, what it took, and where the
    files are."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text.assemble(*headline(report)))
    if report.dead:
        table = Table(
            "dead letters",
            "reason",
            box=None,
            pad_edge=False,
            padding=(0, 3, 0, 0),
            header_style="dim",
        )
        for reason, number in report.dead_by_reason.items():
            table.add_row(Text(count(number), justify="right"), Text(safe(reason)))
        console.print(table)
        for text in advice:
            console.print(Text(text, style="yellow"), soft_wrap=True)
        console.print(Text.assemble("list them:  ", (dlq_command, "bold")), soft_wrap=True)
    for text in effort(report):
        console.print(text, style="dim")
    for name, place in (files or {}).items():
        console.print(Text(f"{name:<10} {place}"), soft_wrap=True)
