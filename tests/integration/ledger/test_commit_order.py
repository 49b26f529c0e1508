"""Reading outcomes in the order of commits, on SQLite and on a real PostgreSQL alike."""

from __future__ import annotations

import random
import select
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, text

from penstock_ledger import (
    CommitOrder,
    Database,
    DeadLetter,
    ItemKey,
    JobStore,
    NewJob,
    OutcomeStore,
    Place,
    Result,
    Vectors,
    open_database,
)
from penstock_ledger.errors import PlaceLost
from penstock_ledger.sql.sqlite_file import Commits
from penstock_ledger.sql.tables import outcomes as outcome_rows
from penstock_ledger.stores import commit_order
from penstock_ledger.stores.outcome_rows import COLUMNS, result_row
from penstock_ledger.vectors import pack


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/ledger.db" if sqlite else request.getfixturevalue("migrated_url")
    database = open_database(url, pool_size=8)
    database.migrate()
    JobStore(database).create(NewJob("job", "job", {}, {"kind": "spool"}, "digest", None))
    JobStore(database).create(NewJob("other", "other", {}, {"kind": "spool"}, "digest", None))
    yield database
    database.close()


@pytest.fixture
def postgres(request: pytest.FixtureRequest, migrated_url: str) -> Iterator[Database]:
    database = open_database(migrated_url, pool_size=8)
    database.migrate()
    JobStore(database).create(NewJob("job", "job", {}, {"kind": "spool"}, "digest", None))
    yield database
    database.close()


def result(doc: str, job: str = "job", generation: int = 1, body: bytes = b"{}") -> Result:
    return Result(ItemKey(job, generation, doc), 200, body, None, "m", "stop", 1, 1, 0, 5, 1, 1)


def letter(doc: str) -> DeadLetter:
    return DeadLetter(ItemKey("job", 1, doc), "bad_request", 1, 1, "no", 400, b"{}", None)


def docs(found: Iterator[tuple[Place, Result | DeadLetter]]) -> list[str]:
    return [outcome.key.doc_id for _, outcome in found]


