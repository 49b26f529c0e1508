"""The formats of sources, one row each, in the only place that lists them, and names of databases.

To add one: its reader in sources/readers/, and its row here. Names, flags, settings, messages, the
folders that hold it and the refusals of other formats follow.

Light to import, as command lines show the names before anything else: a reader is named by its
module and class, and imported when a source is opened.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

__all__ = [
    "BY_VARIABLE",
    "DUCKDB",
    "FORMATS",
    "MOTHERDUCK",
    "POSTGRESQL",
    "SAFE_FORMATS",
    "SQLITE",
    "SourceFormat",
    "formats_in_words",
    "in_folder",
    "is_database",
    "variable_in",
]


JSONL: Final = "jsonl"
CSV: Final = "csv"
TSV: Final = "tsv"
PARQUET: Final = "parquet"
ARROW: Final = "arrow"
XLSX: Final = "xlsx"
TEXT: Final = "text"
MEDIA: Final = "media"


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """One format. Rows come out of files, or each file of a folder is one document."""

    name: str  # in --format, in the setting doors.formats, and in pins
    title: str  # in messages
    # module:class in sources/readers/: PinnedRows of a file, or WholeFiles of a folder
    reader: str
    endings: tuple[str, ...] = ()  # of names, as .csv
    magic: bytes = b""  # what its files begin with
    # module:function of the first bytes, and whether these are all: looked at where neither a name
    # nor a magic says what a file is
    looks_so: str = ""
    package: str = ""  # what a reader imports that not every installation has,
    extra: str = ""  # and our extra that brings it
    # entered by row group, or a zip itself: a compressed file cannot be
    in_groups: bool = False
    # read by remote doors unless the setting doors.formats says otherwise: no large native library
    # parses it, which a hostile file may be made for
    is_safe: bool = False
    each_file: str = ""  # the kind of pins, where each file is one document

    @property
    def of_rows(self) -> bool:
        """Return whether its files hold rows; each of them is one document otherwise."""
        return not self.each_file

    def load(self) -> Callable[..., Any]:
        """Return the reader, imported now."""
        return _loaded(self.reader)

    def is_like(self, start: bytes, *, whole: bool) -> bool:
        """Return whether a file with these first bytes is one; ``whole``: it has no others."""
        return bool(self.looks_so) and bool(_loaded(self.looks_so)(start, whole=whole))

    def require(self) -> None:
        """Import what the reader needs. Raises SourceUnavailable where it is not installed."""
        from penstock_producer.errors import SourceUnavailable

        try:
            import_module(self.package)
        except ImportError as error:
            raise SourceUnavailable(
                f"reading {self.name} needs {self.package} on this machine; "
                f"`pip install penstock[{self.extra}]`"
            ) from error


_READERS: Final = "penstock_producer.sources.readers."
_TABLE: Final = (
    SourceFormat(
        JSONL,
        "JSON Lines",
        _READERS + "jsonl:JsonlSource",
        endings=(".jsonl", ".ndjson", ".json"),
        is_safe=True,
    ),
    SourceFormat(
        CSV,
        "CSV",
        _READERS + "csv_rows:CsvSource",
        endings=(".csv",),
        looks_so=_READERS + "csv_rows:looks_like_csv",
        is_safe=True,
    ),
    SourceFormat(
        TSV,
        "TSV",
        _READERS + "csv_rows:CsvSource",
        endings=(".tsv", ".tab"),
        looks_so=_READERS + "csv_rows:looks_like_tsv",
        is_safe=True,
    ),
    SourceFormat(
        PARQUET,
        "Parquet",
        _READERS + "columnar:ColumnarSource",
        endings=(".parquet", ".pq"),
        magic=b"PAR1",
        package="pyarrow",
        extra="parquet",
        in_groups=True,
    ),
    SourceFormat(
        ARROW,
        "Arrow",
        _READERS + "columnar:ColumnarSource",
        endings=(".arrow", ".arrows", ".feather"),
        magic=b"ARROW1",
        package="pyarrow",
        extra="parquet",
        in_groups=True,
    ),
    SourceFormat(
        XLSX,
        "Excel",
        _READERS + "excel:ExcelSource",
        endings=(".xlsx", ".xlsm"),
        package="openpyxl",
        extra="excel",
        in_groups=True,
    ),
    SourceFormat(
        TEXT,
        "text",
        _READERS + "each_file:TextFiles",
        endings=(
            ".txt",
            ".text",
            ".md",
            ".markdown",
            ".rst",
            ".adoc",
            ".org",
            ".tex",
            ".html",
            ".htm",
            ".xhtml",
            ".xml",
            ".log",
            ".srt",
            ".vtt",
            ".eml",
        ),
        each_file="texts",
    ),
    SourceFormat(
        MEDIA,
        "images and sounds",
        _READERS + "each_file:MediaFiles",
        looks_so="penstock_producer.sources.forms.media:is_media",
        each_file="media",
    ),
)

FORMATS: Final[dict[str, SourceFormat]] = {one.name: one for one in _TABLE}
"""By name. Of several that a file may be, the first counts."""

SAFE_FORMATS: Final = tuple(one.name for one in _TABLE if one.is_safe)
"""What remote doors read, where no setting says otherwise."""


def formats_in_words() -> str:
    """Return the names as in "rows of jsonl or csv, or text, where each file is a document"."""
    rows = [one.name for one in FORMATS.values() if one.of_rows]
    files = [one.name for one in FORMATS.values() if not one.of_rows]
    return (
        f"rows of {', '.join(rows[:-1])} or {rows[-1]}, or {' or '.join(files)}, where each file "
        "of a folder is a document"
    )


def _loaded(where: str) -> Callable[..., Any]:
    module, _, name = where.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


# -- encodings of texts ---------------------------------------------------------------------------

UTF_8: Final = "utf-8"
_ASCII: Final = bytes(range(128))
# what a byte means depends on those before it
_STATEFUL: Final = ("iso2022", "idna", "unicode", "raw")


def check_encoding(name: str) -> str:
    """Return the codec's own name.

    Raises ValueError for one that is unknown, or in which a newline may be another byte."""
    try:
        codec = codecs.lookup(name).name
        usable = _ASCII.decode(codec) == _ASCII.decode() and not codec.startswith(_STATEFUL)
    except (LookupError, ValueError):  # no name of a codec of text; bytes that do not decode
        codec, usable = name, False
    if not usable:
        raise ValueError(
            "write an encoding in which ASCII is one byte each, such as utf-8, latin-1, cp1252, "
            "shift_jis or gb18030; convert others: iconv -f UTF-16 -t UTF-8"
        )
    return codec


BY_VARIABLE: Final = "env:"  # a variable that holds the URL
DUCKDB: Final = "duckdb"
# Schemes of the two databases that are read and written, as SQLAlchemy names their drivers. Others
# are read only.
SQLITE: Final = ("sqlite", "sqlite+pysqlite")
POSTGRESQL: Final = ("postgresql", "postgres", "postgresql+psycopg")
_VARIABLE: Final = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]{0,127})", re.ASCII)
_FILES: Final = ("sqlite:///", "duckdb:///")
MOTHERDUCK: Final = "md:"  # a name of DuckDB's that is no file
_DIALECTS: Final = frozenset(
    {
        "sqlite",
        "postgresql",
        "postgres",
        "mysql",
        "mariadb",
        "mssql",
        "oracle",
        "duckdb",
        "snowflake",
        "bigquery",
        "redshift",
        "clickhouse",
        "trino",
        "cockroachdb",
        "databricks",
        "db2",
        "firebird",
        "hana",
        "teradata",
        "vertica",
        "exa",
    }
)


def is_database(where: str) -> bool:
    """Return whether this names a database, and neither a file nor an object."""
    scheme, separator, _ = where.partition("://")
    return where.startswith(BY_VARIABLE) or (
        separator != "" and scheme.partition("+")[0] in _DIALECTS
    )


def variable_in(where: str) -> str | None:
    """Return the variable that `env:NAME` names; None where this is no such name."""
    found = _VARIABLE.fullmatch(where)
    return None if found is None else found[1]


def in_folder(where: str, folder: str) -> str:
    """Return the name of a database as a file in ``folder`` means it.

    A file of SQLite or DuckDB counts from there.
    """
    for scheme in _FILES:
        path = where.removeprefix(scheme)
        if path != where and not path.startswith(MOTHERDUCK):
            return scheme + os.path.join(os.path.abspath(folder), path)
    return where
