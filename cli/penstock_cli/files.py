"""The result files of a job: where they go, and whether they can go there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_cli.errors import UsageProblem

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_cli.report import Report
    from penstock_ledger.model import Job

REPORT_NAME = "report.json"
STDOUT = "-"


def is_remote(place: str) -> bool:
    return "://" in place


def s3_endpoint(place: str) -> str | None:
    """The configured S3 endpoint, asked for only when something goes to S3. Raises SettingsError."""
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
    for name in () if is_remote(out) or is_remote(source) else (OUTPUT_NAME, ERRORS_NAME, REPORT_NAME):
        written = Path(out) / name
        if written.exists() and Path(source).exists() and os.path.samefile(written, source):
            raise UsageProblem(f"--out {out}: {name} there is the source itself and would be overwritten; name another")


def write_outputs(ledger: Books, job: Job, out: str) -> dict[str, str]:
    """Write the result files of a job; returns the place of each by its purpose. Raises SinkError."""
    from penstock_producer import outputs

    written = outputs.write_outputs(ledger.outcomes, job.job_id, out, s3_endpoint_url=s3_endpoint(out))
    return {"results": written.output, "errors": written.errors}


def write_report(report: Report, out: str) -> str:
    """Write `report.json` into ``out``; returns its place. Raises SinkError."""
    text = json.dumps(report.to_json(), indent=2) + "\n"
    _write(f"{out.rstrip('/')}/{REPORT_NAME}", [text.encode()])
    return f"{out.rstrip('/')}/{REPORT_NAME}"


def write_results(ledger: Books, job: Job, place: str) -> int:
    """Write the results of a job as output lines into one file; returns how many. Raises SinkError."""
    from penstock_producer.outputs import output_line

    return _write(place, map(output_line, ledger.outcomes.results(job.job_id)))


def write_errors(ledger: Books, job: Job, place: str, *, reason: str | None = None) -> int:
    """Write the dead letters of a job as error lines into one file; returns how many. Raises SinkError."""
    from penstock_producer.outputs import error_line

    return _write(place, map(error_line, ledger.outcomes.dead_letters(job.job_id, reason=reason)))


def _print(lines: Iterable[bytes]) -> int:
    written = 0
    for line in lines:
        sys.stdout.buffer.write(line)
        written += 1
    sys.stdout.buffer.flush()
    return written


def _write(place: str, lines: Iterable[bytes]) -> int:
    """All lines or none: the file appears when it is complete. ``-`` is standard output."""
    if place == STDOUT:
        return _print(lines)
    from penstock_producer.storage import open_sink

    folder, _, name = place.rpartition("/")
    if not name:
        raise UsageProblem(f"{place!r} is a folder; name a file in it")
    sink = open_sink(folder or ("/" if place.startswith("/") else "."), s3_endpoint_url=s3_endpoint(place))
    writer = sink.create(name)
    written = 0
    try:
        for line in lines:
            writer.write(line)
            written += 1
        writer.finish()
        writer.publish()
    except BaseException:
        writer.discard()
        raise
    return written
