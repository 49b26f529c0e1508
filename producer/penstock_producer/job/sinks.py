"""A job's rows go into a table in a file, or a table of a database.

What is written here is stored and shown with the job. So a URL has no password in it. `env:NAME` is
the variable of the writing process that holds one: the control process's in a fleet, that of the
command in `penstock run` and `penstock results`.

The forms of files are one row each, in the only list of them. To add one: a function that makes its
bytes of rows, and its row here. Flags, media types and messages follow. Light to import: the
function is named, and imported when a table is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module, util
from typing import Any, Final, Literal, get_args
from urllib.parse import parse_qsl, urlsplit

from penstock_ledger.redaction import is_secret_option, looks_secret, remember_url
from penstock_producer.errors import Problem, SinkError, SinkUnfit, seen
from penstock_producer.source_formats import BY_VARIABLE, POSTGRESQL, SQLITE, variable_in

__all__ = [
    "TABLE_FORMATS",
    "TableFormat",
    "columns_problem",
    "form_named",
    "into_problem",
    "into_url",
    "media_types",
    "sink_problems",
    "tables_in_words",
]


SCHEMES: Final = (*SQLITE, *POSTGRESQL)
MAX_CHARS: Final = 2_000
_HAS_ONE: Final = "the URL holds a password (it is not shown), and a job is stored and shown"
_OTHER_WAYS: Final = (
    "leave it out of the URL: write env:NAME, where the variable NAME of the process that writes "
    "holds the whole URL, or keep it there in PGPASSWORD or ~/.pgpass"
)


def sink_problems(
    output_format: str | None,
    escape_formulas: bool | None,
    into: str | None,
    into_table: str | None,
    into_id: str,
) -> Iterator[Problem]:
    """Yield what is wrong with the fields of a spec together.

    No value of ``into`` is shown, which may hold a secret.
    """
    if escape_formulas and output_format != "csv":
        fix = "leave it out, or make output_format csv"
        yield Problem("invalid_value", "/escape_formulas", "formulas are escaped in CSV alone", fix)
    if (into is None) != (into_table is None):
        missing, given = ("into", "into_table") if into is None else ("into_table", "into")
        yield Problem(
            "missing_field",
            f"/{missing}",
            f"{given} is given without it",
            f"give both, or leave {given} out",
        )
    if into is None:
        if into_id != "id":
            yield Problem(
                "invalid_value",
                "/into_id",
                "there is no table that has it",
                "give into and into_table, too",
            )
        return
    problem = into_problem(into)
    if problem is not None:
        yield Problem(
            "secret_in_spec" if problem[0] == _HAS_ONE else "invalid_value", "/into", *problem
        )


def columns_problem(keep_columns: str, order: str) -> tuple[str, str] | None:
    """Return what is wrong with columns that are named for a table without any, and the fix."""
    if order != "done" or keep_columns in ("all", "none"):
        return None
    why = "a table in the order in which rows were done has the answers alone, not the source's"
    return f"{why} columns", "leave it out, or make order source"


def into_problem(into: str) -> tuple[str, str] | None:
    """Return what is wrong with ``into`` and how to put it right; None when it can be stored."""
    usual = "write sqlite:///file, postgresql://user@host/database, or env:NAME"
    if into.startswith(BY_VARIABLE):
        if variable_in(into) is not None:
            return None
        return (
            "what follows env: is not the name of a variable (it is not shown)",
            "write its name, as env:SHOP_URL",
        )
    if len(into) > MAX_CHARS:
        return f"it has more than {MAX_CHARS} characters", usual
    try:
        parts = urlsplit(into)
        password, query = parts.password, parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return "it cannot be read as a URL (it is not shown)", usual
    if parts.scheme not in SCHEMES:
        return "it is not the URL of a database that rows are written into (it is not shown)", usual
    if (
        password is not None
        or any(is_secret_option(name) for name, _ in query)
        or looks_secret(into)
    ):
        return _HAS_ONE, _OTHER_WAYS
    return None


def into_url(into: str, variables: Mapping[str, str]) -> str:
    """Return the URL that ``into`` names.

    Its secrets are kept out of everything that this process says. Raises SinkUnfit.
    """
    url: str | None = into
    if into.startswith(BY_VARIABLE):
        name = into.removeprefix(BY_VARIABLE)
        url = variables.get(name)
        if not url:
            raise SinkUnfit(
                f"rows go into {into}, and the variable {name} is not set in the process that "
                "writes them: set it there to the URL of a database"
            )
        if urlsplit(url).scheme not in SCHEMES:
            raise SinkUnfit(
                f"rows go into {into}, and the variable {name} holds no URL of a database: it "
                "begins with sqlite:/// or postgresql://"
            )
    remember_url(url)
    return str(url)


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
