"""Pages of jobs, on SQLite and on a real PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, insert, text

from penstock_ledger import (
    Database,
    DeadLetter,
    ItemKey,
    JobPages,
    JobPlace,
    JobState,
    OutcomeStore,
    open_database,
)
from penstock_ledger.sql.tables import jobs as job_rows
from penstock_ledger.sql.tables import tallies as tally_rows

STATES = ("completed", "running", "paused")


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    sqlite = f"sqlite:///{tmp_path}/ledger.db"
    database = open_database(
        sqlite if request.param == "sqlite" else request.getfixturevalue("migrated_url")
    )
    database.migrate()
    yield database
    database.close()


def add(db: Database, number: int, *, tenants: tuple[str | None, ...] = (None,)) -> list[str]:
    """Jobs, oldest first; two and two of the same moment."""
    rows = [
        {
            "job_id": f"job_{place:06d}",
            "job_key": f"Night_{place}",
            "spec": '{"endpoint":"/v1/x"}',
            "source": "{}",
            "digest": "d",
            "state": STATES[place % 3],
            "generation": 1,
            "total": 10,
            "created_at": 1000.0 + place // 2,
            "tenant": tenants[place % len(tenants)],
        }
        for place in range(number)
    ]
    db.write(lambda connection: connection.execute(insert(job_rows), rows))
    return [str(row["job_id"]) for row in rows]


def ids(page: object) -> list[str]:
    return [job.job_id for job, _ in page.jobs]  # type: ignore[attr-defined]  # a JobPage


def test_pages_go_through_all_jobs_both_ways(db: Database) -> None:
    """Every job comes once, newest first, forwards and backwards, also where several have the same
    time."""
    all_of_them = add(db, 25)[::-1]
    pages, seen, before = JobPages(db), list[str](), None
    while True:
        page = pages.page(before=before, limit=4)
        assert page.newer is (before is not None)
        seen += ids(page)
        before = JobPlace.of(page.jobs[-1][0])
        if not page.older:
            break
    assert seen == all_of_them
    back, after = ids(page), JobPlace.of(page.jobs[0][0])
    while page.newer:
        page = pages.page(after=after, limit=4)
        assert page.older
        back = ids(page) + back
        after = JobPlace.of(page.jobs[0][0])
    assert back == all_of_them


def test_a_page_behind_the_last_job_is_empty_and_says_what_is_there(db: Database) -> None:
    """Nothing is older than the oldest job; that there are newer ones is said."""
    oldest = add(db, 3)[0]
    page = JobPages(db).page(before=JobPlace(1000.0, oldest))
    assert (page.jobs, page.newer, page.older) == ([], True, False)


def test_jobs_are_chosen_by_tenant_state_and_text(db: Database) -> None:
    """A tenant has its own jobs only, None is those without one, and a search takes % and _ for
    what they are."""
    add(db, 12, tenants=("shop", None, "desk"))
    pages = JobPages(db)
    assert {job.job_id[-2:] for job, _ in pages.page(tenants=["shop"]).jobs} == {
        "00",
        "03",
        "06",
        "09",
    }
    assert {job.job_id[-2:] for job, _ in pages.page(tenants=[None]).jobs} == {
        "01",
        "04",
        "07",
        "10",
    }
    assert len(pages.page(tenants=["shop", None]).jobs) == 8
    assert pages.page(tenants=[]).jobs == []
    assert {job.state for job, _ in pages.page(states=[JobState.PAUSED]).jobs} == {JobState.PAUSED}
    assert ids(pages.page(search="nIGHT_1")) == ["job_000011", "job_000010", "job_000001"]
    assert ids(pages.page(search="B_000007")) == ["job_000007"]
    for odd in ("%", "Night%", "Nigh__1", "\\", "a\0b", "'; --", "/"):
        assert pages.page(search=odd).jobs == []


def test_the_counts_of_a_page_are_those_of_each_job(db: Database) -> None:
    """What a page says of its jobs is what the outcomes of each one are counted as."""
    add(db, 3)
    outcomes = OutcomeStore(db)
    letters = [
        DeadLetter(
            ItemKey(f"job_{job:06d}", 1, f"d{number}"),
            f"http_40{number % 2}",
            1,
            2,
            "no",
            400,
            b"{}",
            None,
            prompt_tokens=7,
            completion_tokens=1,
            cost_microusd=11,
        )
        for job in range(2)
        for number in range(3)
    ]
    outcomes.settle([], letters)
    outcomes.settle([], [letters[0], *letters[3:4]])  # again: the same, and so nothing more
    page = JobPages(db).page()
    assert [counts for _, counts in page.jobs] == [
        outcomes.counts(job.job_id) for job, _ in page.jobs
    ]
    assert page.jobs[-1][1].dead_by_reason == {"http_400": 2, "http_401": 1}
    assert JobPages(db).counts(["job_000002"])["job_000002"].dead == 0


def test_a_page_of_ten_thousand_jobs_reads_one_page(db: Database) -> None:
    """A page is four statements at most, and none of them sorts the table or reads all tallies."""
    job_ids = add(db, 10_000, tenants=("shop", "desk"))
    tally = {
        "shard": 0,
        "kind": "result",
        "reason": "",
        "number": 100,
        "after_retry": 0,
        "calls": 100,
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "cost_microusd": 1,
    }
    db.write(
        lambda connection: connection.execute(
            insert(tally_rows), [{"job_id": one, **tally} for one in job_ids]
        )
    )
    if not db.is_sqlite:
        db.write(lambda connection: connection.execute(text("ANALYZE jobs, tallies")))
    statements = list[tuple[str, object]]()
    event.listen(
        db.engine,
        "before_cursor_execute",
        lambda *given: statements.append((given[2], given[3])),
        named=False,
    )
    pages = JobPages(db)
    page = pages.page(
        tenants=["shop"], before=JobPlace(4000.0, "job_x"), states=[JobState.RUNNING], limit=50
    )
    assert len(page.jobs) == 50
    assert page.jobs[0][1].succeeded == 100
    asked = [one for one in statements if one[0].startswith("SELECT")]
    assert len(asked) == 4
    explain = "EXPLAIN QUERY PLAN " if db.is_sqlite else "EXPLAIN "
    for statement, values in asked:
        with db.engine.connect() as connection:
            rows = connection.exec_driver_sql(explain + statement, values)  # type: ignore[arg-type]  # as it was bound
            plan = "\n".join(str(row[-1]) for row in rows)
        assert "Seq Scan on jobs" not in plan, plan
        assert "Seq Scan on tallies" not in plan, plan
        assert "SCAN jobs\n" not in plan + "\n", plan
        assert "TEMP B-TREE FOR ORDER BY" not in plan, plan
        if "FROM jobs" in statement:
            # in order, behind the place; each database has its own taste among the three
            assert any(f"jobs_{one}" in plan for one in ("tenant", "created", "state")), plan
