"""What is asked of a PostgreSQL server: bounded waits, named connections, nothing left in a
session."""

from __future__ import annotations

import time

import pytest
from alembic import command
from servers import Postgres
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from penstock_cli.doctor import checks
from penstock_cli.doctor.worker import Verdict
from penstock_ledger import HEAD, Database, JobStore, TablesInUse, Waits, open_database
from penstock_ledger.migrations import alembic_config
from penstock_ledger.model import NewJob
from penstock_ledger.sql.tables import metadata
from penstock_workers.settings import WorkerSettings
from penstock_workers.stores import pool_sizes


def sleep(connection: Connection) -> None:
    connection.execute(text("SELECT pg_sleep(30)"))


def test_a_statement_has_an_end(postgres_url: str) -> None:
    """A statement that the server does not finish in time fails, and the connection is good for the
    next one."""
    db = open_database(postgres_url, waits=Waits(statement_s=0.2), pool_size=1)
    db.migrate()
    began = time.monotonic()
    with pytest.raises(OperationalError, match="statement timeout"):
        db.read(sleep)
    assert time.monotonic() - began < 5
    assert JobStore(db).list() == []
    db.close()


def test_a_wait_for_a_lock_has_an_end(postgres_url: str) -> None:
    """Another session holds a table: a write tries five times and fails, instead of hanging with
    what it holds itself."""
    db = open_database(postgres_url, waits=Waits(lock_s=0.05))
    db.migrate()
    with db.engine.begin() as holder:
        holder.execute(text("LOCK TABLE jobs"))
        with pytest.raises(OperationalError, match="lock timeout"):
            db.write(lambda connection: connection.execute(text("DELETE FROM jobs")))
    db.close()


def test_a_migration_steps_back_from_a_table_that_is_read(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long read holds a table: the migration waits a bounded time and changes nothing, writes get
    through, and the error names who reads, as `penstock doctor --migrate` does; when the read has
    ended, it works."""
    step_back = Database.migrate
    db, reader = open_database(postgres_url), open_database(postgres_url, role="report")
    db.migrate()
    with db.engine.begin() as connection:
        command.downgrade(alembic_config(connection, metadata), "0010")
    with reader.engine.begin() as holder:
        holder.execute(text("SELECT count(*) FROM outcomes"))
        with pytest.raises(
            TablesInUse,
            match=r"5 times no lock came within 0.05 s \(.*PID \d+ \(penstock-report@.* for \d+ s",
        ):
            db.migrate(lock_s=0.05)
        monkeypatch.setattr(Database, "migrate", lambda db: step_back(db, lock_s=0.05))
        (told,) = checks._database(postgres_url, migrate=True)
        assert told.verdict is Verdict.BAD
        assert "its tables were not changed: other transactions hold tables" in told.seen
        assert "end them: SELECT pg_terminate_backend" in told.fix
        monkeypatch.undo()
        db.write_unchecked(lambda connection: connection.execute(text("DELETE FROM outcomes")))
        assert db.revision() == "0010", "nothing was changed"
    db.migrate(lock_s=0.05)
    assert db.revision() == HEAD
    for handle in (db, reader):
        handle.close()


def test_a_database_without_an_encoding_is_read_as_utf8(postgres_server: Postgres) -> None:
    """SQL_ASCII stores bytes as they come: ids and names in any script come back as they were
    written."""
    db = open_database(
        postgres_server.new_database(
            "encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0"
        )
    )
    db.migrate()
    JobStore(db).create(NewJob("job-a", "tickets-日本語-ü", {"prompt": "¿{text}?"}, {}, "d", None))
    assert [(job.job_key, job.spec) for job in JobStore(db).list()] == [
        ("tickets-日本語-ü", {"prompt": "¿{text}?"})
    ]
    db.close()


def test_connections_say_whose_they_are_and_keep_no_setting(postgres_url: str) -> None:
    """pg_stat_activity names role, host and process; limits end with their transaction, and nothing
    is ever prepared."""
    db = open_database(postgres_url, role="worker", pool_size=1)
    db.migrate()
    for _ in range(10):
        JobStore(db).list()
    with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as raw:
        raw.exec_driver_sql("ROLLBACK")
        name, statement, lock, prepared = raw.execute(
            text(
                "SELECT current_setting('application_name'), current_setting('statement_timeout'),"
                " current_setting('lock_timeout'), (SELECT count(*) FROM pg_prepared_statements)"
            )
        ).one()
    assert name.startswith("penstock-worker@")
    assert (statement, lock, prepared) == ("0", "0", 0)
    db.close()


def test_a_url_keeps_its_own_options(postgres_url: str) -> None:
    """What a URL says of a connection goes before what we would say."""
    db = open_database(f"{postgres_url}&application_name=nightly&connect_timeout=3")
    with db.engine.connect() as connection:
        assert (
            connection.execute(text("SELECT current_setting('application_name')")).scalar_one()
            == "nightly"
        )
    db.close()


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({}, {"worker": 4, "control": 2}),
        ({"control": False}, {"worker": 4}),
        ({"database_pool": 10}, {"worker": 8, "control": 2}),
        ({"database_pool": 2}, {"worker": 1, "control": 1}),
        ({"database_pool": 3, "control": False}, {"worker": 3}),
    ],
)
def test_a_process_opens_no_more_than_its_pool(
    given: dict[str, int], parts: dict[str, int]
) -> None:
    """The setting is for the whole process: what hosts control takes that out of the same
    number."""
    assert pool_sizes(WorkerSettings.model_validate(given)) == parts


def test_doctor_counts_connections(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for another worker is good; none is bad, with the three ways out."""
    good = {finding.subject: finding for finding in checks._database(postgres_url, migrate=True)}[
        "pool"
    ]
    assert good.verdict is Verdict.GOOD
    assert "a worker opens up to 6" in good.seen
    monkeypatch.setenv("PENSTOCK_DATABASE_POOL", "100")
    full = {finding.subject: finding for finding in checks._database(postgres_url, migrate=False)}[
        "pool"
    ]
    assert full.verdict is Verdict.BAD
    assert "PgBouncer" in full.fix
