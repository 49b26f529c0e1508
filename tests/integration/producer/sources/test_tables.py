"""Tables and queries as sources, on SQLite, DuckDB and a real PostgreSQL: rows, keys, hostile
values, changing tables."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from servers import Postgres, RedisServer, as_bytes
from sqlalchemy import Engine, NullPool, create_engine, text

from penstock_ledger import (
    Database,
    JobConflict,
    JobStore,
    Meta,
    OutcomeStore,
    RedisLedger,
    open_database,
    purge_job,
)
from penstock_ledger.model import Job, JobState
from penstock_producer import JobSpec, Producer
from penstock_producer.accepting.survey import survey
from penstock_producer.errors import (
    BadReference,
    RowChanged,
    SourceError,
    SourceUnavailable,
    TooManyBadRows,
)
from penstock_producer.feed.feeder import Feeder
from penstock_producer.feed.leased_feed import open_feeder, republish
from penstock_producer.reporting.words import feeders_line
from penstock_producer.rows import FileSource
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import BadRow, Document, open_source
from penstock_producer.sources.databases import columns, relation
from penstock_producer.sources.of_feed import open_feed_source, source_of

SPEC = JobSpec(prompt="{text}", model="m", table="docs", max_bad_rows=100)


@dataclass
class Home:
    """A database that documents are read from."""

    url: str
    engine: Engine

    @property
    def is_postgresql(self) -> bool:
        return self.url.startswith("postgresql")

    def run(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def fill(
        self, rows: list[tuple[Any, ...]], columns: str = "id {int} PRIMARY KEY, text text"
    ) -> None:
        self.run(f"CREATE TABLE docs ({columns.replace('{int}', 'integer')})")
        names = ", ".join(f":c{at}" for at in range(len(rows[0])))
        with self.engine.begin() as connection:
            connection.execute(
                text(f"INSERT INTO docs VALUES ({names})"),
                [{f"c{at}": value for at, value in enumerate(row)} for row in rows],
            )

    def open(self, spec: JobSpec = SPEC, **settings: Any) -> FileSource:
        return open_source(self.url, spec, ProducerSettings(**settings))

    def rows(self, spec: JobSpec = SPEC, **settings: Any) -> list[Document | BadRow]:
        return list(self.open(spec, **settings).documents({}))


@pytest.fixture(params=["sqlite", "postgresql", "duckdb"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    if request.param == "postgresql":
        yield request.getfixturevalue("postgres")
        return
    url = f"{request.param}:///{tmp_path}/docs.db"
    # a file of DuckDB that is open for writing cannot be read
    engine = create_engine(url, poolclass=NullPool)
    yield Home(url, engine)
    engine.dispose()


@pytest.fixture(scope="module")
def warehouse(postgres_server: Postgres) -> Iterator[Home]:
    url = postgres_server.new_database()
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    yield Home(url, engine)
    engine.dispose()


@pytest.fixture
def postgres(warehouse: Home) -> Home:
    """A database of a real PostgreSQL server, emptied for each test."""
    warehouse.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE "
        "'penstock-source%%'",
        "DROP SCHEMA IF EXISTS sales CASCADE",
        "DROP SCHEMA public CASCADE",
        "CREATE SCHEMA public",
    )
    return warehouse


def asked(row: Document | BadRow) -> str:
    assert isinstance(row, Document), str(row)
    return str(json.loads(row.body)["messages"][0]["content"])


def code(row: Document | BadRow) -> str:
    assert isinstance(row, BadRow), asked(row)
    return row.code


def spec(**fields: Any) -> JobSpec:
    return JobSpec(**{"prompt": "{text}", "model": "m", "max_bad_rows": 100, **fields})


# -- rows ------------------------------------------------------------------------------------------


def test_rows_come_in_the_order_of_their_keys(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row comes once, over any number of pages, with its key as its id and as the position
    that finds it again."""
    monkeypatch.setattr(relation, "ROWS", 7)
    home.fill([(number, f"t{number}") for number in reversed(range(-5, 40))])
    source = home.open()
    found = survey(source, SPEC)
    rows = home.rows()
    assert [(row.doc_id, row.line, asked(row)) for row in rows] == [
        (str(number), number + 6, f"t{number}") for number in range(-5, 40)
    ]
    assert (found.total, found.pin["rows"], found.pin["kind"]) == (45, 45, "table")
    for row in rows:
        assert isinstance(row, Document)
        assert source.fetch(row.position).body == row.body
    for position in ("x", "", "null", "1.5", "[1]", '{"a": 1}', "true"):
        with pytest.raises(BadReference):
            source.fetch(position)


