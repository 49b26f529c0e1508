"""One file with a row for each outcome of a job, in the form that its name or a flag says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock_producer.result_formats import form_named
from penstock_producer.storage import Writer, open_sink
from penstock_producer.tables.columns import Column, Row
from penstock_producer.tables.reading import Reading
from penstock_producer.tables.with_source import WithSource

__all__ = ["Written", "table_pieces", "write_rows", "write_table"]


class Written(NamedTuple):
    place: str
    rows: int
    cursor: str | None  # of the last row, to go on behind it; what was given where there was none


def write_table(
    reading: Reading | WithSource,
    destination: str | Path,
    name: str,
    form: str,
    *,
    escape_formulas: bool = False,
    s3_endpoint_url: str | None = None,
) -> Written:
    """Write ``name`` into a folder or a prefix of a bucket; it appears when it is complete.

    Raises SinkError."""
    form_named(form)
    writer = open_sink(destination, s3_endpoint_url=s3_endpoint_url).create(name)
    try:
        write_rows(writer, reading, reading.columns, form, escape_formulas=escape_formulas)
        writer.finish()
        return Written(writer.publish(), reading.number, reading.cursor)
    except BaseException:
        writer.discard()
        raise


def write_rows(
    writer: Writer,
    rows: Iterable[Row],
    columns: Sequence[Column],
    form: str,
    *,
    escape_formulas: bool = False,
) -> None:
    for piece in table_pieces(rows, columns, form, escape_formulas=escape_formulas):
        writer.write(piece)


def table_pieces(
    rows: Iterable[Row], columns: Sequence[Column], form: str, *, escape_formulas: bool = False
) -> Iterator[bytes]:
    """Yield the bytes of the file, in their order.

    Raises SinkError where what the form needs is missing.
    """
    found = form_named(form)
    more = {"escape_formulas": escape_formulas} if found.escapes else {}
    pieces: Iterator[bytes] = found.load()(rows, columns, **more)
    return pieces
