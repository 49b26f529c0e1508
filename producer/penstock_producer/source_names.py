"""How databases are named that rows are read from or written into. Light to import: a command line asks before anything else."""

from __future__ import annotations

import os
import re
from typing import Final

__all__ = ["BY_VARIABLE", "POSTGRESQL", "SQLITE", "in_folder", "is_database", "variable_in"]

BY_VARIABLE: Final = "env:"  # a variable that holds the URL
# Schemes of the two databases that are read and written, as SQLAlchemy names their drivers.
SQLITE: Final = ("sqlite", "sqlite+pysqlite")
POSTGRESQL: Final = ("postgresql", "postgres", "postgresql+psycopg")
_VARIABLE: Final = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]{0,127})", re.ASCII)
_FILE: Final = "sqlite:///"
_DIALECTS: Final = frozenset({
    "sqlite", "postgresql", "postgres", "mysql", "mariadb", "mssql", "oracle", "duckdb", "snowflake", "bigquery", "redshift",
    "clickhouse", "trino", "cockroachdb",
})  # fmt: skip


def is_database(where: str) -> bool:
    """Whether this names a database, and neither a file nor an object. Not every one is read."""
    scheme, separator, _ = where.partition("://")
    return where.startswith(BY_VARIABLE) or (separator != "" and scheme.partition("+")[0] in _DIALECTS)


def variable_in(where: str) -> str | None:
    """The variable that `env:NAME` names; None where this is no such name."""
    found = _VARIABLE.fullmatch(where)
    return None if found is None else found[1]


def in_folder(where: str, folder: str) -> str:
    """The name of a database that a file in ``folder`` has: a file of SQLite counts from there."""
    path = where.removeprefix(_FILE)
    return _FILE + os.path.join(os.path.abspath(folder), path) if path != where else where
