"""What `penstock run` writes beside its JSON lines: a table in a file, rows of a database.

Checked before anything is spent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from penstock_cli.errors import UsageProblem
from penstock_cli.files import is_remote, s3_endpoint
from penstock_cli.result_forms import fill_table, opened_table
from penstock_producer.reporting.text import count

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job
    from penstock_producer.job.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Tables:
    """Where results go as tables, if anywhere."""

    form: str | None  # jsonl means none, as the lines are always written
    escape_formulas: bool
    into: str | None
    table: str
    id_column: str

    @classmethod
    def of(cls, spec: JobSpec) -> Self:
        form = None if spec.output_format == "jsonl" else spec.output_format
        return cls(form, bool(spec.escape_formulas), spec.into, spec.into_table or "", spec.into_id)


def check(wanted: Tables, spec: JobSpec, source: str, out: str) -> None:
    """Find out now what would fail at the end; a table that is missing is made.

    Raises UsageProblem and SinkError."""
    if wanted.form is not None:
        _check_file(wanted.form, source, out)
    if wanted.into is not None:
        with opened_table(wanted.into, wanted.table, wanted.id_column, spec.to_json()):
            pass


def write(wanted: Tables, ledger: Books, job: Job, out: str) -> dict[str, str]:
    """Write them; returns the place of each by its purpose. Raises SinkError."""
    places: dict[str, str] = {}
    if wanted.form is not None:
        from penstock_producer.tables.reading import Reading
        from penstock_producer.tables.write import check_format, write_table

        written = write_table(
            Reading(ledger.database, job),
            out,
            _name(wanted.form),
            check_format(wanted.form),
            s3_endpoint_url=s3_endpoint(out),
            escape_formulas=wanted.escape_formulas,
        )
        places["table"] = written.place
    if wanted.into is not None:
        filled = fill_table(ledger, job, wanted.into, wanted.table, wanted.id_column)
        missing = f", {count(filled.missing)} not in it" if filled.missing else ""
        places["rows"] = f"{wanted.table} ({count(filled.rows)} new{missing})"
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
    local = (
        not is_remote(out) and not is_remote(source) and written.exists() and Path(source).exists()
    )
    if local and os.path.samefile(written, source):
        raise UsageProblem(
            f"--out {out}: {written.name} there is the source and would be overwritten; name "
            "another"
        )
