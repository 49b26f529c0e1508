"""What the HTTP doors keep in SQL: each store makes the same promises on SQLite and on
PostgreSQL."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event

from penstock_ledger import (
    EVERYONE,
    ApiKeyStore,
    CallClaim,
    Database,
    DeadLetter,
    DoorCallStore,
    DoorFiles,
    EndedSessions,
    FileDetails,
    ItemKey,
    JobStore,
    KeyLimits,
    NewApiKey,
    NewJob,
    OutcomeStore,
    PushedCall,
    Result,
    TenantCosts,
    Whose,
    dead_letter_lines,
    digest_of_key,
    month_of,
)
from penstock_ledger.door_stores.api_keys import ENDED_MAX
from penstock_ledger.model import JobState

SOURCE: dict[str, Any] = {"kind": "file", "uri": "x"}


def job(
    db: Database,
    job_id: str,
    *,
    tenant: str | None = None,
    source: Any = None,
    total: int | None = 10,
) -> None:
    JobStore(db).create(
        NewJob(job_id, job_id, {"lane": "api", "tenant": tenant}, source or SOURCE, "digest", total)
    )


def file(db: Database, name: str, tenant: str | None = "a", lives_s: float | None = None) -> None:
    files = DoorFiles(db)
    files.begin(name, tenant, f"{name}.jsonl")
    assert files.finish(name, FileDetails("in.jsonl", "batch", 3, "0" * 64, lives_s)) is not None


def paid(job_id: str, doc: str, microusd: int) -> Result:
    return Result(
        ItemKey(job_id, 1, doc), 200, b"{}", "r", "m", "stop", 10, 20, microusd, 100, 1, 1
    )


def test_a_file_that_a_job_still_reads_stays(either: Database) -> None:
    """Behind its expires_at, too: it is found, and neither deleted nor cleaned up, until the job
    that reads it has ended."""
    files, whose = DoorFiles(either), Whose("a")
    file(either, "file-1", lives_s=-1.0)
    file(either, "file-2", lives_s=-1.0)
    job(either, "job_1", source={"kind": "file", "uri": "/data/file-1.jsonl"})
    assert files.get("file-1", whose) is not None
    assert files.get("file-2", whose) is None
    assert files.in_use("file-1") == "job_1"
    assert not files.delete("file-1", whose)
    assert [one.file_id for one in files.expire(10)] == ["file-2"]
    assert JobStore(either).set_state("job_1", JobState.COMPLETED, expect={JobState.RUNNING})
    assert files.get("file-1", whose) is None
    assert [one.file_id for one in files.expire(10)] == ["file-1"]


def test_files_are_listed_for_their_owner_behind_one_that_is_gone(either: Database) -> None:
    """A file that is not whole is not there; pages go on behind a deleted one; rows are forgotten
    once their bytes are gone."""
    files = DoorFiles(either)
    for name, tenant in (("file-1", "a"), ("file-2", "b"), ("file-3", "a"), ("file-4", "a")):
        file(either, name, tenant)
    files.begin("file-5", "a", "file-5.jsonl")
    first = files.page(Whose("a"), limit=1)
    assert first is not None
    assert ([one.file_id for one in first.files], first.has_more) == (["file-4"], True)
    assert files.delete("file-4", Whose("a"))
    rest = files.page(Whose("a"), limit=9, after="file-4")
    assert rest is not None
    assert [one.file_id for one in rest.files] == ["file-3", "file-1"]
    assert files.page(Whose("a"), limit=9, after="file-2") is None, "it is another tenant's"
    oldest = files.page(EVERYONE, limit=9, newest_first=False, purposes=["batch"])
    assert oldest is not None
    assert [one.file_id for one in oldest.files] == ["file-1", "file-2", "file-3"]
    gone = [one.file_id for one in files.deleted_before(time.time() + 60, 9)]
    assert gone == ["file-5", "file-4"], "in the order in which they went"
    files.forget(gone)
    assert files.finish("file-5", FileDetails("in.jsonl", "batch", 3, "0" * 64)) is None


def test_a_key_is_kept_as_it_was_made_until_it_is_revoked(either: Database) -> None:
    """Its limits, scopes and times come back; its use is noted once a minute; revoking it twice is
    said."""
    keys = ApiKeyStore(either)
    assert not keys.any_made()
    limits = KeyLimits(5, 2, 1.5)
    key_id, secret = keys.create(NewApiKey("night", "t", frozenset(["read", "infer"]), 9e9, limits))
    key = keys.of_digest(digest_of_key(secret))
    assert key is not None
    assert (key.key_id, key.tenant, key.scopes, key.expires_at) == (
        key_id,
        "t",
        frozenset(["read", "infer"]),
        9e9,
    )
    assert key.limits == limits
    assert keys.of_digest(digest_of_key(secret + "x")) is None
    assert ([one.key_id for one in keys.list(["t"])], keys.list(["u"])) == ([key_id], [])
    keys.note_used(key_id)
    noted = keys.get(key_id)
    assert noted is not None
    assert noted.last_used_at is not None
    keys.note_used(key_id)
    assert keys.get(key_id) == noted
    assert keys.revoke(key_id)
    assert not keys.revoke(key_id)
    revoked = keys.of_digest(digest_of_key(secret))
    assert revoked is not None
    assert not revoked.valid(time.time())
    assert keys.any_made()


def test_ended_sessions_are_remembered_one_by_one_up_to_a_bound(either: Database) -> None:
    """Each is over for itself, until its time is over anyhow; with too many of one key all end that
    it has, and those of other keys go on."""
    ended = EndedSessions(either)
    for number in range(ENDED_MAX):
        ended.end("key_a", f"session{number}", 150, now=100, lasts_s=60)
    assert ended.is_ended("key_a", "session0", 150)
    assert not ended.is_ended("key_a", "another", 150)
    assert not ended.is_ended("key_b", "session0", 150)
    ended.end("key_a", "late", 170, now=155, lasts_s=60)
    assert not ended.is_ended("key_a", "another", 165), (
        "what was listed before has expired and makes room"
    )
    for number in range(ENDED_MAX):
        ended.end("key_a", f"more{number}", 219, now=160, lasts_s=60)
    assert ended.is_ended("key_a", "another", 220), (
        "as many as may be listed are, and now all are over"
    )
    assert not ended.is_ended("key_a", "newer", 221)


def call(name: str, key: str, *, keep_s: float = 60.0, instead_of: str | None = None) -> PushedCall:
    return PushedCall([(name, b"{}")], name, CallClaim("a", key, "digest", keep_s, instead_of))


def test_a_key_of_a_call_stands_for_one_document(either: Database) -> None:
    """Of two calls with one key the first has it; one that is over, or whose document counts no
    more, gives it to the next."""
    calls = DoorCallStore(either)
    job(either, "job_1", source={"kind": "spool"}, total=None)
    first, second, keyless = calls.push(
        "job_1", [call("d1", "k"), call("d2", "k"), PushedCall([("d3", b"{}")], "d3")]
    )
    assert (list(first), second, list(keyless)) == (["d1"], {}, ["d3"])
    found = calls.find("a", "k")
    assert found is not None
    assert (found.job_id, found.name) == ("job_1", "d1")
    assert calls.find("b", "k") is None
    assert list(calls.push("job_1", [call("d4", "k", instead_of="d1")])[0]) == ["d4"]
    assert list(calls.push("job_1", [call("d5", "short", keep_s=-1.0)])[0]) == ["d5"]
    assert list(calls.push("job_1", [call("d6", "short", keep_s=-1.0)])[0]) == ["d6"]
    assert (calls.forget_expired(), calls.forget_expired()) == (1, 0)
    OutcomeStore(either).settle([paid("job_1", "d4", 5)], [])
    assert list(calls.outcomes("job_1", ["d1", "d4"])) == ["d4"]
    assert [one[0] for one in calls.open_jobs("job_")] == ["job_1"]


@pytest.mark.parametrize("wanted", [["d7"], ["d7", "d8"]], ids=["one", "several"])
def test_an_answer_is_found_without_a_walk_through_its_job(
    either: Database, wanted: list[str]
) -> None:
    """By the whole primary key: the job of an hour has hundreds of thousands of outcomes."""
    job(either, "job_1", source={"kind": "spool"}, total=None)
    OutcomeStore(either).settle([paid("job_1", f"d{nth}", 5) for nth in range(2_000)], [])
    with either.engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE")
    statements = list[tuple[str, Any]]()
    event.listen(
        either.engine,
        "before_cursor_execute",
        lambda *given: statements.append((given[2], given[3])),
        named=False,
    )
    assert sorted(DoorCallStore(either).outcomes("job_1", wanted)) == wanted
    statement, values = next(one for one in statements if "FROM outcomes" in one[0])
    explain = "EXPLAIN QUERY PLAN " if either.is_sqlite else "EXPLAIN "
    with either.engine.connect() as connection:
        rows = connection.exec_driver_sql(explain + statement, values)
        plan = "\n".join(str(row[-1]) for row in rows)
    assert re.search(r"job_id=\? AND generation=\? AND doc_id=\?|Index Cond.*doc_id", plan), plan


def test_one_key_that_comes_many_times_at_once_is_one_document(either: Database) -> None:
    """Eight doors with the same Idempotency-Key: one of them stores a document."""
    job(either, "job_1", source={"kind": "spool"}, total=None)
    with ThreadPoolExecutor(8) as threads:
        pushed = list(
            threads.map(
                lambda n: DoorCallStore(either).push("job_1", [call(f"d{n}", "k")])[0], range(8)
            )
        )
    assert sum(bool(rows) for rows in pushed) == 1


def test_a_tenant_has_spent_what_its_jobs_of_a_month_have_cost(either: Database) -> None:
    """Not what others have, nor those of another month."""
    for job_id, tenant in (("job_1", "a"), ("job_2", "a"), ("job_3", "b")):
        job(either, job_id, tenant=tenant)
        OutcomeStore(either).settle([paid(job_id, "x", 1_500_000)], [])
    costs = TenantCosts(either)
    month = month_of(time.time())
    assert costs.usd_of("a", month) == pytest.approx(3.0)
    assert costs.usd_of("a", month_of(month.ends)) == 0.0


def test_dead_letters_are_listed_in_their_order_and_cut(either: Database) -> None:
    """By reason, behind a place, with errors of bounded length, and whether they can be sent
    again."""
    job(either, "job_1")
    letters = [
        DeadLetter(ItemKey("job_1", 1, name), reason, 1, 1, "e" * 5_000, 400, request, None)
        for name, reason, request in (
            ("a", "http_400", b"{}"),
            ("b", "bad_row", b""),
            ("c", "http_400", b"{}"),
        )
    ]
    OutcomeStore(either).settle([paid("job_1", "d", 5)], letters)
    listed = dead_letter_lines(either, "job_1", limit=9)
    assert [(one.doc_id, one.replayable) for one in listed] == [
        ("a", True),
        ("b", False),
        ("c", True),
    ]
    assert len(listed[0].last_error) == 600
    assert [
        one.doc_id
        for one in dead_letter_lines(either, "job_1", reason="http_400", after=(1, "a"), limit=9)
    ] == ["c"]
    assert dead_letter_lines(either, "job_1", only=letters[1].key, limit=9) == listed[1:2]
    assert JobStore(either).replay("job_1")[1] == 2, "a replay takes what is offered"
    assert dead_letter_lines(either, "job_1", limit=9) == listed[1:2]
