"""Rows as CSV, whole or growing while the job runs, and as one sheet of an Excel workbook.

CSV is as RFC 4180 has it: UTF-8, a header, CRLF between rows, quotes where they are needed. Nothing
between two commas is null, and `""` an empty text: DuckDB, PostgreSQL's COPY and polars can tell
them apart.

openpyxl is imported on first use: it is an extra (`penstock[excel]`). Rows are written as they come
and none is kept; the workbook is a zip, whose sheet lies in a temporary file until the end.

A file that grows, of rows or of output lines, gets what is new with each reading. Beside it lies
`<name>.cursor`: how far the file is whole, and where to go on. It is replaced after the lines are
on disk; what a process that died had written beyond it is cut off by the next. So no result is
missing or there twice."""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import re
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import orjson

from penstock_ledger import Database
from penstock_ledger.lone_surrogates import replace_surrogates
from penstock_ledger.model import Job
from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SinkError, SinkUnfit
from penstock_producer.tables.columns import Column, Row, as_json
from penstock_producer.tables.reading import Lines, Reading

__all__ = [
    "CELL_CHARS",
    "COLUMNS",
    "ROWS",
    "append_results",
    "append_rows",
    "csv_header",
    "csv_lines",
    "csv_rows",
    "vector_text",
    "workbook_pieces",
]


_SPECIAL: Final = re.compile('[",\r\n]')
# What spreadsheets take for the beginning of a formula. See
# https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_lines(
    rows: Iterable[Row], columns: Sequence[Column], *, escape_formulas: bool = False
) -> Iterator[bytes]:
    """Yield the header and a line for each row, each with its end.

    With ``escape_formulas`` a text that a spreadsheet would run gets an apostrophe in front, which
    shows it as text.
    """
    yield csv_header(columns, escape_formulas=escape_formulas)
    yield from csv_rows(rows, escape_formulas=escape_formulas)


def csv_header(columns: Sequence[Column], *, escape_formulas: bool = False) -> bytes:
    return _line([column.name for column in columns], escape_formulas)


def csv_rows(rows: Iterable[Row], *, escape_formulas: bool = False) -> Iterator[bytes]:
    return (_line(row, escape_formulas) for row in rows)


def _line(values: Sequence[Any], escape: bool) -> bytes:
    return replace_surrogates(
        ",".join([_field(value, escape) for value in values]) + "\r\n"
    ).encode()


