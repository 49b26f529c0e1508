"""What `penstock run` writes beside its JSON lines: a table in a file, rows of a database. Checked before anything is spent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_cli.errors import UsageProblem
from penstock_cli.files import is_remote, s3_endpoint
from penstock_cli.result_forms import fill_table
from penstock_cli.show.text import count

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job
    from penstock_producer.job.spec import JobSpec


@dataclass(frozen=True, slots=True)
class TableFlags:
    """Where results go as tables, if anywhere."""

    output_format: str | None = None  # jsonl means none, as the lines are always written
    escape_formulas: bool = False
    into: str | None = None
    table: str | None = None

    @property
    def form(self) -> str | None:
        return None if self.output_format == "jsonl" else self.output_format


def check(flags: TableFlags, spec: JobSpec, source: str, out: str) -> None:
    """Find out now what would fail at the end; a table that is missing is made. Raises UsageProblem and SinkError."""
    if (flags.into is None) != (flags.table is None):
        raise UsageProblem("--into URL and --into-table T belong together: give both")
    if flags.escape_formulas and flags.form != "csv":
        raise UsageProblem("--escape-formulas is for CSV: leave it out, or add --output-format csv")
    if flags.form is not None:
        _check_file(flags.form, source, out)
    if flags.into is not None and flags.table is not None:
        from penstock_producer.tables.columns import Table
        from penstock_producer.tables.database import TableSink

        sink = TableSink(flags.into, flags.table, Table(spec.to_json()).columns)
        try:
            sink.prepare()
        finally:
            sink.close()


def write(flags: TableFlags, ledger: Books, job: Job, out: str) -> dict[str, str]:
    """Write them; returns the place of each by its purpose. Raises SinkError."""
    places: dict[str, str] = {}
    if flags.form is not None:
        from penstock_producer.tables.reading import Reading
        from penstock_producer.tables.write import check_format, write_table

        form, endpoint = check_format(flags.form), s3_endpoint(out)
        reading, options = Reading(ledger.database, job), {"escape_formulas": flags.escape_formulas}
        written = write_table(reading, out, _name(form), form, s3_endpoint_url=endpoint, **options)
        places["table"] = written.place
    if flags.into is not None and flags.table is not None:
        places["rows"] = f"{flags.table} ({count(fill_table(ledger, job, flags.into, flags.table))} new)"
    return places


def _name(form: str) -> str:
    return f"output.{form}"


def _check_file(form: str, source: str, out: str) -> None:
    from penstock_producer.errors import SinkError
    from penstock_producer.tables.write import check_format

    try:
        check_format(form)
    except SinkError as error:
        raise UsageProblem(f"--output-format {form}: {error}") from error
    written = Path(out) / _name(form)
    local = not is_remote(out) and not is_remote(source) and written.exists() and Path(source).exists()
    if local and os.path.samefile(written, source):
        raise UsageProblem(f"--out {out}: {written.name} there is the source and would be overwritten; name another")
