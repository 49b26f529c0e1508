"""Results in other forms: those of `penstock results`, and the tables of `penstock run`.

A run checks its tables before anything is spent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock_cli.errors import UsageProblem
from penstock_cli.files import (
    STDOUT,
    folder_and_name,
    s3_endpoint,
    write_lines,
    write_results,
    write_with_provenance,
)
from penstock_cli.state import is_remote
from penstock_producer.job.sinks import TABLE_FORMATS
from penstock_producer.reporting.text import count

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.tables.database import Filled, TableSink
    from penstock_producer.tables.reading import Reading
    from penstock_producer.tables.with_source import WithSource


START = "start"
# PostgreSQL has 1,600 columns in a table and SQLite 2,000; the answers have up to 520
COLUMNS_KEPT = 1_000
LINES = "jsonl"
FORMATS = (LINES, *TABLE_FORMATS)


@dataclass(frozen=True, slots=True)
class Asked:
    """The flags of `penstock results`."""

    output: str | None
    output_format: str | None
    partial: bool
    after: str | None
    escape_formulas: bool
    into: str | None
    table: str | None
    id_column: str
    keep_columns: str
    order: str
    provenance: bool = False


def write(ledger: Books, job: Job, asked: Asked) -> str:
    """Write them; returns what to tell.

    Raises UsageProblem, SinkError, PlaceLost and ContentError."""
    if asked.into is not None or asked.table is not None:
        if asked.provenance:
            raise UsageProblem(
                "--provenance goes with JSON lines: leave it out, or --into and --table"
            )
        return _into(ledger, job, asked)
    if asked.output is None:
        raise UsageProblem("say where the results go: -o FILE, or --into URL --table T")
    form = _form(asked, asked.output)
    if asked.provenance:
        return _with_provenance(ledger, job, asked, asked.output, form)
    if asked.partial:
        return _appended(ledger, job, asked, asked.output, form)
    if asked.after is None and form == LINES:
        return f"{count(write_results(ledger, job, asked.output))} results in {asked.output}"
    return _written(ledger, job, asked, asked.output, form)


def _with_provenance(ledger: Books, job: Job, asked: Asked, output: str, form: str) -> str:
    if form != LINES or asked.partial or asked.after is not None:
        raise UsageProblem(
            "--provenance goes with all results as JSON lines: leave out --partial and --after, "
            "name a .jsonl"
        )
    return f"{count(write_with_provenance(ledger, job, output))} results in {output}"


def _form(asked: Asked, output: str) -> str:
    """Return the form by the flag, else by the name of the file."""
    suffix = output.rpartition("/")[2].rpartition(".")[2].lower()
    form = asked.output_format or (suffix if suffix in FORMATS else LINES)
    if form not in FORMATS:
        raise UsageProblem(f"--output-format {form!r} is unknown: use {', '.join(FORMATS)}")
    if asked.escape_formulas and form != "csv":
        raise UsageProblem("--escape-formulas is for CSV: leave it out, or add --output-format csv")
    if asked.output_format is None and suffix in ("gz", "zst", "xls", "tsv"):
        raise UsageProblem(
            f"results cannot be written as .{suffix}: name a file that ends in "
            f"{', '.join(f'.{form}' for form in FORMATS)}"
        )
    return form


def _appended(ledger: Books, job: Job, asked: Asked, output: str, form: str) -> str:
    if (
        form not in (LINES, "csv")
        or output == STDOUT
        or is_remote(output)
        or asked.after is not None
    ):
        raise UsageProblem(
            "--partial appends to a local file of JSON lines or CSV. For other forms and places: "
            f"--after {START}, and then --after with the cursor that is printed, each time with a "
            "new file"
        )
    from penstock_producer.tables.sheets import append_results, append_rows

    if form == LINES:
        return (
            f"{count(append_results(ledger.database, job, Path(output)))} new results in {output}"
        )
    rows = append_rows(ledger.database, job, Path(output), escape_formulas=asked.escape_formulas)
    return f"{count(rows)} new documents in {output}"


def _written(ledger: Books, job: Job, asked: Asked, output: str, form: str) -> str:
    from penstock_producer.tables.reading import Lines
    from penstock_producer.tables.with_source import table_pieces, write_table

    after = None if asked.after == START else asked.after
    reading: Lines | Reading | WithSource
    if form == LINES:
        reading = Lines(ledger.database, job, after)
        write_lines(output, reading)
    else:
        reading = _rows(ledger, job, asked, form, after)
        escape = asked.escape_formulas
        if form == "csv" and output == STDOUT:
            write_lines(
                output, table_pieces(reading, reading.columns, form, escape_formulas=escape)
            )
        elif output == STDOUT:
            raise UsageProblem(f"{form} is not for standard output: name a file")
        else:
            folder, name = folder_and_name(output)
            endpoint = s3_endpoint(output)
            write_table(
                reading, folder, name, form, s3_endpoint_url=endpoint, escape_formulas=escape
            )
    said = f"{count(reading.number)} {'results' if form == LINES else 'documents'} in {output}"
    return said if asked.after is None else f"{said}; go on with --after {reading.cursor or START}"


def _rows(
    ledger: Books, job: Job, asked: Asked, form: str, after: str | None
) -> Reading | WithSource:
    from penstock_producer.settings import ProducerSettings
    from penstock_producer.tables.reading import Reading
    from penstock_producer.tables.with_source import reading_of

    if asked.after is not None:  # by cursors, which are in the order of completion
        return Reading(ledger.database, job, after)
    return reading_of(
        ledger.database,
        job,
        ProducerSettings.load(),
        keep=asked.keep_columns,
        order=asked.order,
        form=form,
    )


def _into(ledger: Books, job: Job, asked: Asked) -> str:
    if asked.into is None or asked.table is None:
        raise UsageProblem("--into URL and --table T belong together: give both")
    if asked.output is not None or asked.after is not None or asked.partial:
        raise UsageProblem(
            "--into keeps its own place in the table: leave out -o, --after and --partial"
        )
    filled = fill_table(
        ledger, job, asked.into, asked.table, asked.id_column, asked.keep_columns, asked.order
    )
    missing = (
        f"; {count(filled.missing)} documents have no row there, and the table takes no others"
        if filled.missing
        else ""
    )
    return f"{count(filled.rows)} new rows in table {asked.table}{missing}"


def fill_table(
    ledger: Books, job: Job, into: str, table: str, id_column: str, keep: str, order: str
) -> Filled:
    """Write the rows that are new since the last time; the table is made where there is none.

    Raises SinkError.
    """
    from penstock_producer.settings import ProducerSettings
    from penstock_producer.tables.reading import Reading, end_of
    from penstock_producer.tables.with_source import source_beside

    database = ledger.database
    source = source_beside(database, job, ProducerSettings.load(), keep=keep, order=order)
    with opened_table(into, table, id_column, job.spec, source) as sink:
        sink.prepare()
        reading = Reading(database, job, sink.place(job.job_id))
        end = end_of(database, job) if job.state.final else None
        return sink.fill(job.job_id, reading, end)


@contextmanager
def opened_table(
    into: str,
    table: str,
    id_column: str,
    spec: Mapping[str, Any],
    source: WithSource | None = None,
) -> Iterator[TableSink]:
    """Open the table. Raises SinkError for a URL of something else."""
    from penstock_producer.job.sinks import into_url
    from penstock_producer.tables.columns import Table
    from penstock_producer.tables.database import TableSink

    url = into_url(into, os.environ)
    sink = TableSink(url, table, Table(spec), id_column=id_column, source=source)
    try:
        yield sink
    finally:
        sink.close()


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that results go into, if any."""

    form: str | None  # jsonl means none, as the lines are always written
    escape_formulas: bool
    into: str | None
    table: str
    id_column: str
    keep_columns: str
    order: str

    @classmethod
    def of(cls, spec: JobSpec) -> Self:
        form = None if spec.output_format == "jsonl" else spec.output_format
        return cls(
            form,
            bool(spec.escape_formulas),
            spec.into,
            spec.into_table or "",
            spec.into_id,
            spec.keep_columns,
            spec.order,
        )


