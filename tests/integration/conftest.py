"""What several integration tests start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_producer import Producer, ProducerSettings


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a database in a file that is not there yet."""
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def producer(url: str) -> Iterator[Producer]:
    """A producer with that database, which it makes."""
    with Producer(ProducerSettings(database_url=url)) as producer:
        yield producer