@pytest.mark.parametrize("names", [["b", "a", "ß", "Z", "é", "10", "9", " ", "a b"]])
def test_texts_are_keys_in_the_order_of_the_database(home: Home, names: list[str]) -> None:
    """Whatever the collation, every row comes once."""
    home.fill(
        [(name, f"t-{name}") for name in names],
        "id {text} PRIMARY KEY, text text".replace("{text}", "text"),
    )
    rows = home.rows()
    assert sorted((row.doc_id or "", asked(row)) for row in rows) == sorted(
        (name, f"t-{name}") for name in names
    )


def test_a_query_is_read_as_a_table_is(home: Home) -> None:
    """With colons, percent signs, quotes, comments, a semicolon at its end, and columns of its
    own."""
    home.fill([(1, "a"), (2, "b"), (3, None)])
    query = """SELECT id, text || ' 12:30 :x 50% \\: ''' AS text, 'C:D' AS "a ""b"":c" FROM docs WHERE text IS NOT NULL -- :end"""
    asking = spec(query=query, prompt="{text}", template="fields")
    assert [asked(row) for row in home.rows(asking)] == [
        "a 12:30 :x 50% \\: '",
        "b 12:30 :x 50% \\: '",
    ]
    source = home.open(asking)
    assert asked(source.fetch("2")) == "b 12:30 :x 50% \\: '"


def test_names_are_taken_as_they_are_written(home: Home) -> None:
    """Capitals, blanks, colons, percent signs and quotes in the names of a table and its
    columns."""
    home.run(
        """CREATE TABLE "My :docs%s" ("I""d" integer PRIMARY KEY, "Te xt" text)""".replace(
            "%", "%%" if home.is_postgresql else "%"
        ),
        """INSERT INTO "My :docs%s" VALUES (1, 'a')""".replace(
            "%", "%%" if home.is_postgresql else "%"
        ),
    )
    found = home.rows(spec(table="My :docs%s", id_field='I"d', prompt="{Te xt}"))
    assert [asked(row) for row in found] == ["a"]


def test_the_other_prompt_language_sees_all_columns(home: Home) -> None:
    """Loops and conditions over columns, and parameters from a column."""
    home.fill([(1, "a", 5)], "id integer PRIMARY KEY, text text, len integer")
    asking = spec(
        table="docs",
        prompt="{% if text %}{{ text }}{% endif %}",
        template="jinja",
        param_fields={"max_tokens": "len"},
    )
    (row,) = home.rows(asking)
    assert isinstance(row, Document)
    assert (asked(row), json.loads(row.body)["max_tokens"]) == ("a", 5)


def test_only_the_columns_that_are_used_are_read(home: Home) -> None:
    """A column of bytes, or one that is enormous, does no harm where the prompt does not name
    it."""
    bytes_type = "bytea" if home.is_postgresql else "blob"
    home.fill(
        [(1, "a", b"\xff\x00", "x" * 9_000_000)],
        f"id integer PRIMARY KEY, text text, raw {bytes_type}, more text",
    )
    assert [asked(row) for row in home.rows()] == ["a"]


# -- rows that are none ----------------------------------------------------------------------------


def test_one_bad_row_stops_no_other(home: Home) -> None:
    """Nulls, control characters, bytes and enormous values are refused by table, key, column and
    fix."""
    bytes_type = "bytea" if home.is_postgresql else "blob"
    home.fill(
        [
            ("a", None, None),
            ("b\x07", "t", None),
            ("c", "x" * 5_000, None),
            ("d", "fine", None),
            (None, "t", None),
            ("e", "t", b"\xff"),
        ],
        f"id text, text text, raw {bytes_type}",
    )
    rows = home.rows(spec(table="docs", prompt='{text}{raw|default:"-"}'), max_line_bytes=2_000)
    bad = {row.named: row for row in rows if isinstance(row, BadRow)}
    assert [asked(row) for row in rows if isinstance(row, Document)] == ["fine-"]
    assert {name: row.code for name, row in bad.items() if name.startswith("id")} == {
        "id 'a'": "missing_field",
        "id 'c'": "line_too_long",
        "id 'e'": "invalid_type",
    }
    assert sorted(row.code for name, row in bad.items() if name.startswith("row")) == [
        "invalid_id",
        "invalid_id",
    ]
    shown = str(bad["id 'a'"])
    assert shown.startswith("table docs of ")
    assert " id 'a': missing_field: field text: " in shown
    assert "Fix: " in shown