def check_tables(wanted: Tables, spec: JobSpec, source: str, out: str) -> None:
    """Find out now what would fail at the end, and leave nothing of it behind.

    Raises UsageProblem, SinkError and SourceError."""
    if wanted.form is not None or wanted.into is not None:
        _check_columns(wanted, spec, source)
    if wanted.form is not None:
        _check_file(wanted.form, source, out)
    if wanted.into is not None:
        from penstock_producer.accepting.results_probe import place_for_trial
        from penstock_producer.job.sinks import into_url

        with (
            place_for_trial(into_url(wanted.into, os.environ)) as tried,
            opened_table(tried, wanted.table, wanted.id_column, spec.to_json()) as sink,
        ):
            sink.try_out()


def _check_columns(wanted: Tables, spec: JobSpec, source: str) -> None:
    """Refuse columns to keep that the source does not have, as far as it says which it has."""
    from penstock_producer.settings import ProducerSettings
    from penstock_producer.sources import open_source
    from penstock_producer.sources.kept import NONE, chosen_columns

    if not spec.takes_records or wanted.keep_columns == NONE or source.startswith("job://"):
        return
    columns = open_source(source, spec, ProducerSettings.load()).columns()
    if columns is not None:
        names = [column.name for column in columns]
        chosen = chosen_columns(wanted.keep_columns, names, spec.id_field)
        kept = len(names) if chosen is None else len(chosen)
        if wanted.into is not None and kept > COLUMNS_KEPT:
            raise UsageProblem(
                f"{source} has {count(kept)} columns, and a table of a database takes "
                f"{count(COLUMNS_KEPT)} of them: name those to keep (--keep-columns a,b), or none"
            )


def write_tables(wanted: Tables, ledger: Books, job: Job, out: str) -> dict[str, str]:
    """Write them; returns the place of each by its purpose. Raises SinkError."""
    places: dict[str, str] = {}
    if wanted.form is not None:
        from penstock_producer.settings import ProducerSettings
        from penstock_producer.tables.with_source import reading_of, write_table

        written = write_table(
            reading_of(
                ledger.database,
                job,
                ProducerSettings.load(),
                keep=wanted.keep_columns,
                order=wanted.order,
                form=wanted.form,
            ),
            out,
            _name(wanted.form),
            wanted.form,
            s3_endpoint_url=s3_endpoint(out),
            escape_formulas=wanted.escape_formulas,
        )
        places["table"] = written.place
    if wanted.into is not None:
        filled = fill_table(
            ledger,
            job,
            wanted.into,
            wanted.table,
            wanted.id_column,
            wanted.keep_columns,
            wanted.order,
        )
        missing = f", {count(filled.missing)} not in it" if filled.missing else ""
        places["rows"] = f"{wanted.table} ({count(filled.rows)} new{missing})"
    return places


def _name(form: str) -> str:
    return f"output.{form}"


def _check_file(form: str, source: str, out: str) -> None:
    from penstock_producer.errors import SinkError
    from penstock_producer.job.sinks import form_named

    try:
        form_named(form)
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
