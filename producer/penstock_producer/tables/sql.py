"""The two databases that rows are written into: how they are opened, and what they take for a
value."""

from __future__ import annotations

from importlib import util
from typing import Any, Final

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from penstock_ledger.redaction import HIDDEN, is_secret_option, redact, remember_url
from penstock_producer.errors import SinkUnfit
from penstock_producer.source_names import POSTGRESQL, SQLITE
from penstock_producer.tables.csv_form import vector_text

__all__ = ["for_postgresql", "for_sqlite", "opened", "quoted", "shown_url"]

CONNECT_TIMEOUT_S: Final = 10
SILENCE_S: Final = 60  # of a server that answers nothing any more
# Of one statement: 500 rows take milliseconds, and one that waits for a lock for longer is tried
# again later.
_WAITS: Final = f"SET LOCAL statement_timeout = '{SILENCE_S}s'; SET LOCAL lock_timeout = '30s'"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def for_sqlite(value: Any, _: str) -> Any:
    if isinstance(value, bytes):
        return vector_text(value)
    return f"[{','.join(map(vector_text, value))}]" if isinstance(value, list) else value


def for_postgresql(value: Any, type_: str) -> str | None:
    """All as text, which the statement casts to the column's own type: numeric, jsonb, uuid and
    pgvector's included."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | list):
        numbers = (
            vector_text(value)
            if isinstance(value, bytes)
            else f"[{','.join(map(vector_text, value))}]"
        )
        return numbers.replace("[", "{").replace("]", "}") if type_.endswith("[]") else numbers
    return value if isinstance(value, str) else repr(value)


def opened(url: str) -> Engine:
    """Nothing is connected yet; a server that hangs is given up after a minute.

    Raises SinkUnfit for what is no such URL."""
    remember_url(url)
    parsed = _parsed(url)
    is_sqlite = parsed.drivername.startswith("sqlite")
    waits = (
        {}
        if is_sqlite
        else {"connect_timeout": CONNECT_TIMEOUT_S, "tcp_user_timeout": SILENCE_S * 1_000}
    )
    waits = {name: value for name, value in waits.items() if name not in parsed.query}
    # Errors reach logs, and parameters are documents.
    options = {"preserve_rowcount": True}
    engine = create_engine(
        parsed, hide_parameters=True, execution_options=options, connect_args=waits
    )
    if is_sqlite:
        event.listen(engine, "connect", _let_begin)
    first = "BEGIN IMMEDIATE" if is_sqlite else _WAITS
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(first))
    return engine


def shown_url(url: URL) -> str:
    """Without the password, wherever it stands."""
    query = {name: HIDDEN if is_secret_option(name) else value for name, value in url.query.items()}
    return redact(url.set(query=query).render_as_string(hide_password=True))


def _let_begin(connection: Any, _: object) -> None:
    connection.isolation_level = (
        None  # SQLAlchemy's recipe: pysqlite must not open transactions by itself
    )


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the second: of a port that is no number
        fix = "use sqlite:///file or postgresql://…"
        raise SinkUnfit(
            f"what was given (it is not shown) is not the URL of a database: {fix}"
        ) from None
    if parsed.drivername in SQLITE and parsed.database not in (None, "", ":memory:"):
        return parsed
    if parsed.drivername in POSTGRESQL:
        if util.find_spec("psycopg") is None:
            raise SinkUnfit(
                f"{parsed.drivername}:// needs psycopg: pip install 'penstock[postgres]'"
            )
        return parsed.set(drivername="postgresql+psycopg")
    raise SinkUnfit(
        f"results cannot be written into {redact(parsed.drivername)}://: use sqlite:///file or "
        "postgresql://…"
    )
