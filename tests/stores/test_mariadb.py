"""Tables and queries of a real MariaDB as sources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, create_engine
from stores.mariadb import MariaDb

from penstock_ledger import open_database
from penstock_producer import JobSpec, Producer
from penstock_producer.errors import RowChanged, SourceError, SourceUnavailable
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import BadRow, Document, open_source
from penstock_producer.sources.databases import relation
from penstock_producer.sources.of_feed import open_feed_source

pytestmark = pytest.mark.servers

SPEC = JobSpec(prompt="{text}", model="m", table="docs", max_bad_rows=100)


@dataclass
class Shop:
    """One database of the server."""

    url: str
    engine: Engine

    def run(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def rows(self, spec: JobSpec = SPEC, **settings: Any) -> list[Document | BadRow]:
        return list(open_source(self.url, spec, ProducerSettings(**settings)).documents({}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    server = MariaDb.start(tmp_path_factory.mktemp("mariadb"))
    yield server
    server.stop()


@pytest.fixture
def shop(server: MariaDb) -> Iterator[Shop]:
    url = server.new_database()
    engine = create_engine(url.replace("mysql://", "mysql+pymysql://"), poolclass=NullPool)
    yield Shop(url, engine)
    engine.dispose()


def asked(row: Document | BadRow) -> str:
    assert isinstance(row, Document), str(row)
    return str(json.loads(row.body)["messages"][0]["content"])


def spec(**fields: Any) -> JobSpec:
    return JobSpec(**{"prompt": "{text}", "model": "m", "max_bad_rows": 100, **fields})


def test_a_table_is_read_in_pages_of_keys(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row once, rows without a key and rows that are too long for themselves, and each found
    again by its key."""
    monkeypatch.setattr(relation, "ROWS", 7)
    shop.run(
        "CREATE TABLE docs (id INT, text MEDIUMTEXT, UNIQUE (id))",
        "INSERT INTO docs SELECT CAST(seq AS SIGNED) - 6, concat('t', seq, char(37), ':x') FROM "
        "seq_1_to_40",
        "INSERT INTO docs VALUES (NULL, 'a'), (NULL, 'b'), (999, repeat('é', 5000))",
    )
    rows = shop.rows(max_line_bytes=8_000)
    assert [row.doc_id for row in rows if isinstance(row, Document)] == [
        str(number) for number in range(-5, 35)
    ]
    assert asked(rows[2]) == "t1%:x"
    assert [(row.line, row.code) for row in rows if isinstance(row, BadRow)] == [
        (1, "invalid_id"),
        (2, "invalid_id"),
        (43, "line_too_long"),
    ]
    assert asked(open_source(shop.url, SPEC).fetch("-5")) == "t1%:x"


def test_values_become_what_those_of_postgresql_do(shop: Shop) -> None:
    """Decimals, dates and times are texts, times in UTC; keys may be texts that a query made."""
    shop.run(
        "CREATE TABLE docs (a INT, b INT, text TEXT, v DECIMAL(9, 2), made TIMESTAMP, day DATE, "
        "PRIMARY KEY (a, b))",
        "SET time_zone = '+02:00'",
        "INSERT INTO docs VALUES (1, 2, 'x', 1.5, '2026-11-22 17:30:00', '2026-11-22'), (1, 3, "
        "'y', 2, now(), now())",
    )
    query = "SELECT concat(a, '-', b) AS id, `text`, v, made, day FROM docs -- all of them"
    rows = shop.rows(spec(query=query, prompt="{text} {v} {made} {day}"))
    assert [row.doc_id for row in rows] == ["1-2", "1-3"]
    assert asked(rows[0]) == "x 1.50 2026-11-22T15:30:00 2026-11-22"


@pytest.mark.parametrize("second", ["b", "B", "b "])
def test_keys_that_the_database_takes_for_one_refuse_the_source(shop: Shop, second: str) -> None:
    """By its own equality, which knows no capitals: no row is passed over, and none stands for
    another."""
    shop.run(
        "CREATE TABLE docs (id VARCHAR(20), text TEXT)",
        f"INSERT INTO docs VALUES ('b', 'x'), ('{second}', 'y')",
    )
    with pytest.raises(SourceError, match=r"duplicate_key: .* two rows whose 'id' is"):
        shop.rows()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"table": "dosc"}, "invalid_query: table dosc of .*dosc"),
        ({"table": "docs", "id_field": "key"}, "missing_column"),
        ({"query": "SELEC id FROM docs"}, "invalid_query"),
        ({"query": "SELECT 1 AS id, 'a' AS text) AS s; DELETE FROM docs; -- "}, "invalid_query"),
        ({"query": "SELECT uuid_short() AS id, 'a' AS text FROM missing.docs"}, "invalid_query"),
        (
            {"query": "SELECT nextval(numbers) AS id, text FROM docs"},
            "query_writes: .*opened for reading only",
        ),
        ({"query": "SELECT sleep(10) AS id, text FROM docs"}, "source_timeout: .* within 0.3 s"),
    ],
)
def test_what_cannot_be_read_is_refused_and_nothing_is_changed(
    shop: Shop, fields: dict[str, Any], words: str
) -> None:
    """In the words of the source, within the time of a statement."""
    shop.run(
        "CREATE TABLE docs (id INT PRIMARY KEY, text TEXT)",
        "INSERT INTO docs VALUES (1, 'a')",
        "CREATE SEQUENCE numbers",
    )
    with pytest.raises(SourceError, match=words):
        shop.rows(spec(**fields), source_query_timeout_s=0.3)
    assert [asked(row) for row in shop.rows()] == ["a"]


def test_a_job_has_its_rows_whatever_becomes_of_the_table(shop: Shop, tmp_path: Path) -> None:
    """In one snapshot: rows that come later are not read, one that is gone is that document's
    trouble alone."""
    shop.run("CREATE TABLE docs (id VARCHAR(20) PRIMARY KEY, text TEXT)")
    shop.run("INSERT INTO docs VALUES ('a', '1'), ('B', '2'), ('ç', '3'), ('10', '4')")
    url = f"sqlite:///{tmp_path}/ledger.db"
    with Producer(ProducerSettings(database_url=url)) as producer:
        job = producer.submit(shop.url, spec(table="docs", feeders=2))
        shop.run("INSERT INTO docs VALUES ('aa', 'new')", "DELETE FROM docs WHERE id = 'B'")
        database = open_database(url)
        source = open_feed_source(database, job.job_id, 1)
        read = {row.doc_id: row for row in source.documents({})}
        database.close()
    assert set(read) == {"a", "B", "ç", "10"}
    assert isinstance(read["B"], BadRow)
    with pytest.raises(RowChanged, match="source_lost"):
        source.fetch('"B"')


def test_a_server_that_is_not_there_is_waited_for(server: MariaDb) -> None:
    """Its job pauses, and no password is shown."""
    with pytest.raises(SourceUnavailable, match="cannot be read now"):
        list(open_source("mysql://root@127.0.0.1:1/shop", SPEC).documents({}))
    with pytest.raises(SourceError, match=r"invalid_query: .*nowhere"):
        list(open_source(f"mysql://root@127.0.0.1:{server.port}/nowhere", SPEC).documents({}))
