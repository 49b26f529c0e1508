"""Callers who wait are sent for as soon as their answers are durable, and never before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempts import make_attempt
from servers import RedisServer

from penstock_ledger import (
    Database,
    DeadLetter,
    DoorCallStore,
    JobStore,
    NewJob,
    OutcomeStore,
    RedisAddress,
    RedisLedger,
    keys,
    open_database,
)
from penstock_workers.item.attempt import Settled
from penstock_workers.item.outcome import Dead
from penstock_workers.item.settling.records import Records

JOB, DOC = "job-a", "doc"
SOON_S = 10.0  # for a message of a Redis on this machine
AWAY = "redis://127.0.0.1:1/0"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_database(f"sqlite:///{tmp_path}/ledger.db")
    database.migrate()
    JobStore(database).create(NewJob(JOB, "key", {"lane": "api"}, {"kind": "spool"}, "digest", 1))
    yield database
    database.close()


def awaited() -> Settled:
    """An attempt of a call that waits, with the outcome that it has come to."""
    attempt = make_attempt(DOC, job_id=JOB)
    attempt.job = replace(attempt.job, awaited=True)
    letter = DeadLetter(attempt.key, "http_400", 1, 1, "no", 400, b"{}", None)
    return Settled(attempt, Dead(letter))


def records(database: Database, redis_url: str) -> Records:
    hot = RedisLedger(RedisAddress.parse(redis_url).connect(), "e")
    return Records(JobStore(database), OutcomeStore(database), hot, None)  # type: ignore[arg-type]  # no result


def test_an_answer_is_announced_when_sql_has_it_and_before_redis_is_up_to_date(
    database: Database, redis_server: RedisServer
) -> None:
    """Who reads SQL on the announcement finds the answer there; Redis's own account comes after
    it, and costs no caller time."""
    written = records(database, redis_server.url)
    client: Any = redis_server.client()  # its channels have no types
    with client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(keys.ANSWERED)
        channel.get_message(timeout=SOON_S)
        written.write_sql([awaited()])
        message = channel.get_message(timeout=SOON_S)
        assert message is not None
        assert message["data"] == f"{JOB} {DOC}".encode()
        assert set(DoorCallStore(database).outcomes(JOB, [DOC])) == {DOC}
        written.write_redis([awaited()])
        assert channel.get_message(timeout=0.0) is None


def test_an_announcement_that_is_lost_is_no_failure_of_sql(database: Database) -> None:
    """Without Redis an answer is stored once all the same, and its door looks by itself."""
    records(database, AWAY).write_sql([awaited()])
    counts = OutcomeStore(database).counts(JOB)
    assert (counts.dead, counts.answered_twice) == (1, 0)
