"""How databases are named that rows are read from or written into.

Light to import: a command line asks before anything else."""

from __future__ import annotations

import os
import re
from typing import Final

__all__ = [
    "BY_VARIABLE",
    "DUCKDB",
    "MOTHERDUCK",
    "POSTGRESQL",
    "SQLITE",
    "in_folder",
    "is_database",
    "variable_in",
]

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