def test_the_latest_results_come_first(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many of one job, without dead letters, and without bodies that are too long; SQLite looks
    at the latest of all jobs only."""
    store, order = OutcomeStore(db), CommitOrder(db)
    assert order.latest("job", 2) == []
    for name in ("a", "b"):
        store.settle([result(name, body=b"1" * 5)], [])
    store.settle([result("c")], [])
    store.settle([result("d", "other")], [letter("e")])
    assert [one.key.doc_id for one in order.latest("job", 2)] == ["c", "b"]
    found = {one.key.doc_id: one.body for one in order.latest("job", 9, body_bytes=4)}
    assert found == {"c": b"{}", "b": b"", "a": b""}
    assert order.latest("job", 9)[-1] == result("a", body=b"11111")
    monkeypatch.setattr(commit_order, "LATEST_AMONG", 3)
    assert len(order.latest("job", 9)) == (1 if db.is_sqlite else 3)


def test_outcomes_come_as_they_were_stored(db: Database) -> None:
    """Commits come one after the other whatever their ids are, without other jobs' outcomes, over
    any size of page."""
    store, order = OutcomeStore(db), CommitOrder(db)
    assert docs(order.read("job")) == []
    store.settle([result("m"), result("n", "other")], [])
    store.settle([result("a")], [letter("z")])
    store.settle([result("b")], [])
    for page in (1, 2, 1_000):
        found = docs(order.read("job", page=page))
        assert (found[0], set(found[1:3]), found[3]) == ("m", {"a", "z"}, "b")
    assert docs(order.read("job", letters=False, page=1)) == ["m", "a", "b"]


def test_a_reader_goes_on_where_it_stopped(db: Database) -> None:
    """From any place on, the rest comes once and in the same order, also what was stored after the
    first reading began."""
    store, order = OutcomeStore(db), CommitOrder(db)
    for start in (0, 4, 8):
        store.settle([result(f"doc-{n}") for n in range(start, start + 4)], [])
    whole = list(order.read("job"))
    for stopped in range(12):
        begun = order.read("job", page=3)
        taken = list(islice(begun, stopped + 1))
        assert [*docs(iter(taken)), *docs(order.read("job", taken[-1][0], page=5))] == docs(
            iter(whole)
        )
    store.settle([result("a-later-one")], [])
    assert docs(order.read("job", whole[-1][0])) == ["a-later-one"]


def test_readers_beside_writers_miss_and_repeat_nothing(db: Database) -> None:
    """While several writers commit in transactions of any size, a reader that starts again after
    each reading gets each outcome once."""
    store, order = OutcomeStore(db), CommitOrder(db)
    numbers = random.Random(7)
    groups = [
        [[f"{writer}-{n}-{i}" for i in range(numbers.randint(1, 9))] for n in range(25)]
        for writer in range(4)
    ]

    def write(mine: list[list[str]]) -> None:
        for group in mine:
            store.settle([result(doc) for doc in group], [])

    threads = [threading.Thread(target=write, args=(mine,)) for mine in groups]
    for thread in threads:
        thread.start()
    read: list[str] = []
    place: Place | None = None
    alive = True
    while alive:
        # before the reading, so that a last one follows the end
        alive = any(thread.is_alive() for thread in threads)
        for now_at, outcome in order.read("job", place, page=7):
            read.append(outcome.key.doc_id)
            place = now_at
    assert len(read) == len(set(read))
    assert set(read) == {doc for mine in groups for group in mine for doc in group}


def test_a_commit_that_comes_late_is_not_passed_by(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction that has a lower number holds back what was committed after it, until it
    ends either way."""
    monkeypatch.setattr(commit_order, "WRITERS_WAIT_S", 0.0)
    store, order = OutcomeStore(postgres), CommitOrder(postgres)
    late = dict(zip(COLUMNS, result_row(result("late"), 0.0), strict=True))
    with postgres.engine.connect() as connection:
        transaction = connection.begin()
        connection.execute(insert(outcome_rows).values(late))
        store.settle([result("early")], [])
        assert docs(order.read("job")) == []
        transaction.commit()
    assert docs(order.read("job")) == ["late", "early"]


def test_rows_from_before_there_were_numbers_come_first(postgres: Database) -> None:
    """A job that an upgrade finds in the middle is read whole, its older outcomes by their ids,
    from any place on."""
    store, order = OutcomeStore(postgres), CommitOrder(postgres)
    store.settle([result(f"old-{n}") for n in range(5)], [letter("old-dead")])
    with postgres.engine.begin() as connection:
        connection.execute(text("UPDATE outcomes SET seq = 0"))
    store.settle([result("a-new-one")], [])
    whole = list(order.read("job", page=2))
    assert docs(iter(whole)) == [
        "old-0",
        "old-1",
        "old-2",
        "old-3",
        "old-4",
        "old-dead",
        "a-new-one",
    ]
    for number, (place, _) in enumerate(whole):
        assert docs(order.read("job", place, page=2)) == docs(iter(whole[number + 1 :]))


def test_a_replayed_document_comes_again_with_its_new_outcome(db: Database) -> None:
    """A dead letter that was replayed is gone, a reader can go on from its place, and the new
    outcome comes after it."""
    store, order, jobs = OutcomeStore(db), CommitOrder(db), JobStore(db)
    store.settle([], [letter("x")])
    ((place, _),) = order.read("job")
    jobs.replay("job", reason=None, doc_ids=None, overrides={})
    assert docs(order.read("job")) == []
    store.settle([result("x", generation=2)], [])
    assert docs(order.read("job", place)) == docs(order.read("job")) == ["x"]


def test_a_place_of_something_else_is_refused(db: Database) -> None:
    """A place of another job, or one whose number belongs to another row, says to read from the
    start."""
    store, order = OutcomeStore(db), CommitOrder(db)
    store.settle([result("a"), result("b"), result("c", "other")], [])
    ((place, _), *_) = order.read("job")
    for wrong in (
        place._replace(number=place.number + 1),
        place._replace(doc_id="c"),
        place._replace(generation=2),
    ):
        with pytest.raises(PlaceLost, match="from the start"):
            list(order.read("job", wrong))


def test_vacuum_keeps_places(tmp_path: Path) -> None:
    """An operator may compact an embedded ledger between two readings, with rows gone in
    between."""
    db = open_database(f"sqlite:///{tmp_path}/ledger.db")
    db.migrate()
    JobStore(db).create(NewJob("job", "job", {}, {"kind": "spool"}, "digest", None))
    store, order = OutcomeStore(db), CommitOrder(db)
    store.settle([result(f"doc-{n}") for n in range(6)], [])
    with db.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM outcomes WHERE doc_id IN ('doc-0', 'doc-2')")
    place, _ = list(order.read("job"))[1]
    db.engine.dispose()
    with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("VACUUM")
    assert docs(order.read("job", place)) == ["doc-4", "doc-5"]
    db.close()


def test_embeddings_come_as_json_or_as_stored(db: Database) -> None:
    """Readers of JSON get JSON; those who write tables get the numbers without it."""
    body = pack(Vectors(b"\0\0\x80?\0\0\0\0", "float32", 2, "float", "m", 3))
    OutcomeStore(db).settle([result("a", body=body)], [])
    ((_, read),) = CommitOrder(db).read("job")
    assert isinstance(read, Result)
    assert read.json()["data"][0]["embedding"] == [1.0, 0.0]
    ((_, stored),) = CommitOrder(db).read("job", as_stored=True)
    assert isinstance(stored, Result)
    assert stored.body == body


def test_a_mark_changes_with_each_commit_and_stays_while_there_is_none(db: Database) -> None:
    """What rests until something is committed looks at nothing else: no commit may be missed, that
    of a transaction which had begun before the look neither."""
    commits, jobs = db.commits(), JobStore(db)

    def begin(connection: Connection) -> int | str | None:
        row = dict(zip(COLUMNS, result_row(result("d1"), 1.0), strict=True))
        connection.execute(insert(outcome_rows), row)
        return commits.mark()

    begun = db.write(begin)
    done = commits.mark()
    jobs.create(NewJob("third", "third", {}, {"kind": "spool"}, "digest", None))
    assert begun is not None
    assert done not in (None, begun)
    assert commits.mark() not in (None, done)
    commits.close()


def test_a_commit_in_a_file_is_reported(db: Database) -> None:
    """A write by any connection makes the descriptor readable, once for all that were not heard.
    A server's commits are looked for."""
    commits, jobs = db.commits(), JobStore(db)
    commits.mark()  # opens the file, and so its log
    descriptor = commits.descriptor()
    if not db.is_sqlite:
        assert descriptor is None
        return
    assert descriptor is not None

    def is_reported() -> bool:
        return bool(select.select([descriptor], [], [], 0.0)[0])

    for key in ("fourth", "fifth"):
        assert not is_reported()
        before = commits.mark()
        jobs.create(NewJob(key, key, {}, {"kind": "spool"}, "digest", None))
        assert is_reported()
        assert commits.descriptor() == descriptor
        commits.hear()
        assert commits.mark() != before
    commits.close()


def test_a_log_that_is_not_there_reports_nothing(tmp_path: Path) -> None:
    """Then it is looked at again and again, as a server is; one that goes away is not listened to
    any longer."""
    commits = Commits(str(tmp_path / "ledger.db"))
    assert commits.descriptor() is None
    log = tmp_path / "ledger.db-wal"
    log.touch()
    assert commits.descriptor() is not None
    log.unlink()
    commits.hear()
    assert commits.descriptor() is None
    commits.close()
