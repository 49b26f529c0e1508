"""The report of a job: its account from the ledger, and the forms in which it is given."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock_cli.errors import EXIT_DEAD_LETTERS, EXIT_FAILED, EXIT_OK, UsageProblem
from penstock_cli.files import STDOUT, write_lines
from penstock_ledger.lone_surrogates import replace_surrogates
from penstock_producer.reporting.account import Report, gathered
from penstock_producer.reporting.advice import on_terminal
from penstock_producer.reporting.forms import effort, headline, plain_text
from penstock_producer.reporting.text import argument, count, safe
from penstock_producer.reporting.timeline import timeline_of

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_cli.connect import Books
    from penstock_ledger.model import Job


def report_of(
    ledger: Books, job: Job, *, stats: Mapping[str, int] | None = None, seconds: float | None = None
) -> Report:
    """Return the report of a job.

    ``stats`` and ``seconds`` are given where the caller knows better than the ledger.
    """
    return gathered(
        ledger.database,
        job,
        stats=ledger.stats(job) if stats is None else stats,
        seconds=ledger.seconds(job) if seconds is None else seconds,
        sizes=True,
    )


def exit_status(report: Report) -> int:
    """Return 0 where all succeeded, 3 if finished with dead letters, 1 for anything else."""
    if report.state != "completed":
        return EXIT_FAILED
    return EXIT_DEAD_LETTERS if report.dead else EXIT_OK


def show(
    report: Report,
    console: Console,
    *,
    dlq_command: str,
    advice: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> None:
    """Print the report: shares, reasons of the dead letters, what it took, where the files are."""
    from rich.text import Text

    console.print(Text.assemble(*headline(report)))
    if report.dead:
        from penstock_cli.show.terminal import plain_table

        table = plain_table("dead letters", "reason")
        for reason, number in report.dead_by_reason.items():
            table.add_row(Text(count(number), justify="right"), Text(safe(reason)))
        console.print(table)
        for text in advice:
            console.print(Text(text, style="yellow"), soft_wrap=True)
        console.print(Text.assemble("list them:  ", (dlq_command, "bold")), soft_wrap=True)
    for text in effort(report):
        console.print(on_terminal(text), style="dim")
    for name, place in (files or {}).items():
        console.print(Text(f"{name:<10} {place}"), soft_wrap=True)


class Form(StrEnum):
    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


_ENDINGS: Final = {
    "json": Form.JSON,
    "md": Form.MARKDOWN,
    "markdown": Form.MARKDOWN,
    "html": Form.HTML,
    "htm": Form.HTML,
}


def form_of(asked: str, output: str | None) -> Form:
    """Return the form that was asked for, else by the file's ending. Raises UsageProblem."""
    if not asked:
        return _ENDINGS.get((output or "").rpartition("/")[2].rpartition(".")[2].lower(), Form.TEXT)
    try:
        return Form(asked)
    except ValueError:
        raise UsageProblem(f"--format {asked!r} is unknown: use {', '.join(Form)}") from None


def put(ledger: Books, job: Job, report: Report, form: Form, output: str | None) -> str | None:
    """Write it to ``output``, or to the terminal; returns what to tell besides.

    Raises SinkError and UsageProblem."""
    command = f"penstock dlq list {argument(job.job_key)}{ledger.option()}"
    if form is Form.TEXT and output in (None, STDOUT):
        from penstock_cli.show.terminal import console

        show(report, console(), dlq_command=command, advice=report.advice)
        return None
    place = STDOUT if output is None else output
    write_lines(place, [replace_surrogates(_written(ledger, job, report, form, command)).encode()])
    return None if place == STDOUT else f"the report is in {place}"


def _written(ledger: Books, job: Job, report: Report, form: Form, command: str) -> str:
    match form:
        case Form.JSON:
            return _as_json(report)
        case Form.TEXT:
            return plain_text(report, dlq_command=command)
        case Form.MARKDOWN:
            from penstock_producer.reporting.forms import markdown

            return markdown(
                report, timeline_of(ledger.outcomes, job), dlq_command=command, now=time.time()
            )
        case Form.HTML:
            from penstock_producer.reporting.forms import page

            return page(
                report, timeline_of(ledger.outcomes, job), dlq_command=command, now=time.time()
            )


def _as_json(report: Report) -> str:
    import orjson

    return orjson.dumps(report.to_json()).decode() + "\n"
