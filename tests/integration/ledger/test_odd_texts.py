"""Odd texts and refused rows: what a store is given by strangers must neither stop it nor reach a
log."""

from __future__ import annotations

import logging
import random
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec import structs
from servers import RedisServer
from sqlalchemy import LargeBinary, String
from sqlalchemy.exc import DBAPIError

from penstock_ledger import (
    Database,
    DatabaseUnavailable,
    DeadLetter,
    ItemKey,
    JobState,
    JobStore,
    Meta,
    NewJob,
    OutcomeStore,
    RedisLedger,
    Result,
    Spool,
    Trouble,
    in_words,
    open_database,
    purge_job,
    trouble_of,
)
from penstock_ledger.reasons import by_hand
from penstock_ledger.sql.sqlite_file import WriteLock
from penstock_ledger.sql.tables import metadata
from penstock_ledger.stored_values import FIGURE_MAX, Words

ODD = "nul \0, lone surrogate \ud800, end"
PLAIN = "nul \N{REPLACEMENT CHARACTER}, lone surrogate \N{REPLACEMENT CHARACTER}, end"


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = (
        f"sqlite:///{tmp_path}/odd.db"
        if request.param == "sqlite"
        else request.getfixturevalue("migrated_url")
    )
    database = open_database(url)
    database.migrate()
    yield database
    database.close()


def new_job(job_id: str = "job-a", **changes: object) -> NewJob:
    job = NewJob(
        job_id, job_id, {"lane": "api"}, {"kind": "file", "uri": "x"}, "digest-1", total=10
    )
    return replace(job, **changes)  # type: ignore[arg-type]  # fields of NewJob, as the caller names them


def result(doc: str = "a", **changes: object) -> Result:
    made = Result(ItemKey("job-a", 1, doc), 200, b"{}", "req", "m", "stop", 1, 2, 3, 4, 1, 1)
    return structs.replace(made, **changes)


def letter(doc: str = "b", **changes: object) -> DeadLetter:
    made = DeadLetter(ItemKey("job-a", 1, doc), "http_400", 1, 1, "no", 400, b"{}", None)
    return replace(made, **changes)  # type: ignore[arg-type]  # fields of DeadLetter, as the caller names them


def test_every_text_column_passes_the_one_function() -> None:
    """There is no text column in any table whose values do not pass `storable` on their way in
    (A4)."""
    columns = [column for table in metadata.sorted_tables for column in table.columns]
    assert len(columns) > 40
    texts = [column for column in columns if isinstance(column.type, String | Words)]
    assert {type(column.type) for column in texts} == {Words}
    assert not any(isinstance(column.type, LargeBinary) for column in texts)


WRITES: dict[str, Callable[[Database], object]] = {
    "create a job": lambda db: JobStore(db).create(
        new_job("job-b", spec={ODD: [ODD, {"x": ODD}]}, source={"uri": ODD}), [letter(reason=ODD)]
    ),
    "create by an odd key": lambda db: JobStore(db).create(new_job("job-d", job_key=ODD)),
    "pause for a reason": lambda db: JobStore(db).set_state(
        "job-a", JobState.PAUSED, why=by_hand(ODD), expect={JobState.RUNNING}
    ),
    "amend": lambda db: JobStore(db).amend("job-a", {"prompt": ODD}, ODD, expect="digest-1"),
    "look for odd names": lambda db: (
        JobStore(db).feeds(ODD),
        OutcomeStore(db).get(ODD, ODD),
        OutcomeStore(db).counts(ODD),
        OutcomeStore(db).terminal([ItemKey(ODD, 1, ODD)]),
    ),
    "replay with odd changes": lambda db: (
        OutcomeStore(db).settle([], [letter()]),
        JobStore(db).replay("job-a", overrides={"prompt": ODD}),
    ),
    "lease as an odd owner": lambda db: JobStore(db).lease_feed("job-a", 1, ODD, 5),
    "move a cursor": lambda db: JobStore(db).advance_feed(
        JobStore(db).lease_feed("job-a", 1, PLAIN, 5) or pytest.fail("no lease"),
        PLAIN,
        cursor={"at": ODD},
        exhausted=False,
    ),
    "settle a result": lambda db: OutcomeStore(db).settle(
        [result(request_id=ODD, model=ODD, finish_reason=ODD)], []
    ),
    "settle a letter": lambda db: OutcomeStore(db).settle([], [letter(reason=ODD, last_error=ODD)]),
    "push into an open job": lambda db: (
        JobStore(db).create(new_job("job-c", total=None)),
        Spool(db).append("job-c", [(ODD, b"{}")]),
    ),
    "purge": lambda db: purge_job(db, ODD),
    "ask for the epoch": lambda db: Meta(db).epoch(),
}


def test_no_public_write_stumbles_over_an_odd_text(db: Database) -> None:
    """A NUL and a lone surrogate go through every method of every store, on both databases (A4)."""
    JobStore(db).create(new_job())
    stumbled = {}
    for name, write in WRITES.items():
        try:
            write(db)
        except Exception as error:
            stumbled[name] = error
    assert stumbled == {}


