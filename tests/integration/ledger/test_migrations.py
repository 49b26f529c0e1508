"""The schema: created once by the process that comes first, equal to what the code thinks it is,
never newer than the code."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, update

from penstock_ledger import (
    HEAD,
    Database,
    DatabaseUnusable,
    ItemKey,
    JobStore,
    NewJob,
    OutcomeStore,
    Result,
    SchemaMissing,
    SchemaTooNew,
    open_database,
)
from penstock_ledger.migrations import alembic_config
from penstock_ledger.sql.database import upgrade
from penstock_ledger.sql.tables import metadata, outcomes

MIGRATE = (
    "import sys; from penstock_ledger import open_database; open_database(sys.argv[1]).migrate()"
)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


def test_the_migrated_schema_is_the_one_that_queries_expect(empty_url: str) -> None:
    """Migrations and tables.py describe the same tables, columns and indexes, but for PostgreSQL's
    own numbers of rows."""

    def of_both(_: object, name: str | None, kind: str, reflected: bool, compared: object) -> bool:
        return (kind, name) not in (
            ("column", "seq"),
            ("index", "outcomes_seq"),
        ) or compared is not None

    db = open_database(empty_url)
    db.migrate()
    with db.engine.connect() as connection:
        options = {"compare_type": True, "include_object": of_both}
        differences = compare_metadata(
            MigrationContext.configure(connection, opts=options), metadata
        )
    db.close()
    assert differences == []


def test_the_newest_migration_is_the_one_that_the_code_asks_for() -> None:
    """HEAD, which is checked without loading Alembic, is Alembic's head."""
    assert ScriptDirectory.from_config(alembic_config()).get_heads() == [HEAD]


def test_a_new_file_gets_what_all_migrations_make_of_it(tmp_path: Path) -> None:
    """Tables, columns, indexes and views are the same, statement by statement, whether Alembic made
    them or not."""
    at_once, step_by_step = (
        open_database(f"sqlite:///{tmp_path}/{name}.db") for name in ("a", "b")
    )
    at_once.migrate()
    step_by_step.write_unchecked(upgrade)
    assert statements(at_once) == statements(step_by_step)
    assert at_once.revision() == step_by_step.revision() == HEAD
    at_once.close()
    step_by_step.close()


def statements(db: Database) -> dict[str, str]:
    with db.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master").all()
    return {name: "".join(str(sql).split()) for name, sql in rows}


def test_processes_that_start_together_migrate_once(empty_url: str) -> None:
    """Several processes may migrate an empty database at the same moment; all find it ready."""
    starts = [
        subprocess.Popen([sys.executable, "-c", MIGRATE, empty_url], stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    failures = [
        stderr.decode()
        for process in starts
        if (stderr := process.communicate()[1]) and process.returncode
    ]
    assert failures == []
    db = open_database(empty_url)
    assert db.revision() == HEAD
    assert JobStore(db).list() == []
    db.close()


def test_migrating_from_threads_of_one_handle_is_safe(empty_url: str) -> None:
    """One handle may be migrated from several threads, again and again."""
    db = open_database(empty_url)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: db.migrate(), range(8)))
    assert db.revision() == HEAD
    db.close()


def test_a_database_without_tables_says_what_to_do(empty_url: str) -> None:
    """A missing schema is named with the command that makes it, not as `no such table`."""
    db = open_database(empty_url)
    with pytest.raises(SchemaMissing, match="penstock migrate"):
        JobStore(db).list()
    db.migrate()
    assert JobStore(db).list() == []
    db.close()


def test_a_database_of_a_newer_release_is_left_alone(empty_url: str) -> None:
    """An old worker that was not upgraded stops with a clear error before it writes a row."""
    db = open_database(empty_url)
    db.migrate()
    with db.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    db.close()
    old = open_database(empty_url)
    with pytest.raises(SchemaTooNew, match="9999"):
        JobStore(old).list()
    with pytest.raises(SchemaTooNew, match="upgrade"):
        old.migrate()
    old.close()


def test_a_downgrade_leaves_nothing_behind(empty_url: str) -> None:
    """The first migration can be taken back and done again."""
    from alembic import command

    db = open_database(empty_url)
    db.migrate()
    db.write_unchecked(lambda connection: command.downgrade(alembic_config(connection), "base"))
    assert db.revision() is None
    db.migrate()
    assert db.revision() == HEAD
    db.close()


def test_what_no_price_was_known_of_stays_unknown(empty_url: str) -> None:
    """Before revision 18 a sum of tokens at no cost meant it; of jobs whose outcomes say it
    themselves a cost of 0 is one."""
    from alembic import command

    db = open_database(empty_url)
    db.migrate()
    for job_id in ("before", "free"):
        JobStore(db).create(NewJob(job_id, job_id, {}, {"kind": "file"}, job_id, 1))
        answered = Result(ItemKey(job_id, 1, "d"), 200, b"{}", None, "m", "stop", 3, 4, 0, 5, 1, 1)
        OutcomeStore(db, "api").settle([answered], [])

    def go_back(connection: Connection) -> None:
        said = update(outcomes).where(outcomes.c.job_id == "before")
        connection.execute(said.values(unpriced=None))
        command.downgrade(alembic_config(connection), "0017")

    db.write_unchecked(go_back)
    db.migrate()
    assert [OutcomeStore(db).counts(job_id).unpriced for job_id in ("before", "free")] == [1, 0]
    db.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://x/y", "mysql"),
        ("sqlite://", "file"),
        ("sqlite:///:memory:", "file"),
        ("not a url", "is not a URL"),
        ("sqlite:////no/such/folder/x.db", "/no/such/folder"),
    ],
)
def test_an_unusable_url_is_refused_with_its_fix(url: str, says: str) -> None:
    """A wrong setting is found when the database is opened, not at the first query."""
    with pytest.raises(DatabaseUnusable, match=says):
        open_database(url)
