"""`penstock report`: the form that was asked for, and where it goes."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock_cli.errors import UsageProblem
from penstock_cli.files import STDOUT, write_lines
from penstock_ledger.lone_surrogates import replace_surrogates
from penstock_producer.reporting.course import course_of
from penstock_producer.reporting.forms.plain import plain_text
from penstock_producer.reporting.text import argument

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job
    from penstock_producer.reporting.account import Report


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
    """As it was asked for, else as the name of the file ends. Raises UsageProblem."""
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
        from penstock_cli.report.text_form import show
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
            from penstock_producer.reporting.forms.markdown import markdown

            return markdown(
                report, course_of(ledger.outcomes, job), dlq_command=command, now=time.time()
            )
        case Form.HTML:
            from penstock_producer.reporting.forms.page import page

            return page(
                report, course_of(ledger.outcomes, job), dlq_command=command, now=time.time()
            )


def _as_json(report: Report) -> str:
    import orjson

    return orjson.dumps(report.to_json()).decode() + "\n"
