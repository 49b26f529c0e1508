"""Rows as CSV, and as one sheet of an Excel workbook.

CSV is as RFC 4180 has it: UTF-8, a header, CRLF between rows, quotes where they are needed. Nothing
between two commas is null, and `""` an empty text: DuckDB, PostgreSQL's COPY and polars can tell
them apart.

openpyxl is imported on first use: it is an extra (`penstock[excel]`). Rows are written as they come
and none is kept; the workbook is a zip, whose sheet lies in a temporary file until the end.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import orjson

from penstock_ledger.lone_surrogates import replace_surrogates
from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SinkUnfit
from penstock_producer.tables.columns import Column, Row, as_json

__all__ = [
    "CELL_CHARS",
    "COLUMNS",
    "ROWS",
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
