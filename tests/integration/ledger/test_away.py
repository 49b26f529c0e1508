"""A database that is down, and one that a fork's child inherits."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from small_disk import small_disk
from sqlalchemy import Connection

from penstock_cli.chaos.injections import read_only
from penstock_ledger import JobStore, open_database
from penstock_ledger.sql.tables import meta
from penstock_producer import DatabaseUnavailable, JobSpec, Producer, ProducerSettings

SPEC = JobSpec(prompt="{text}", model="m")


def test_a_database_that_is_down_is_an_error_of_ours() -> None:
    """Host and database are named, the password is not, and no driver's class has to be caught
    (D17)."""
    producer = Producer(
        ProducerSettings(database_url="postgresql://anna:hush-hush@127.0.0.1:1/night")
    )
    with pytest.raises(
        DatabaseUnavailable, match=r"127\.0\.0\.1:1/night does not answer \(.*refused"
    ) as caught:
        producer.open_job(SPEC)
    producer.close()
    assert "hush" not in str(caught.value)


def test_a_sqlite_file_that_cannot_be_opened_is_an_error_of_ours(tmp_path: Path) -> None:
    """A path that is a folder is named (D17)."""
    (tmp_path / "penstock.db").mkdir()
    database = open_database(f"sqlite:///{tmp_path}/penstock.db")
    with pytest.raises(DatabaseUnavailable, match=r"penstock\.db does not answer \(unable to open"):
        JobStore(database).list()


def test_a_file_that_could_not_be_written_is_written_once_it_can_be(tmp_path: Path) -> None:
    """On a read-only disk no connection is made: where others have the file open, SQLite would open
    it to be read, and a process with one such connection could not write for ever."""
    with small_disk(tmp_path / "disk", 8) as place:
        others, ours = (open_database(f"sqlite:///{place}/ledger.db") for _ in range(2))
        others.migrate()
        with read_only(place):
            with pytest.raises(DatabaseUnavailable, match="read-only file system"):
                JobStore(ours).list()
            assert JobStore(others).list() == []
        assert JobStore(ours).list() == []
        assert ours.write(write) == 1
        ours.close()
        others.close()


def write(connection: Connection) -> int:
    return connection.execute(meta.insert(), {"name": "a", "value": "b"}).rowcount


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_producer_works_on_both_sides_of_a_fork(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child opens connections of its own, and the parent's go on: as under gunicorn's preload and
    multiprocessing (D4)."""
    # only what is asked for is flushed
    monkeypatch.setattr("penstock_producer.open_job.FLUSH_AFTER_S", 3600.0)
    url = (
        f"sqlite:///{tmp_path}/ledger.db"
        if kind == "sqlite"
        else request.getfixturevalue("migrated_url")
    )
    migrated = open_database(url)
    migrated.migrate()
    migrated.close()
    with Producer(ProducerSettings(database_url=url)) as producer:
        with producer.open_job(SPEC, job_key="night") as job:
            job.enqueue("before", {"text": "1"})
            job.flush()
            job.enqueue("of-the-parent", {"text": "1"})
            child = os.fork()
            if child == 0:
                _exit_as(lambda: _push(producer, job.job_id))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert job.flush() == 1  # what was buffered before the fork stays the parent's to write
        assert job.close() == 22
        assert producer.status("night").job.total == 22


def _push(producer: Producer, job_id: str) -> None:
    job = producer.open_job(SPEC, job_key="night")
    assert job.job_id == job_id
    for number in range(20):
        job.enqueue(f"child-{number}", {"text": "1"})
        job.flush()


def _exit_as(work: Callable[[], None]) -> None:
    """End the child without the test's own clean-up: 0 when ``work`` succeeds."""
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)
