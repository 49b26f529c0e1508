"""CSV as RFC 4180 has it: UTF-8, a header, CRLF between rows, quotes where they are needed.

Nothing between two commas is null, and `""` an empty text: DuckDB, PostgreSQL's COPY and polars can
tell them apart.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import Any, Final

import orjson

from penstock_ledger.lone_surrogates import replace_surrogates
from penstock_producer.tables.columns import Column, Row

__all__ = ["csv_header", "csv_lines", "csv_rows", "vector_text"]

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
        ",".join([_cell(value, escape) for value in values]) + "\r\n"
    ).encode()


def _cell(value: Any, escape: bool) -> str:
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
