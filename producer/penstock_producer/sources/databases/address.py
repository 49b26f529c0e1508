"""Where a database is that documents are read from: how it is named, and what of its name is kept.

A source is named by a URL without a password, or by a variable that holds a whole URL
(`env:WAREHOUSE_URL`). Only that name is stored with the job and shown: every process that reads the
table looks the password up where it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock_ledger.redaction import is_secret_option, remember, remember_url
from penstock_producer.errors import SourceError, SourceUnavailable, seen
from penstock_producer.settings import variable
from penstock_producer.source_names import (
    BY_VARIABLE,
    DUCKDB,
    MOTHERDUCK,
    POSTGRESQL,
    SQLITE,
    variable_in,
)

if TYPE_CHECKING:
    from sqlalchemy import URL

__all__ = ["KIND", "Address", "address_of", "whole"]

KIND: Final = "table"  # of a pin


@dataclass(frozen=True, slots=True)
class Address:
    """One database."""

    name: str  # as it is stored and shown: a URL without a password, or `env:NAME`
    url: URL  # as it is connected to

    @property
    def backend(self) -> str:
        """Return the kind of database: `sqlite`, `postgresql`, `duckdb`, `mysql`, …."""
        return self.url.get_backend_name()

    @property
    def file(self) -> str | None:
        """Of a database that is one file here."""
        path = self.url.database or ""
        is_file = self.backend == "sqlite" or (
            self.backend == DUCKDB and not path.startswith(MOTHERDUCK)
        )
        return path if is_file else None


def whole(where: str) -> str:
    """Return the name of a database that means the same in every working folder.

    Raises SourceError, as ``address_of``.
    """
    return where if where.startswith(BY_VARIABLE) else address_of(where).name


def address_of(where: str) -> Address:
    """Return the address that a name stands for.

    Raises SourceError for a name that cannot be used, and SourceUnavailable for a variable that is
    not set here.
    """
    if not where.startswith(BY_VARIABLE):
        return _addressed(None, where)
    name = variable_in(where)
    if name is None:
        raise SourceError(
            "invalid_url", f"{seen(where)} names no variable; write env:NAME, as env:WAREHOUSE_URL"
        )
    value = variable(name)
    if not value:
        raise SourceUnavailable(
            f"{where}: the variable {name} is not set in this process; set it to the URL of the "
            "database, here and for control processes and workers"
        )
    return _addressed(where, value)


def _addressed(name: str | None, given: str) -> Address:
    """Return the address in ``given``; ``name`` is the variable that it was read from.

    Nothing of ``given`` is shown before it is taken apart.
    """
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    remember_url(given)
    try:
        url = make_url(given)
    # a port that is no number, as where a password has an @ in it
    except (ArgumentError, ValueError):
        place = "the source" if name is None else name
        raise SourceError(
            "invalid_url",
            f"{place} is not the URL of a database: write sqlite:///file.db or "
            "postgresql://user@host/database, and %-encode what is special in user and password",
        ) from None
    options = [option for option in url.query if is_secret_option(option)]
    secrets = [url.password, *(url.query[option] for option in options)]
    remember(*(secret for secret in secrets if isinstance(secret, str)))
    shown = name or url.difference_update_query(options)._replace(password=None).render_as_string()
    if name is None and any(secrets):
        raise SourceError(
            "password_in_url",
            f"{shown}: a password in the source would be stored with the job, and others see it in "
            f"the list of processes; export WAREHOUSE_URL={url.drivername}://… and name the source "
            "env:WAREHOUSE_URL"
            + (
                ", or put the password into PGPASSWORD or ~/.pgpass"
                if url.drivername in POSTGRESQL
                else ""
            ),
        )
    return _chosen(name, url, shown)


def _chosen(name: str | None, url: URL, shown: str) -> Address:
    """Return the address as the kind of database wants it."""
    from penstock_producer.sources.databases.drivers import check_driver  # with SQLAlchemy

    backend = url.drivername.partition("+")[0]
    if url.drivername in SQLITE or (
        backend == DUCKDB and not (url.database or "").startswith(MOTHERDUCK)
    ):
        return _file(name, url, shown)
    if url.drivername in POSTGRESQL:
        if util.find_spec("psycopg") is None:
            raise SourceUnavailable(f"{shown} needs psycopg here: pip install 'penstock[postgres]'")
        return Address(name or shown, url.set(drivername="postgresql+psycopg"))
    if backend in ("sqlite", "postgresql", "postgres"):
        raise SourceError(
            "unsupported_source",
            f"{shown}: its driver is chosen here; write "
            f"{'sqlite' if backend == 'sqlite' else 'postgresql'}://",
        )
    return Address(name or shown, check_driver(url, shown))


def _file(name: str | None, url: URL, shown: str) -> Address:
    if not url.database or url.database == ":memory:" or url.host or url.query:
        kind = "DuckDB" if url.drivername == DUCKDB else "SQLite"
        scheme = kind.lower()
        raise SourceError(
            "invalid_url",
            f"{shown} names no file of {kind}; write {scheme}:///file.db, or "
            f"{scheme}:////folder/file.db",
        )
    from penstock_producer.sources.databases.drivers import check_driver  # with SQLAlchemy

    path = str(Path(url.database).absolute())
    if not path.isprintable():
        raise SourceError("invalid_path", f"{seen(path)} cannot be a path; check its characters")
    found = url.set(database=path)
    used = check_driver(found, shown) if url.drivername not in SQLITE else found
    return Address(name or found.render_as_string(), used)
