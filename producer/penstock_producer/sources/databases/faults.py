"""What a database says when it refuses, in the words of sources: what to correct, and whether
waiting helps."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from penstock_ledger.redaction import redact
from penstock_producer.errors import SourceError, SourceUnavailable

__all__ = ["Wording", "explained"]

SAID_CHARS: Final = 300  # of what the database says: it may quote a value
_TIMEOUT: Final = ("57014",)
_UNDEFINED: Final = ("42P01", "42703", "3F000", "42883")  # table, column, schema, function
_FORBIDDEN: Final = ("42501",)
_WRITES: Final = ("25006", "25P02")
_REFUSED: Final = ("42", "0A", "3D")  # the statement itself; the database that the URL names
_DATA: Final = ("22", "2F", "P0", "XX")  # a value or function that one row meets
_SQLITE: Final = (
    (_TIMEOUT, ("interrupted",)),
    (_UNDEFINED, ("no such table", "no such column", "no such function")),
    (_WRITES, ("readonly database", "not authorized")),
    (_FORBIDDEN, ("not a database", "malformed", "unsupported file format")),
    (("08",), ("locked", "unable to open", "disk i/o error", "busy")),
    (_DATA, ("malformed json", "overflow")),
)
_DUCKDB: Final = {  # by the names of its exceptions
    "InterruptException": _TIMEOUT,
    "CatalogException": _UNDEFINED,
    "BinderException": ("42703",),
    "ParserException": ("42",),
    "SyntaxException": ("42",),
    "PermissionException": _FORBIDDEN,
    "InvalidInputException": ("42",),
    "ConversionException": _DATA,
    "OutOfRangeException": _DATA,
}
_MYSQL: Final = (  # by the numbers of its errors
    (_TIMEOUT, (3024, 1969, 1317)),
    (_UNDEFINED, (1146, 1054, 1305, 1051)),
    (_WRITES, (1792, 1290)),
    (_FORBIDDEN, (1044, 1142, 1143, 1370)),
    (("42",), (1064, 1049, 1248, 1060, 1109, 1222)),
    (_DATA, (1690, 1365, 1292, 3141)),
)


class Wording:
    """Of one source: how it is named, and whether its job was accepted already."""

    def __init__(self, name: str, *, accepted: bool, timeout_s: float) -> None:
        self.name = name
        self.accepted = accepted
        self.timeout_s = timeout_s

    def of(self, error: SQLAlchemyError) -> SourceError:
        state, said = _state(error), _said(error)
        if state.startswith(_TIMEOUT):
            return SourceUnavailable(
                f"{self.name} did not answer within {self.timeout_s:g} s; make the query faster "
                "(an index on the id column), or raise the setting source_query_timeout_s "
                "(PENSTOCK_SOURCE_QUERY_TIMEOUT_S)",
                code="source_timeout",
            )
        if state.startswith(_WRITES):
            return SourceError(
                "query_writes",
                f"{self.name} is opened for reading only: {said}; give a plain SELECT",
            )
        if state.startswith(_UNDEFINED) and self.accepted:
            return SourceUnavailable(
                f"{self.name} is not what it was at submit: {said}; restore it, then resume the "
                "job",
                code="source_changed",
            )
        if state.startswith((*_FORBIDDEN, *_REFUSED)):
            return self._refused(
                "invalid_query", f"{self.name} cannot be read: {said}; correct it, or its rights"
            )
        if state.startswith(_DATA):
            return self._refused(
                "query_failed", f"{self.name} cannot be read: {said}; correct the query or the row"
            )
        return SourceUnavailable(
            f"{self.name} cannot be read now: {said}; check the database, its address and its "
            "rights"
        )

    def _refused(self, code: str, message: str) -> SourceError:
        """A person can put it right; until then a job that was accepted waits."""
        return (
            SourceUnavailable(message, code=code) if self.accepted else SourceError(code, message)
        )


@contextlib.contextmanager
def explained(wording: Wording) -> Iterator[None]:
    """Raises SourceError and SourceUnavailable for what SQLAlchemy raises."""
    try:
        yield
    except SQLAlchemyError as error:
        raise wording.of(error) from error
    except sqlite3.Warning as error:  # several statements, which Python 3.11 does not call an error
        raise SourceError("invalid_query", f"{wording.name} cannot be read: {error}") from error
    except UnicodeDecodeError as error:  # PostgreSQL in SQL_ASCII
        raise SourceError(
            "invalid_encoding",
            f"{wording.name} holds text that is not UTF-8: {error.reason}; convert it in a query",
        ) from error


def _state(error: SQLAlchemyError) -> str:
    """The SQLSTATE, or one that says the same of SQLite's words; "" where the database was not
    reached."""
    orig = error.orig if isinstance(error, DBAPIError) else None
    if isinstance(orig, sqlite3.Error):
        words = str(orig).lower()
        return next(
            (states[0] for states, signs in _SQLITE if any(sign in words for sign in signs)), "42"
        )
    number = orig.args[0] if orig is not None and orig.args else None
    if type(number) is int:
        return next((states[0] for states, numbers in _MYSQL if number in numbers), "")
    known = _DUCKDB.get(type(orig).__name__)
    return known[0] if known is not None else str(getattr(orig, "sqlstate", None) or "")


def _said(error: SQLAlchemyError) -> str:
    orig = error.orig if isinstance(error, DBAPIError) else None
    return redact(str(orig or error).strip().partition("\n")[0][:SAID_CHARS], cut=True)
