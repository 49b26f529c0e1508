"""One file with a row for each outcome of a job, in the form that its name or a flag says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

from penstock_producer.errors import SinkError, seen
from penstock_producer.storage import Writer, open_sink
from penstock_producer.tables.arrow import need_pyarrow, parquet_pieces
from penstock_producer.tables.columns import Column, Row
from penstock_producer.tables.csv_form import csv_lines
from penstock_producer.tables.reading import Reading

__all__ = [
    "TABLE_FORMATS",
    "TableFormat",
    "Written",
    "check_format",
    "table_pieces",
    "write_rows",
    "write_table",
]

TableFormat = Literal["parquet", "csv"]
TABLE_FORMATS: Final[tuple[TableFormat, ...]] = get_args(TableFormat)


class Written(NamedTuple):
    place: str
    rows: int
    cursor: str | None  # of the last row, to go on behind it; what was given where there was none


def check_format(form: str) -> TableFormat:
    """Find out before a job starts whether its outcomes can be written so. Raises SinkError."""
    if form not in TABLE_FORMATS:
        raise SinkError(f"{seen(form)} is not a format of tables; use {' or '.join(TABLE_FORMATS)}")
    if form == "parquet":
        need_pyarrow("Parquet")
        return "parquet"
    return "csv"


def write_table(
    reading: Reading,
    destination: str | Path,
    name: str,
    form: TableFormat,
    *,
    escape_formulas: bool = False,
    s3_endpoint_url: str | None = None,
) -> Written:
    """Write ``name`` into a folder or a prefix of a bucket; it appears when it is complete.

    Raises SinkError."""
    check_format(form)
    writer = open_sink(destination, s3_endpoint_url=s3_endpoint_url).create(name)
    try:
        write_rows(writer, reading, reading.table.columns, form, escape_formulas=escape_formulas)
        writer.finish()
        return Written(writer.publish(), reading.number, reading.cursor)
    except BaseException:
        writer.discard()
        raise


def write_rows(
    writer: Writer,
    rows: Iterable[Row],
    columns: Sequence[Column],
    form: TableFormat,
    *,
    escape_formulas: bool = False,
) -> None:
    for piece in table_pieces(rows, columns, form, escape_formulas=escape_formulas):
        writer.write(piece)


def table_pieces(
    rows: Iterable[Row],
    columns: Sequence[Column],
    form: TableFormat,
    *,
    escape_formulas: bool = False,
) -> Iterator[bytes]:
    """Yield the bytes of the file, in their order.

    Raises SinkError with the first piece where what the form needs is missing.
    """
    return (
        parquet_pieces(rows, columns)
        if form == "parquet"
        else csv_lines(rows, columns, escape_formulas=escape_formulas)
    )