def _field(value: Any, escape: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _text(value, escape)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return _text(vector_text(value), escape)
    if isinstance(value, list):
        return _text("[" + ",".join(map(vector_text, value)) + "]", escape)
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


def _text(text: str, escape: bool) -> str:
    if escape and text.startswith(_FORMULA):
        text = "'" + text
    if text and _SPECIAL.search(text) is None:
        return text
    return '"' + text.replace('"', '""') + '"'


def vector_text(vector: bytes) -> str:
    """Return a vector as a JSON list, with as many digits as give back the same float32."""
    numbers = struct.unpack(f"<{len(vector) // 4}f", vector)
    return orjson.dumps([float(f"{number:.9g}") for number in numbers]).decode()


# of Excel itself
ROWS: Final = 1_048_576  # of a sheet, its header included
COLUMNS: Final = 16_384
CELL_CHARS: Final = 32_767
PIECE: Final = 1024 * 1024
EXACT: Final = 10**15  # Excel has 15 digits: a longer number would be another one
# what XML cannot hold
_UNFIT: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def workbook_pieces(rows: Iterable[Row], columns: Sequence[Column]) -> Iterator[bytes]:
    """Yield the bytes of the file, in their order.

    A text is a text, whatever it begins with: nothing is a formula. What is longer than a cell
    holds is cut, and ends in `…`. Raises SinkUnfit for more rows or columns than a sheet holds.
    """
    from openpyxl import Workbook

    if len(columns) > COLUMNS:
        raise SinkUnfit(
            Text(
                f"a sheet of Excel has {COLUMNS:,} columns, and the table {len(columns):,}; keep "
                "fewer (",
                SetOption("keep_columns", "a,b"),
                "), or take Parquet",
            )
        )
    book = Workbook(write_only=True)
    sheet = book.create_sheet("results")
    sheet.freeze_panes = "A2"
    sheet.append([_text_cell(sheet, column.name) for column in columns])
    for number, row in enumerate(rows, 2):
        if number > ROWS:
            raise SinkUnfit(f"a sheet of Excel has {ROWS:,} rows; take Parquet or CSV")
        sheet.append([_cell(sheet, value) for value in row])
    with tempfile.TemporaryFile() as file:
        book.save(file)
        file.seek(0, io.SEEK_SET)
        while piece := file.read(PIECE):
            yield piece


def _cell(sheet: Any, value: Any) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            return value if abs(value) < EXACT else _text_cell(sheet, str(value))
        case Decimal():
            return value if abs(value) < EXACT else _text_cell(sheet, str(value))
        case float():
            return value if math.isfinite(value) else None
        case datetime() if value.tzinfo is not None:
            return _text_cell(sheet, value.isoformat())
        case date() if value.year >= 1900:
            return value
        case date():
            return _text_cell(sheet, value.isoformat())
        case str():
            return _text_cell(sheet, value)
        case _:
            return _text_cell(sheet, json.dumps(as_json(value)))


def _text_cell(sheet: Any, text: str) -> Any:
    from openpyxl.cell import WriteOnlyCell

    cell = WriteOnlyCell(sheet)
    clean = _UNFIT.sub("\ufffd", text)
    if len(clean) > CELL_CHARS:
        clean = f"{clean[: CELL_CHARS - 1]}…"
    cell.value = clean
    cell.data_type = "s"
    return cell


PORTION_BYTES: Final = 8 * 1024 * 1024  # between two notes of how far the file is whole
CURSOR_BYTES_MAX: Final = 10_000
LINES: Final = "jsonl"
CSV: Final = "csv"


def append_results(database: Database, job: Job, path: Path) -> int:
    """Append the results that were stored since the last call; returns how many.

    Raises SinkError and PlaceLost."""
    with _opened(path, job, LINES) as (file, note, cursor):
        lines = Lines(database, job, cursor)
        _append(file, note, job, LINES, lines, lines)
        return lines.number


def append_rows(database: Database, job: Job, path: Path, *, escape_formulas: bool = False) -> int:
    """Append a row of CSV for each outcome that was stored since the last call.

    It does what ``append_results`` does with lines.
    """
    with _opened(path, job, CSV) as (file, note, cursor):
        reading = Reading(database, job, cursor)
        columns = reading.table.columns
        begin = (
            []
            if os.fstat(file.fileno()).st_size
            else [csv_header(columns, escape_formulas=escape_formulas)]
        )
        rows = csv_rows(reading, escape_formulas=escape_formulas)
        _append(file, note, job, CSV, chain(begin, rows), reading)
        return reading.number


@contextmanager
def _opened(path: Path, job: Job, form: str) -> Iterator[tuple[IO[bytes], Path, str | None]]:
    """Yield the file cut back to what is whole, its note, and the cursor to go on from."""
    note = path.with_name(path.name + ".cursor")
    try:
        with path.open("ab") as file, _alone(file, path):
            cursor, size = _noted(note, job, form, file, path)
            file.truncate(size)
            yield file, note, cursor
    except OSError as error:
        message = (
            f"cannot write {path}: {error.strerror or error}; choose a file in a folder that can "
            "be written"
        )
        raise SinkError(message) from error


def _append(
    file: IO[bytes],
    note: Path,
    job: Job,
    form: str,
    lines: Iterable[bytes],
    reading: Lines | Reading,
) -> None:
    portion = 0
    for line in lines:
        portion += file.write(line)
        if portion >= PORTION_BYTES:
            _keep(note, job, form, file, reading.cursor)
            portion = 0
    _keep(note, job, form, file, reading.cursor)


def _noted(note: Path, job: Job, form: str, file: IO[bytes], path: Path) -> tuple[str | None, int]:
    """Return the cursor, and how many bytes of the file are whole.

    Raises SinkError for a file that was begun otherwise.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        with note.open("rb") as kept:
            found: Any = orjson.loads(kept.read(CURSOR_BYTES_MAX))
        its_job, cursor, whole = found["job"], found["cursor"], int(found["bytes"])
        its_form = found.get("form", LINES)
    except FileNotFoundError:
        if size:
            raise SinkError(
                Text(
                    f"{path} is there, and was not begun with ",
                    SetOption("partial"),
                    ": name another file, or remove it",
                )
            ) from None
        return None, 0
    except (ValueError, TypeError, LookupError) as error:
        raise SinkError(
            f"{note} does not say where to go on ({error}): remove it and {path}, and begin again"
        ) from None
    if its_job != job.job_id:
        raise SinkError(
            f"{path} has the results of job {its_job}: name another file for job {job.job_id}"
        )
    if its_form != form:
        raise SinkError(
            f"{path} was begun as {its_form}: go on with that, or name another file for {form}"
        )
    if size < whole:
        raise SinkError(
            f"{path} has {size} bytes, and {note} says {whole}: remove both, and begin again"
        )
    return cursor, whole


def _keep(note: Path, job: Job, form: str, file: IO[bytes], cursor: str | None) -> None:
    file.flush()
    os.fsync(file.fileno())
    kept = {
        "job": job.job_id,
        "form": form,
        "cursor": cursor,
        "bytes": os.fstat(file.fileno()).st_size,
    }
    part = note.with_name(note.name + ".part")
    with part.open("wb") as new:
        new.write(orjson.dumps(kept))
        new.flush()
        os.fsync(new.fileno())
    part.replace(note)


@contextmanager
def _alone(file: IO[bytes], path: Path) -> Iterator[None]:
    """Let one process in at a time; the lock ends with the process that has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SinkError(
            f"{path} is being written by another process: wait for it, or name another file"
        ) from None
    yield
