"""Result files and the report of a job are written here, where they may go.

The report is the job's account from the ledger, in the form that was asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_cli.errors import UsageProblem
from penstock_producer.reporting.text import safe

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job
    from penstock_producer.reporting.account import Report
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock_cli.errors import EXIT_DEAD_LETTERS, EXIT_FAILED, EXIT_OK
from penstock_cli.state import is_remote
from penstock_ledger.lone_surrogates import replace_surrogates
from penstock_producer.reporting.account import Report, gathered
from penstock_producer.reporting.advice import on_terminal
from penstock_producer.reporting.forms import effort, headline, plain_text
from penstock_producer.reporting.text import argument, count
from penstock_producer.reporting.timeline import timeline_of

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_cli.connect import Books
    from penstock_ledger.model import Job


REPORT_NAME = "report.json"
REPORT_MAX_BYTES = 1_000_000  # what is larger is no report
STDOUT = "-"


def s3_endpoint(place: str) -> str | None:
    """Return the configured S3 endpoint, asked for only when something goes to S3.

    Raises SettingsError."""
    from penstock_producer.settings import ProducerSettings

    return ProducerSettings.load().s3_endpoint_url if is_remote(place) else None


def probe(out: str, source: str) -> None:
    """Find out now whether the files can be written at the end. Raises UsageProblem."""
    from penstock_producer.errors import SinkError
    from penstock_producer.outputs import ERRORS_NAME, OUTPUT_NAME, probe_sink

    try:
        probe_sink(out, s3_endpoint_url=s3_endpoint(out))
    except SinkError as error:
        raise UsageProblem(f"--out {out}: {error}") from error
    for name in (
        () if is_remote(out) or is_remote(source) else (OUTPUT_NAME, ERRORS_NAME, REPORT_NAME)
    ):
        written = Path(out) / name
        if written.exists() and Path(source).exists() and os.path.samefile(written, source):
            raise UsageProblem(
                f"--out {out}: {name} there is the source itself and would be overwritten; name "
                "another"
            )
    if is_remote(out) and is_remote(source):
        _keep_apart_in_bucket(out.rstrip("/") + "/", source)
    if (
        not (is_remote(source) or is_remote(out))
        and source.endswith("/")
        and _is_read_with(Path(source), Path(out))
    ):
        raise UsageProblem(
            f"--out {out}: its files would be sources of the next run of {source}; name a folder "
            "beside it, or one in it whose name begins with _"
        )


def _keep_apart_in_bucket(out: str, source: str) -> None:
    """Refuse results that would overwrite the source, or lie below the prefix that is read.

    Raises UsageProblem."""
    from penstock_producer.outputs import ERRORS_NAME, OUTPUT_NAME

    for name in (OUTPUT_NAME, ERRORS_NAME, REPORT_NAME):
        if source == out + name:
            raise UsageProblem(
                f"--out {out}: {name} there is the source itself and would be overwritten; name "
                "another"
            )
    if source.endswith("/") and out.startswith(source):
        raise UsageProblem(
            f"--out {out}: its files would be sources of the next run of {source}; name a prefix "
            "beside it"
        )


def _is_read_with(folder: Path, place: Path) -> bool:
    """Return whether files in ``place`` are read with ``folder``.

    Those are files on all levels but below names that begin with . or _."""
    whole, inside = folder.resolve(), place.resolve()
    return inside.is_relative_to(whole) and not any(
        part.startswith((".", "_")) for part in inside.relative_to(whole).parts
    )


def refuse_other_jobs(out: str, job_key: str) -> None:
    """Refuse a place that holds the results of another job, which are never overwritten.

    Raises UsageProblem.

    `report.json` says whose they are; it is written before the others.
    """
    owner = _job_of(_read_report(out))
    if owner is not None and owner != job_key:
        whose = f"the result files of job {safe(owner)!r}"
    elif owner is None and not is_remote(out) and (names := _unowned(Path(out))):
        whose = f"{' and '.join(names)} of something else"
    else:
        return
    raise UsageProblem(
        f"--out {out} holds {whose}, which job {safe(job_key)!r} would overwrite: give a folder of "
        "its own, for example --out "
        f"{shlex.quote(out.rstrip('/') + '-' + re.sub('[^A-Za-z0-9._-]+', '-', job_key))}"
    )


def _read_report(out: str) -> bytes | None:
    """Return the report that is there; None when there is none.

    Raises UsageProblem where a bucket does not let us look.
    """
    if not is_remote(out):
        with contextlib.suppress(OSError), (Path(out) / REPORT_NAME).open("rb") as file:
            return file.read(REPORT_MAX_BYTES)
        return None
    from penstock_producer.storage import read_object

    return read_object(
        f"{out.rstrip('/')}/{REPORT_NAME}", REPORT_MAX_BYTES, s3_endpoint_url=s3_endpoint(out)
    )


def _job_of(report: bytes | None) -> str | None:
    """Return the job that a `report.json` names; None when it is not a report of a job."""
    try:
        job = json.loads(report or b"")["job"]
    except (ValueError, KeyError, TypeError):
        return None
    return job if isinstance(job, str) else None


def _unowned(out: Path) -> list[str]:
    from penstock_producer.outputs import ERRORS_NAME, OUTPUT_NAME

    return [name for name in (OUTPUT_NAME, ERRORS_NAME, REPORT_NAME) if (out / name).exists()]


def write_outputs(ledger: Books, job: Job, out: str) -> dict[str, str]:
    """Write the result files of a job; returns the place of each by its purpose.

    Raises SinkError."""
    from penstock_producer import outputs

    written = outputs.write_outputs(
        ledger.outcomes, job.job_id, out, s3_endpoint_url=s3_endpoint(out)
    )
    return {"results": written.output, "errors": written.errors}


def write_report(report: Report, out: str) -> str:
    """Write `report.json` into ``out``; returns its place. Raises SinkError."""
    text = json.dumps(report.to_json(), indent=2) + "\n"
    write_lines(f"{out.rstrip('/')}/{REPORT_NAME}", [text.encode()])
    return f"{out.rstrip('/')}/{REPORT_NAME}"


def write_results(ledger: Books, job: Job, place: str) -> int:
    """Write the results of a job as output lines into one file; returns how many.

    Raises SinkError."""
    from penstock_producer.outputs import output_line

    return write_lines(place, map(output_line, ledger.outcomes.results(job.job_id)))


def write_with_provenance(ledger: Books, job: Job, place: str) -> int:
    """Write the results, each line with what made it. Raises SinkError."""
    from penstock_ledger import Provenance, made_by
    from penstock_producer.outputs import provenance_line

    entries = Provenance(ledger.database).in_use(job.job_id)
    lines = (
        provenance_line(
            result, made_by(entries, result.key.generation, result.model, at), job.digest
        )
        for result, at in ledger.outcomes.timed_results(job.job_id)
    )
    return write_lines(place, lines)


def write_errors(ledger: Books, job: Job, place: str, *, reason: str | None = None) -> int:
    """Write the dead letters of a job as error lines into one file; returns how many.

    Raises SinkError."""
    from penstock_producer.outputs import error_line

    return write_lines(
        place, map(error_line, ledger.outcomes.dead_letters(job.job_id, reason=reason))
    )


def folder_and_name(place: str) -> tuple[str, str]:
    """Split the place of a file or an object. Raises UsageProblem for a folder."""
    folder, _, name = place.rpartition("/")
    if not name:
        raise UsageProblem(f"{place!r} is a folder; name a file in it")
    return folder or ("/" if place.startswith("/") else "."), name


def _print(lines: Iterable[bytes]) -> int:
    written = 0
    for line in lines:
        sys.stdout.buffer.write(line)
        written += 1
    sys.stdout.buffer.flush()
    return written


def write_lines(place: str, lines: Iterable[bytes]) -> int:
    """Write all lines or none: the file appears when it is complete.

    ``-`` is standard output.
    """
    if place == STDOUT:
        return _print(lines)
    from penstock_producer.storage import discarded_on_error, open_sink

    folder, name = folder_and_name(place)
    sink = open_sink(folder, s3_endpoint_url=s3_endpoint(place))
    written = 0
    with discarded_on_error(sink.create(name)) as writer:
        for line in lines:
            writer.write(line)
            written += 1
        writer.finish()
        writer.publish()
    return written


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
