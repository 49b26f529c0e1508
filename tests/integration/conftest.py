"""What several integration tests start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_ledger import Database, open_database
from penstock_producer import Producer, ProducerSettings


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a database in a file that is not there yet."""
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A migrated database of its own, on SQLite and then on PostgreSQL."""
    on_sqlite = request.param == "sqlite"
    database = open_database(
        f"sqlite:///{tmp_path}/own.db" if on_sqlite else request.getfixturevalue("migrated_url")
    )
    database.migrate()
    yield database
    database.close()


@pytest.fixture
def producer(url: str) -> Iterator[Producer]:
    """A producer with that database, which it makes."""
    with Producer(ProducerSettings(database_url=url)) as producer:
        yield producer
