"""Results appended to a local file of output lines, or rows to one of CSV, while the job runs.

Each reading adds what is new.

Beside the file lies `<name>.cursor`: how far the file is whole, and where to go on. It is replaced
after the lines are on disk; what a process that died had written beyond it is cut off by the next.
So no result is missing or there twice.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

import orjson

from penstock_ledger import Database
from penstock_ledger.model import Job
from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SinkError
from penstock_producer.tables.reading import Lines, Reading
from penstock_producer.tables.sheets import csv_header, csv_rows

__all__ = ["append_results", "append_rows"]

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
