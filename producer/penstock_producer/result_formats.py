"""The forms of files that tables of results are written in, one row each: the only list of them.

To add one: a function that makes its bytes of rows, and its row here. Flags, media types and
messages follow. Light to import: the function is named, and imported when a table is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, util
from typing import Any, Final, Literal, get_args

from penstock_producer.errors import SinkError, seen

__all__ = [
    "TABLE_FORMATS",
    "TableForm",
    "TableFormat",
    "form_named",
    "media_types",
    "tables_in_words",
]

TableFormat = Literal["csv", "parquet", "xlsx"]
TABLE_FORMATS: Final[tuple[TableFormat, ...]] = get_args(TableFormat)


@dataclass(frozen=True, slots=True)
class TableForm:
    """One form."""

    name: TableFormat
    title: str  # in messages
    media_type: str
    pieces: str  # module:function of rows and columns, which yields the bytes of the file
    package: str = ""  # what that imports and not every installation has,
    extra: str = ""  # and our extra that brings it
    escapes: bool = False  # whether it can put an apostrophe before what a spreadsheet would run
    in_arrow: bool = False  # whether values have the types of Arrow
    as_written: bool = False  # whether the texts of a CSV stay as they were written

    def load(self) -> Callable[..., Any]:
        """Return the function that makes the bytes, imported now."""
        module, _, name = self.pieces.partition(":")
        found: Callable[..., Any] = getattr(import_module(module), name)
        return found

    def require(self) -> None:
        """Raise SinkError, which says what to install, where the package is missing."""
        if self.package and util.find_spec(self.package) is None:
            raise SinkError(
                f"{self.title} needs {self.package}, which is not installed: pip install "
                f"'penstock[{self.extra}]'"
            )


_FORMS: Final = (
    TableForm(
        "csv",
        "CSV",
        "text/csv; charset=utf-8; header=present",
        "penstock_producer.tables.sheets:csv_lines",
        escapes=True,
        as_written=True,
    ),
    TableForm(
        "parquet",
        "Parquet",
        "application/vnd.apache.parquet",
        "penstock_producer.tables.arrow:parquet_pieces",
        package="pyarrow",
        extra="parquet",
        in_arrow=True,
    ),
    TableForm(
        "xlsx",
        "Excel",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "penstock_producer.tables.sheets:workbook_pieces",
        package="openpyxl",
        extra="excel",
    ),
)
_BY_NAME: Final[dict[str, TableForm]] = {form.name: form for form in _FORMS}
assert tuple(_BY_NAME) == TABLE_FORMATS


def form_named(name: str) -> TableForm:
    """Return the form of a name, once it is sure that it can be written. Raises SinkError."""
    form = _BY_NAME.get(name)
    if form is None:
        raise SinkError(f"{seen(name)} is not a format of tables; use {tables_in_words()}")
    form.require()
    return form


def media_types() -> dict[str, str]:
    """Return the media type of each form by its name."""
    return {form.name: form.media_type for form in _FORMS}


def tables_in_words() -> str:
    """Return the names as in "csv, parquet or xlsx"."""
    *others, last = TABLE_FORMATS
    return f"{', '.join(others)} or {last}"
