"""The databases of worlds: a file of SQLite, or PostgreSQL. Each seed begins with an empty one."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import psycopg
from servers import Postgres

from explore.seams import end_connections
from penstock_ledger import open_database


class Looks(Protocol):
    """A connection of the world's own, whose statements are no steps."""

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any: ...

    def close(self) -> None: ...


class Place(Protocol):
    """Where the databases of worlds are."""

    url: str

    def clear(self) -> None:
        """Begin with empty tables."""

    def look(self) -> Looks:
        """Return a connection that sees what is committed."""
        ...

    def close(self) -> None:
        """End what was started for it."""


class SqliteFile:
    """A file, copied from an empty one."""

    def __init__(self, folder: Path) -> None:
        self._template, self._path = folder / "empty.db", folder / "ledger.db"
        self.url = f"sqlite:///{self._path}"
        _migrate(f"sqlite:///{self._template}")

    def clear(self) -> None:
        open_database(self.url).close()
        end_connections()
        for left in self._path.parent.glob(f"{self._path.name}*"):
            left.unlink()
        shutil.copyfile(self._template, self._path)

    def look(self) -> Looks:
        return sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)

    def close(self) -> None:
        """Leave the files to their folder."""


class PostgresDatabase:
    """A database of a server, copied from an empty one."""

    def __init__(self) -> None:
        self._server = Postgres.start()
        self._admin = psycopg.connect(self._server.uri, autocommit=True)
        self._admin.execute("CREATE DATABASE explore_empty")
        _migrate(str(self._server.handle.get_uri(database="explore_empty")))
        self.url = str(self._server.handle.get_uri(database="explore"))

    def clear(self) -> None:
        open_database(self.url).close()
        self._admin.execute("DROP DATABASE IF EXISTS explore WITH (FORCE)")
        self._admin.execute("CREATE DATABASE explore TEMPLATE explore_empty")

    def look(self) -> Looks:
        return _LooksOfPostgres(psycopg.connect(self.url, autocommit=True))

    def close(self) -> None:
        self._admin.close()
        self._server.stop()


class _LooksOfPostgres:
    """Takes statements as SQLite has them."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        asked: Any = query.replace("?", "%s")
        return self._connection.execute(asked, values or None)

    def close(self) -> None:
        self._connection.close()


def _migrate(url: str) -> None:
    database = open_database(url)
    database.migrate()
    database.close()
