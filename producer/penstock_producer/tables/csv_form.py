"""CSV as RFC 4180 has it: UTF-8, a header, CRLF between rows, quotes where they are needed.

Nothing between two commas is null, and `""` an empty text: DuckDB, PostgreSQL's COPY and polars can tell them apart.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any, Final

import orjson

from penstock_producer.storage import Writer
from penstock_producer.tables.columns import Column, Row

__all__ = ["CsvFile"]

_SPECIAL: Final = re.compile('[",\r\n]')
# What spreadsheets take for the beginning of a formula. See https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


class CsvFile:
    """Rows into one file."""

    def __init__(self, writer: Writer, columns: Sequence[Column], *, escape_formulas: bool = False) -> None:
        """With ``escape_formulas`` a text that a spreadsheet would run gets an apostrophe in front, which shows it as text."""
        self._writer = writer
        self._escape = escape_formulas
        self._line([self._text(column.name) for column in columns])

    def write(self, row: Row) -> None:
        self._line([self._cell(value) for value in row])

    def _line(self, cells: list[str]) -> None:
        self._writer.write((",".join(cells) + "\r\n").encode("utf-8", "replace"))

    def _cell(self, value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, bytes):
            return self._text(vector_text(value))
        if isinstance(value, list):
            return self._text("[" + ",".join(map(vector_text, value)) + "]")
        return repr(value)

    def _text(self, text: str) -> str:
        if self._escape and text.startswith(_FORMULA):
            text = "'" + text
        if text and _SPECIAL.search(text) is None:
            return text
        return '"' + text.replace('"', '""') + '"'


def vector_text(vector: bytes) -> str:
    """A vector as a JSON list, with as many digits as give back the same float32."""
    numbers = struct.unpack(f"<{len(vector) // 4}f", vector)
    return orjson.dumps([float(f"{number:.9g}") for number in numbers]).decode()