def test_the_reason_of_a_pause_is_stored_readably(db: Database) -> None:
    """An account error with a NUL in it pauses the job, and its words are there to be read (A4)."""
    jobs = JobStore(db)
    jobs.create(new_job())
    assert jobs.set_state("job-a", JobState.PAUSED, why=by_hand(ODD), expect={JobState.RUNNING})
    assert jobs.get("job-a").reason == PLAIN


def test_figures_that_no_document_has_are_cut(db: Database) -> None:
    """Token counts beyond all measure neither fail the insert nor, summed up, the inserts of the
    rest of the job (A4)."""
    jobs, outcomes = JobStore(db), OutcomeStore(db)
    jobs.create(new_job())
    wild: dict[str, Any] = {
        "prompt_tokens": 2**62,
        "cost_microusd": 2**70,
        "calls": 2**40,
        "attempts": -5,
    }
    outcomes.settle([result(f"d{number}", **wild) for number in range(3)], [letter(**wild)])
    assert outcomes.counts("job-a").prompt_tokens == 4 * FIGURE_MAX


@pytest.mark.parametrize(
    "doc_id",
    ["nul \0", random.Random(9).randbytes(4_500).hex(), "\ud800"],
    ids=["nul", "9 kB", "surrogate"],
)
def test_what_a_database_will_never_take_is_told_from_an_outage(db: Database, doc_id: str) -> None:
    """A key that cannot be stored is REFUSED, wherever it fails: in the driver, in the server or on
    the way (A4)."""
    JobStore(db).create(new_job())
    refusal: Exception | None = None
    try:
        OutcomeStore(db).settle([result(doc_id)], [])
    except Exception as error:
        refusal = error
    assert (refusal is None and db.is_sqlite) or (
        refusal is not None and trouble_of(refusal) is Trouble.REFUSED
    )


def test_a_missing_table_and_a_lost_server_are_no_refusals(db: Database, tmp_path: Path) -> None:
    """What is wrong with the database as a whole condemns no single outcome (A4)."""
    JobStore(db).create(new_job())
    with db.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE outcomes RENAME TO elsewhere")
    with pytest.raises(DBAPIError) as caught:
        OutcomeStore(db).settle([result()], [])
    assert trouble_of(caught.value) is Trouble.FAULTY
    away = open_database("postgresql://fleet@127.0.0.1:1/none")
    with pytest.raises(DatabaseUnavailable) as refused:
        JobStore(away).get("x")
    assert trouble_of(refused.value) is Trouble.AWAY


def test_redis_says_what_it_will_never_take(redis_server: RedisServer) -> None:
    """A key of another type is REFUSED for good; a full, a read-only and a vanished Redis are AWAY
    (A4)."""
    client = redis_server.client()
    hot = RedisLedger(client, "epoch-1")
    client.set("penstock:job-a:parked", "not a list")
    with pytest.raises(redis.ResponseError) as caught:
        hot.unpark("job-a", "penstock.api")
    assert trouble_of(caught.value) is Trouble.REFUSED
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.ResponseError) as full:
            hot.park("job-b", [b"x"])
    finally:
        client.config_set("maxmemory", 0)
    assert trouble_of(full.value) is Trouble.AWAY
    assert (
        trouble_of(redis.ConnectionError("gone"))
        is trouble_of(redis.ReadOnlyError("READONLY"))
        is Trouble.AWAY
    )
    assert trouble_of(redis.AuthenticationError("no")) is Trouble.FAULTY


def test_a_refused_row_is_not_quoted(db: Database) -> None:
    """The error of a refused insert, its traceback included, holds no byte of the request that was
    in it (B15)."""
    JobStore(db).create(new_job())
    broken = letter(request=b"SECRET PROMPT", status_code=2**40, created_at=None)
    broken = replace(broken, last_error=None)  # type: ignore[arg-type]  # a dead letter without words breaks no column
    row = replace(broken, key=ItemKey("job-a", 1, None))  # type: ignore[arg-type]  # the refusal that PostgreSQL explains
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one depends on the database
        OutcomeStore(db).settle([], [row])
    told = "".join(traceback.format_exception(caught.value)) + in_words(caught.value)
    assert "SECRET" not in told
    assert b"SECRET PROMPT".hex() not in told


def test_a_wait_for_the_lock_of_sqlite_is_spoken_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who waits for another process's transaction says for what, in which file, and goes on when it
    is free (A15)."""
    path = tmp_path / "busy.db"
    db = open_database(f"sqlite:///{path}")
    db.migrate()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    lock = WriteLock(str(path), wait_s=0.3, look_s=0.1)
    with caplog.at_level(logging.WARNING), db.engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")
        with pytest.raises(DBAPIError, match="locked"):
            lock.begin(connection)
        other.execute("COMMIT")
        lock.begin(connection)
        connection.exec_driver_sql("ROLLBACK")
    other.close()
    db.close()
    said = [record.getMessage() for record in caplog.records if "write lock" in record.getMessage()]
    assert len(said) == 1, "once for all the looks of these few moments"
    assert str(path) in said[0]