def test_refused_rows_are_named_by_their_keys(home: Home) -> None:
    """Too many of them refuse the source, in one line for those that are alike."""
    home.fill([(number, None if number % 2 else "t") for number in range(8)])
    strict = spec(table="docs", max_bad_rows=1)
    with pytest.raises(TooManyBadRows) as raised:
        survey(home.open(strict), strict)
    assert "table docs of " in str(raised.value)
    assert "id 1: missing_field" in str(raised.value)
    assert "1 more like it, in id 3" in str(raised.value)


@pytest.mark.parametrize("table", [True, False])
def test_two_rows_with_one_key_refuse_the_source(
    home: Home, table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they are on two pages: nothing says which of them is the document."""
    monkeypatch.setattr(relation, "ROWS", 2)
    home.fill([("a", "1"), ("b", "2"), ("b", "3")], "id text, text text")
    asking = spec(table="docs") if table else spec(query="SELECT * FROM docs")
    with pytest.raises(
        SourceError, match=r"duplicate_key: .* two rows whose 'id' is 'b'; .*id_field"
    ):
        survey(home.open(asking), asking)


def test_a_composite_key_is_refused_with_the_query_that_makes_one(home: Home) -> None:
    """One column of it is not unique; several joined are."""
    home.fill([("a", 1, "x"), ("a", 2, "y")], "a text, b integer, text text, PRIMARY KEY (a, b)")
    with pytest.raises(SourceError, match="duplicate_key"):
        home.rows(spec(table="docs", id_field="a"))
    joined = spec(query="SELECT a || '-' || CAST(b AS text) AS id, text FROM docs")
    assert [row.doc_id for row in home.rows(joined)] == ["a-1", "a-2"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"table": "docs", "id_field": "key"},
        "missing_column: table docs of .* no column 'key' .*'id', 'text'",
    ),
    ({"table": "docs", "prompt": "{txt}"}, "missing_column: .*'txt'"),
    ({"table": "docs", "prompt": None}, "wrong_form"),
    ({"table": "dosc"}, "invalid_query: table dosc of .*dosc"),
    ({"query": "SELEC id FROM docs"}, "invalid_query: the query on "),
    ({"query": "SELECT id, text FROM docs; DELETE FROM docs"}, "invalid_query"),
    ({"query": "SELECT 1 AS id, 'a' AS text) AS s; DELETE FROM docs; --"}, "invalid_query"),
    (
        {"query": "DELETE FROM docs"},
        "invalid_query: the query on .* begins with 'DELETE', and was not run, as sources are only",
    ),
    (
        {"query": "/* a */ -- b\n DROP TABLE docs"},
        "invalid_query: the query on .* begins with 'DROP', and was not run",
    ),
    ({"query": "UPDATE docs SET text = '' RETURNING id, text"}, "invalid_query"),
]


def test_what_cannot_be_read_is_refused_before_any_spend(home: Home) -> None:
    """In the words of the source, and nothing in the database is changed."""
    home.fill([(1, "a")])
    for fields, words in REFUSED:
        with pytest.raises(SourceError, match=words):
            home.rows(spec(**fields))
    assert [asked(row) for row in home.rows()] == ["a"]


def test_an_empty_table_is_refused(home: Home) -> None:
    """As an empty file is."""
    home.run("CREATE TABLE docs (id integer PRIMARY KEY, text text)")
    with pytest.raises(SourceError, match="empty_source"):
        survey(home.open(), SPEC)


def test_memory_is_bounded_by_bytes_not_by_rows(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of large rows is read few at a time."""
    monkeypatch.setattr(relation, "BYTES", 2_000_000)
    monkeypatch.setattr(relation, "SHORT", 1_000)
    home.run("CREATE TABLE docs (id integer PRIMARY KEY, text text)")
    size, count = 100_000, 200
    with home.engine.begin() as connection:
        for number in range(count):
            connection.execute(
                text("INSERT INTO docs VALUES (:id, :t)"), {"id": number, "t": "x" * size}
            )
    source = home.open()
    tracemalloc.start()
    read = sum(len(asked(row)) for row in source.documents({}))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read == size * count
    assert peak < 8_000_000


# -- a table that changes under its job ------------------------------------------------------------


@dataclass
class House:
    """A job over the table, in a ledger of its own, fed to a real Redis."""

    producer: Producer
    database: Database
    redis: RedisLedger
    server: RedisServer

    def submit(self, home: Home, spec: JobSpec = SPEC, **more: Any) -> Job:
        return self.producer.submit(home.url, spec, **more)

    def feeder(self, job: Job) -> Feeder:
        feed = JobStore(self.database).lease_feed(job.job_id, 1, "me", 30)
        assert feed is not None
        return open_feeder(self.database, self.redis, job, feed, owner="me")

    def dead(self, job: Job) -> dict[str, str]:
        return {
            letter.key.doc_id: letter.reason
            for letter in OutcomeStore(self.database).dead_letters(job.job_id)
        }

    def queued(self, job: Job) -> set[str]:
        raws = self.server.client().lrange("penstock.api", 0, -1)
        return {json.loads(as_bytes(raw))["headers"]["id"].rpartition(":")[2] for raw in raws}

    def read(self, job: Job) -> list[Document | BadRow]:
        return list(open_feed_source(self.database, job.job_id, 1).documents({}))


@pytest.fixture
def house(tmp_path: Path, redis_server: RedisServer) -> Iterator[House]:
    url = f"sqlite:///{tmp_path}/ledger.db"
    database = open_database(url)
    database.migrate()
    with Producer(ProducerSettings(database_url=url, redis_url=redis_server.url)) as producer:
        redis = RedisLedger(redis_server.client(), Meta(database).epoch())
        redis.install_epoch()
        yield House(producer, database, redis, redis_server)
        database.close()


def test_a_job_has_the_rows_that_were_there_at_its_submit(
    home: Home, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are added before, between and after are not read; values are those of the moment;
    the count stays true."""
    monkeypatch.setattr(relation, "ROWS", 3)
    monkeypatch.setattr(columns, "PAGE_ROWS", 4)
    home.fill([(number * 10, f"t{number}") for number in range(1, 11)])
    job = house.submit(home)
    home.run(
        "INSERT INTO docs VALUES (5, 'new'), (15, 'new'), (999, 'new')",
        "UPDATE docs SET text = 'later' WHERE id = 20",
    )
    rows = house.read(job)
    assert [row.doc_id for row in rows] == [str(number * 10) for number in range(1, 11)]
    assert [asked(row) for row in rows][:3] == ["t1", "later", "t3"]
    assert job.total == 10
    source = open_feed_source(house.database, job.job_id, 1)
    for index, row in enumerate(rows):
        assert list(source.documents(row.cursor)) == rows[index + 1 :]


def test_rows_that_are_gone_or_spoilt_become_dead_letters(home: Home, house: House) -> None:
    """With the reason; the others are fed, a row that was refused and is put right stays refused,
    and all are counted."""
    home.fill([(1, "a"), (2, "b"), (3, None), (4, "d")])
    job = house.submit(home)
    assert house.dead(job) == {"3": "missing_field"}
    home.run(
        "DELETE FROM docs WHERE id = 1",
        "UPDATE docs SET text = NULL WHERE id = 2",
        "UPDATE docs SET text = 'c' WHERE id = 3",
    )
    step = house.feeder(job).step(10)
    assert (step.published, step.exhausted) == (1, True)
    assert house.dead(job) == {"1": "source_lost", "2": "missing_field", "3": "missing_field"}
    counts = OutcomeStore(house.database).counts(job.job_id)
    assert counts.dead + step.published == job.total


def test_a_feeder_that_dies_is_followed_from_its_cursor(
    home: Home, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one goes on behind what was published: everything once, nothing left out."""
    monkeypatch.setattr(relation, "ROWS", 3)
    home.fill([(number, f"t{number}") for number in range(20)])
    job = house.submit(home)
    first = house.feeder(job)
    assert first.step(7).published == 7
    JobStore(house.database).release_feed(first.feed, "me")
    rest = house.feeder(job).step(100)
    assert (rest.published, rest.skipped, rest.exhausted) == (13, 0, True)


def test_a_lost_message_of_a_row_that_is_gone_becomes_a_dead_letter(
    home: Home, house: House
) -> None:
    """It cannot be published again, and the others are."""
    home.fill([(1, "a"), (2, "b")])
    job = house.submit(home)
    feeder = house.feeder(job)
    feeder.step(10)
    house.server.client().delete("penstock.api")
    home.run("DELETE FROM docs WHERE id = 1")
    assert republish(feeder, [("1", "1"), ("2", "2")]) == 1
    assert house.dead(job) == {"1": "source_lost"}


def test_a_document_by_reference_is_read_by_its_key(home: Home, house: House) -> None:
    """A worker fetches it from the table; one that is gone, or spoilt, is that document's trouble
    alone."""
    home.fill([("a/1", "x" * 40_000), ("b", "y")], "id text PRIMARY KEY, text text")
    job = house.submit(home)
    first, second = house.read(job)
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    source = open_feed_source(house.database, job.job_id, 1)
    assert source.fetch(first.position).body == first.body
    home.run("DELETE FROM docs WHERE id = 'b'", "UPDATE docs SET text = NULL")
    for row, words in ((first, "id 'a/1': missing_field"), (second, "id 'b': source_lost")):
        with pytest.raises(RowChanged, match=words):
            source.fetch(row.position)


def test_the_same_submit_is_the_same_job_while_it_runs(home: Home, house: House) -> None:
    """A table that has grown does not stop it from being resumed; once it has ended, the new rows
    are another content."""
    home.fill([(1, "a")])
    job = house.submit(home, job_key="nightly")
    home.run("INSERT INTO docs VALUES (2, 'b')")
    assert house.submit(home, job_key="nightly").job_id == job.job_id
    with pytest.raises(JobConflict, match="table was 'docs', is now 'other'"):
        house.submit(home, SPEC.model_copy(update={"table": "other"}), job_key="nightly")
    JobStore(house.database).set_state(job.job_id, JobState.COMPLETED, expect=[JobState.RUNNING])
    with pytest.raises(JobConflict, match="has changed"):
        house.submit(home, job_key="nightly")
    home.run("DELETE FROM docs WHERE id = 2")
    assert house.submit(home, job_key="nightly").job_id == job.job_id


@pytest.mark.parametrize(
    "change", ["DROP TABLE docs", "ALTER TABLE docs RENAME COLUMN text TO body"]
)
def test_a_table_that_is_not_what_it_was_pauses_its_job(
    home: Home, house: House, change: str
) -> None:
    """A person may put it back, so the job waits and does not fail."""
    home.fill([(1, "a")])
    job = house.submit(home)
    home.run(change)
    with pytest.raises(SourceUnavailable, match=r"source_changed: .*resume"):
        house.feeder(job).step(10)


def test_feeders_lead_ranges_of_keys(
    home: Home, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shard reads its rows and no others, also where the row at its end is gone, and all are
    fed once."""
    monkeypatch.setattr(relation, "ROWS", 3)
    monkeypatch.setattr(columns, "PAGE_ROWS", 4)
    home.fill([(number, None if number == 5 else f"t{number}") for number in range(20)])
    job = house.submit(home, SPEC.model_copy(update={"feeders": 3}))
    jobs = JobStore(house.database)
    shards = [shard for shard, _ in jobs.shards(job.job_id)]
    whole = house.read(job)
    parts = [
        list(source_of(house.database, job, shard).documents(shard.cursor)) for shard in shards
    ]
    assert [len(part) for part in parts] == [7, 6, 7]
    assert [row for part in parts for row in part] == whole
    home.run("DELETE FROM docs WHERE id IN (6, 12)")
    names = [(job.job_id, 1, shard.shard) for shard in shards]
    feeders = [
        open_feeder(house.database, house.redis, job, feed, owner=f"feeder-{feed.shard}")
        for name in names
        for feed in jobs.lease_shards([name], f"feeder-{name[2]}", 30)
    ]
    while not all(feeder.feed.exhausted for feeder in feeders):
        for feeder in feeders:
            if not feeder.feed.exhausted:
                feeder.step(2)
    assert house.dead(job) == {"5": "missing_field", "6": "source_lost", "12": "source_lost"}
    assert house.queued(job) == {str(number) for number in range(20) if number not in (5, 6, 12)}
    told = feeders_line(jobs.get(job.job_id), jobs.shards(job.job_id), one_machine=True)
    assert told.startswith("read by 3 feeders (as the job says): 3 at their end")


def test_keys_go_with_their_job(home: Home, house: House) -> None:
    """A purge removes them; a ledger that has lost them says so."""
    home.fill([(1, "a")])
    job = house.submit(home)
    with house.database.engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM source_keys")).scalar() == 1
        connection.execute(text("DELETE FROM source_keys"))
    with pytest.raises(SourceError, match="the ledger has lost which rows"):
        house.read(job)
    other = house.submit(home)
    purge_job(house.database, other.job_id)
    with house.database.engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM source_keys")).scalar() == 0


# -- PostgreSQL's own ------------------------------------------------------------------------------


def test_values_of_every_type_are_texts_numbers_and_lists(postgres: Home) -> None:
    """Dates that Python has not, decimals, arrays, JSON, ranges, enums, bits and composite values,
    each as JSON has it."""
    postgres.run(
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE TABLE docs (id uuid PRIMARY KEY, d date, t timestamptz, n numeric, f float8, b "
        "bool, a int[], tt text[], j jsonb, r int4range, m mood, v varchar(5), ti time, iv "
        "interval, ip inet)",
        "INSERT INTO docs VALUES ('00000000-0000-0000-0000-000000000001', '12000-01-01', "
        "'infinity', 12345678901234567890.5, 1.5, true, '{1,null}', ARRAY['a,\"'], '{\"x\": "
        "{\"y\": [1]}}', '[1,5)', 'sad', 'v', '12:30', '1 day', '10.0.0.1')",
    )
    names = ("d", "t", "n", "f", "b", "a", "tt", "j.x.y", "r", "m", "v", "ti", "iv", "ip")
    (row,) = postgres.rows(spec(table="docs", prompt=" | ".join(f"{{{name}}}" for name in names)))
    assert row.doc_id == "00000000-0000-0000-0000-000000000001"
    assert asked(row) == (
        '12000-01-01 | infinity | 12345678901234567890.5 | 1.5 | true | [1,null] | ["a,\\""] | '
        "[1] | [1,5) | sad | v | "
        "12:30:00 | 1 day | 10.0.0.1"
    )


def test_values_that_json_has_not_are_refused(postgres: Home) -> None:
    """NaN, in numbers and decimals, numbers beyond 64 bits and deep nesting within JSON; the rows
    beside them are read."""
    deep = "[" * 200 + "]" * 200
    postgres.run(
        "CREATE TABLE docs (id int PRIMARY KEY, f float8, n numeric, j json)",
        f"INSERT INTO docs VALUES (1, 'NaN', 1, '1'), (2, 1, 'NaN', '1'), (3, 1, 1, '{deep}'), (4, "
        f"1, 1, '{'9' * 30}'), (5, 1, 1, '\"\\u0000\"'), (6, 1, 1, '2')",
    )
    rows = postgres.rows(spec(table="docs", prompt="{f} {n} {j}"))
    assert [code(row) for row in rows[:5]] == [
        "invalid_number",
        "invalid_number",
        "nesting_too_deep",
        "invalid_number",
        "nul_character",
    ]
    assert all(row.field in ("f", "n", "j") for row in rows[:5] if isinstance(row, BadRow))
    assert asked(rows[5]) == "1.0 1 2"


KEYS = {
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "smallint": ["1", "2"],
    "uuid": ["'5aa8f0f2-0000-4000-8000-000000000001'", "'6aa8f0f2-0000-4000-8000-000000000001'"],
    "timestamptz": ["'2026-01-01 00:00:00.123456+02'", "'infinity'"],
    "date": ["'0044-03-15 BC'", "'2026-01-01'"],
    "timestamp": ["'2026-01-01 00:00:00.1'", "'2026-01-01 00:00:00.2'"],
    "numeric": ["1.10", "2e100"],
    "varchar(9)": ["'a'", "'b'"],
    "char(4)": ["'a'", "'b'"],
    'text COLLATE "C"': ["'B'", "'a'"],
}


def test_keys_of_these_types_find_their_rows(postgres: Home, house: House) -> None:
    """Exactly, from the survey to the fetch."""
    for number, (type_, values) in enumerate(KEYS.items()):
        postgres.run(
            f"CREATE TABLE docs{number} (id {type_} PRIMARY KEY, text text)",
            f"INSERT INTO docs{number} VALUES "
            f"{', '.join(f'({value}, $${value}$$)' for value in values)}",
        )
        job = house.submit(postgres, spec(table=f"docs{number}"))
        rows = house.read(job)
        assert [asked(row) for row in rows] == values, type_
        source = open_feed_source(house.database, job.job_id, 1)
        assert [
            asked(source.fetch(row.position)) for row in rows if isinstance(row, Document)
        ] == values, type_


def test_keys_of_other_types_are_refused(postgres: Home) -> None:
    """With the query that makes a text of them."""
    postgres.run(
        "CREATE TABLE docs (id float8 PRIMARY KEY, text text)", "INSERT INTO docs VALUES (1.5, 'a')"
    )
    with pytest.raises(SourceError, match=r"invalid_key: .* of type float8, .*CAST\(id AS text\)"):
        postgres.rows()
    assert [
        row.doc_id
        for row in postgres.rows(spec(query="SELECT CAST(id AS text) AS id, text FROM docs"))
    ] == ["1.5"]


def test_two_columns_of_one_name_are_refused(postgres: Home) -> None:
    """Nothing says which of them a prompt means. (SQLite gives the second another name.)"""
    with pytest.raises(SourceError, match=r"duplicate_column: the query on .* two columns 'id'"):
        postgres.rows(spec(query="SELECT 1 AS id, 2 AS id"))


def test_a_schema_is_named_before_the_table(postgres: Home) -> None:
    """`sales.docs` is another table than `docs`."""
    postgres.run(
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.docs (id int PRIMARY KEY, text text)",
        "INSERT INTO sales.docs VALUES (1, 'a')",
    )
    assert [asked(row) for row in postgres.rows(spec(table="sales.docs"))] == ["a"]


def test_a_query_cannot_write(postgres: Home) -> None:
    """Not even by a function: the transaction reads only."""
    postgres.run(
        "CREATE TABLE docs (id serial PRIMARY KEY, text text)",
        "INSERT INTO docs (text) VALUES ('a')",
    )
    with pytest.raises(SourceError, match=r"query_writes: .* opened for reading only"):
        postgres.rows(spec(query="SELECT nextval('docs_id_seq') AS id, text FROM docs"))


def test_a_query_that_does_not_end_is_stopped(home: Home) -> None:
    """By the setting, which the message names."""
    endless = (
        "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) SELECT id, 'a' AS text "
        "FROM n WHERE id < 0"
    )
    home.fill([(1, "a")])
    with pytest.raises(
        SourceUnavailable, match=r"source_timeout: .* within 0.3 s; .*source_query_timeout_s"
    ):
        home.rows(spec(query=endless), source_query_timeout_s=0.3)


def test_a_server_that_goes_away_is_waited_for(own_postgres: Any, house: House) -> None:
    """The feed says that the source is unavailable, and goes on where it was once it is back."""
    url = own_postgres.new_database()
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    home = Home(url, engine)
    home.fill([(number, f"t{number}") for number in range(10)])
    job = house.submit(home)
    feeder = house.feeder(job)
    assert feeder.step(4).published == 4
    engine.dispose()
    own_postgres.restart()
    rest = feeder.step(100)
    assert (rest.published, rest.exhausted) == (6, True)
    own_postgres.handle.cleanup()
    with pytest.raises(SourceUnavailable, match="cannot be read now"):
        open_feed_source(house.database, job.job_id, 1).fetch("1")


def test_a_column_without_an_index_is_warned_of(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows are found by it again and again.

    DuckDB looks through a column quickly, and needs none."""
    home.run("CREATE TABLE docs (id integer, text text)", "INSERT INTO docs VALUES (1, 'a')")
    home.rows()
    assert ("has no index that begins with 'id'" in caplog.text) is not home.url.startswith(
        "duckdb"
    )
    caplog.clear()
    home.run("CREATE INDEX by_id ON docs (id, text)")
    home.rows()
    home.run("CREATE VIEW seen AS SELECT * FROM docs")
    home.rows(spec(table="seen"))
    assert not caplog.text


# -- SQLite's own ----------------------------------------------------------------------------------


def test_values_bring_their_types_with_them_in_sqlite(tmp_path: Path) -> None:
    """Numbers, texts that are not UTF-8, bytes and infinite numbers in a column of any type."""
    url = f"sqlite:///{tmp_path}/docs.db"
    engine = create_engine(url)
    home = Home(url, engine)
    home.run(
        "CREATE TABLE docs (id INTEGER PRIMARY KEY, text)",
        "INSERT INTO docs VALUES (1, 5), (2, CAST(x'ff61' AS TEXT)), (3, x'00'), (4, 9e999), (5, "
        "1.5), (6, 'a' || char(0))",
    )
    rows = home.rows()
    assert (asked(rows[0]), asked(rows[4])) == ("5", "1.5")
    assert [code(rows[at]) for at in (1, 2, 3, 5)] == [
        "invalid_unicode",
        "invalid_type",
        "invalid_number",
        "nul_character",
    ]
    engine.dispose()


def test_keys_of_several_types_are_refused_in_sqlite(tmp_path: Path) -> None:
    """1 and '1' would be one document's id."""
    url = f"sqlite:///{tmp_path}/docs.db"
    home = Home(url, create_engine(url))
    home.run(
        "CREATE TABLE docs (id PRIMARY KEY, text)", "INSERT INTO docs VALUES (1, 'a'), ('1', 'b')"
    )
    with pytest.raises(SourceError, match=r"invalid_key: .* numbers and texts, as 1 and '1'"):
        home.rows()
    home.engine.dispose()


def test_a_file_of_sqlite_is_only_read(tmp_path: Path) -> None:
    """It is not made, not changed, and nothing else is taken for one."""
    missing, other = tmp_path / "missing.db", tmp_path / "in.jsonl"
    other.write_text('{"id": 1, "text": "a"}\n' * 10)
    with pytest.raises(SourceUnavailable, match="there is no such file"):
        list(open_source(f"sqlite:///{missing}", SPEC).documents({}))
    assert not missing.exists()
    with pytest.raises(SourceError, match="is not a database of SQLite"):
        list(open_source(f"sqlite:///{other}", SPEC).documents({}))
    with pytest.raises(SourceError, match="is a folder"):
        list(open_source(f"sqlite:///{tmp_path}", SPEC).documents({}))


# -- DuckDB's own, and databases without a driver --------------------------------------------------


@pytest.fixture
def duckdb(tmp_path: Path) -> Iterator[Home]:
    url = f"duckdb:///{tmp_path}/docs.duckdb"
    engine = create_engine(url, poolclass=NullPool)
    yield Home(url, engine)
    engine.dispose()


def test_values_of_duckdb_become_what_those_of_postgresql_do(duckdb: Home) -> None:
    """Decimals, times and uuids are texts, lists and structs JSON; numbers that JSON has not are
    refused one by one."""
    duckdb.run(
        "CREATE TABLE docs (id bigint, v DECIMAL(9, 2), made TIMESTAMP, day DATE, u UUID, l "
        "INTEGER[], s STRUCT(a INTEGER, b DATE), f DOUBLE, ok BOOLEAN)",
        "INSERT INTO docs VALUES (1, 1.50, '2026-11-22 17:30:00', '2026-11-22', "
        "'0b0bbf4c-12d2-4d6c-a8d3-8fbd5f4ac0f6', [1, 2], {'a': 1, 'b': DATE '2026-01-02'}, 0.5, "
        "true), (2, NULL, NULL, NULL, NULL, NULL, NULL, 'nan', NULL)",
    )
    shown = spec(table="docs", prompt="{v} {made} {day} {u} {l} {s.a} {s.b} {f} {ok}")
    first, second = duckdb.rows(shown)
    assert asked(first) == (
        "1.50 2026-11-22T17:30:00 2026-11-22 0b0bbf4c-12d2-4d6c-a8d3-8fbd5f4ac0f6 [1,2] 1 "
        "2026-01-02 0.5 true"
    )
    assert code(second) == "invalid_number"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("uuid()", "is UUID"),
        ("1.5::DECIMAL(3, 1)", "is Decimal"),
        ("repeat('x', 3000)", "has 3000 bytes"),
    ],
)
def test_keys_that_find_no_rows_are_refused_with_the_query_that_makes_one(
    duckdb: Home, key: str, words: str
) -> None:
    """Before any row is read."""
    duckdb.run("SELECT 1")
    with pytest.raises(SourceError, match=rf"invalid_key: .*'id' {words}.*query=SELECT CAST"):
        duckdb.rows(spec(query=f"SELECT {key} AS id, 'a' AS text"))


def test_rows_without_a_key_are_bad_rows_of_their_own(
    duckdb: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come first, over any number of pages, and each is counted."""
    monkeypatch.setattr(relation, "ROWS", 2)
    duckdb.run(
        "CREATE TABLE docs (id integer, text text)",
        "INSERT INTO docs VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    )
    duckdb.run("INSERT INTO docs SELECT NULL, 'x' FROM range(5)")
    rows = duckdb.rows()
    assert [code(row) for row in rows[:5]] == ["invalid_id"] * 5
    assert [asked(row) for row in rows[5:]] == ["a", "b", "c"]
    assert [row.line for row in rows] == list(range(1, 9))


def test_a_file_of_duckdb_is_only_read_and_not_kept_open(duckdb: Home, tmp_path: Path) -> None:
    """It is not made, not changed, and its owner can write it while the job runs."""
    missing = tmp_path / "missing.duckdb"
    with pytest.raises(SourceUnavailable, match="there is no such file"):
        list(open_source(f"duckdb:///{missing}", SPEC).documents({}))
    assert not missing.exists()
    duckdb.fill([(1, "a"), (2, "b")])
    source = duckdb.open()
    assert asked(source.fetch("1")) == "a"
    duckdb.run("UPDATE docs SET text = 'later'")
    assert asked(source.fetch("2")) == "later"
