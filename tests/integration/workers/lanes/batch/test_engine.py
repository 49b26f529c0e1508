"""What a worker of the batch lane makes of everything that a provider may do: a whole engine, and a
provider in memory."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_house import USAGE, House, Memory, batch_house, good, quick
from servers import RedisServer
from sqlalchemy import select, update

from penstock_ledger import (
    BOUNDLESS,
    ApiKeyStore,
    BatchState,
    BatchTrouble,
    Begin,
    BeginReply,
    DatabaseUnavailable,
    ItemKey,
    JobStore,
    KeyLimits,
    LaneMoves,
    LiveJobs,
    MayCost,
    Meta,
    NewApiKey,
    OutcomeStore,
    ProviderBatchStore,
    Publish,
    RedisAddress,
    RedisLedger,
    Remainder,
    RemainderStore,
    Result,
    TenantAccounts,
    buckets_for,
)
from penstock_ledger.door_stores import spending as tenant_costs
from penstock_ledger.model import Feed, Job, JobState
from penstock_ledger.reasons import by_hand
from penstock_ledger.sql.tables import provider_batches, spending
from penstock_producer.reporting.batches import batch_troubles, batches_line
from penstock_workers.lanes.batch import ending, leader, sending, troubles, watching
from penstock_workers.lanes.batch.apis.provider import (
    AccountStopped,
    Astray,
    BatchAnswer,
    BatchGone,
    BatchRefused,
    BatchSeen,
    Counts,
    LineProblem,
    NewBatch,
    TokenCapReached,
    TryLater,
    Unclear,
    UnreadableLine,
)
from penstock_workers.lanes.batch.troubles import LOOKS_MIN


@pytest.fixture
def house(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[House]:
    memory = Memory()
    quick(monkeypatch, memory)
    with batch_house(redis_server.url, tmp_path, memory) as made:
        yield made


async def test_documents_become_results_at_half_the_price(house: House) -> None:
    """Each goes to the provider once, and its files stay there unless the job says otherwise."""
    job = house.submit(25, batch_max_requests=10)
    counts = await house.all_settled(job)
    assert (counts.succeeded, counts.calls) == (25, 25)
    assert counts.cost_microusd == 25 * (10 * 100 + 5 * 200) // 2
    assert sorted(name for names in house.provider.names for name in names) == sorted(
        f"d{n}" for n in range(25)
    )
    assert sorted(len(names) for names in house.provider.names) == [5, 10, 10]
    assert house.provider.deleted == []
    await house.until(lambda: not list((house.folder / "packed").iterdir()))


async def test_lines_that_fail_go_into_the_next_batch(house: House) -> None:
    """With their attempts counted, until there are none left; what can never work dies at once.

    The rest is not asked again."""

    def answer(name: str, nth: int) -> BatchAnswer | None:
        if name == "d0":
            return BatchAnswer(name, 500, b'{"error": {"message": "busy"}}')
        if name == "d1":
            return BatchAnswer(name, 400, b'{"error": {"message": "no"}}')
        if name == "d2" and nth == 0:
            return BatchAnswer(name, None, b"", error="request_timeout", message="late")
        if name == "d3" and nth == 0:
            return None
        return good(name)

    house.provider.answer = answer
    counts = await house.all_settled(house.submit(6, max_attempts=3))
    assert (counts.succeeded, counts.dead_by_reason) == (4, {"server_error": 1, "bad_request": 1})
    assert [sorted(names) for names in house.provider.names] == [
        [f"d{n}" for n in range(6)],
        ["d0", "d2", "d3"],
        ["d0"],
    ]


async def test_a_batch_that_always_expires_ends_in_dead_letters(house: House) -> None:
    """A document is in so many batches as it has attempts."""
    house.provider.expired = lambda nth: True
    counts = await house.all_settled(house.submit(3, max_attempts=2))
    assert (counts.dead_by_reason, len(house.provider.made)) == ({"batch_expired": 3}, 2)


async def test_lines_that_validation_refuses_cost_no_other(house: House) -> None:
    """They are dead letters with the provider's words; the others are in the next batch, and no try
    of theirs is counted."""
    refused = ("d1", "d4")

    def problems(names: list[str], nth: int) -> tuple[LineProblem, ...]:
        at = [names.index(name) + 1 for name in refused if name in names]
        return tuple(LineProblem("invalid_json_line", "not so", line) for line in at[:1])

    house.provider.problems = problems
    counts = await house.all_settled(house.submit(6, max_attempts=1))
    assert (counts.succeeded, counts.dead_by_reason) == (4, {"bad_request": 2})
    assert [len(names) for names in house.provider.names] == [6, 3, 2, 1]


async def test_a_refusal_that_names_no_line_costs_one_document(house: House) -> None:
    """Its batch is halved until the line that it is about is alone, so that rounds are few however
    large a batch is."""
    bad = LineProblem("invalid_request", "one of them is not so", None)
    house.provider.problems = lambda names, nth: (bad,) if "d5" in names else ()
    counts = await house.all_settled(house.submit(16, max_attempts=1))
    assert (counts.succeeded, counts.dead_by_reason) == (15, {"bad_request": 1})
    sizes = [len(names) for names in house.provider.names if "d5" in names]
    assert sizes == [16, 8, 4, 2, 1]
    assert len(house.provider.names) == 9


async def test_many_bad_lines_named_one_at_a_time_cost_few_rounds(house: House) -> None:
    """Each round names one line per batch; no document is in more batches than its first one can be
    halved."""
    bad = {f"d{n}" for n in range(0, 32, 2)}

    def problems(names: list[str], nth: int) -> tuple[LineProblem, ...]:
        found = [
            LineProblem("invalid_json_line", "no", names.index(name) + 1)
            for name in names
            if name in bad
        ]
        return tuple(found[:1])

    house.provider.problems = problems
    counts = await house.all_settled(house.submit(32, max_attempts=1))
    assert (counts.succeeded, counts.dead_by_reason) == (16, {"bad_request": 16})
    rounds = Counter(name for names in house.provider.names for name in names)
    assert max(rounds.values()) <= 6


async def test_a_provider_that_refuses_everything_pauses_the_job(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Halving finds no line there: after some batches in a row the job pauses, and no document is
    lost for it."""
    monkeypatch.setattr(ending, "REFUSED_MAX", 3)
    closed = LineProblem("account_closed", "ask your manager", None)
    house.provider.problems = lambda names, nth: (closed,)
    job = house.submit(40)
    async with house.working():
        await house.until(lambda: house.producer.status(job.job_id).job.state is JobState.PAUSED)
    assert "account_closed: ask your manager" in str(house.producer.status(job.job_id).job.reason)
    assert house.counts(job).dead == 0
    house.provider.problems = lambda names, nth: ()
    house.producer.resume(job.job_id)
    assert (await house.all_settled(job)).succeeded == 40


async def test_odd_lines_of_an_output_cost_no_other(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """Lines that cannot be read, name no document, or one twice are left out and counted in the
    log."""
    twice = good("d5")
    assert twice is not None
    house.provider.odd = (
        UnreadableLine("out", 1, "not JSON"),
        BatchAnswer("nowhere", 200, b"{}"),
        twice,
        twice,
    )
    counts = await house.all_settled(house.submit(6))
    assert (counts.succeeded, counts.calls) == (6, 6)
    assert "1 unknown" in caplog.text
    assert "1 unreadable" in caplog.text


@pytest.mark.parametrize("works", [True, False])
async def test_a_create_without_an_answer_is_looked_for(house: House, works: bool) -> None:
    """It is adopted where it worked, and made again only where it did not; while the provider
    cannot say, it is asked again."""
    house.provider.errors = {
        "create": [Unclear("500")],
        "find": [Unclear("not yet"), Unclear("not yet")],
    }
    house.provider.works_all_the_same = works
    counts = await house.all_settled(house.submit(4))
    assert (counts.succeeded, len(house.provider.made)) == (4, 1)


async def test_a_list_that_shows_a_batch_late_gets_no_second_one(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first looks after a create without an answer do not find it, though it is there: it is
    not paid twice."""
    house.provider.errors, house.provider.works_all_the_same = {"create": [Unclear("cut")]}, True
    shown, looks = house.provider.find, 0

    async def late(tag: str, since: float) -> BatchSeen | None:
        nonlocal looks
        looks += 1
        return await shown(tag, since) if looks > 1 else None

    monkeypatch.setattr(house.provider, "find", late)
    house.set_batch(unclear_s=0.3)
    counts = await house.all_settled(house.submit(4))
    assert (counts.succeeded, len(house.provider.made), looks) == (4, 1, 2)


async def test_a_batch_created_while_the_ledger_is_away_is_written_down_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not forgotten, nor looked for at the provider, whose list may show it late."""
    monkeypatch.setattr(sending, "LEDGER_CAP_S", 0.01)
    step, away = ProviderBatchStore.step, 3
    looks = list[str]()

    def seldom(self: ProviderBatchStore, batch: Any, owner: str, **values: Any) -> bool:
        nonlocal away
        if "remote_id" in values and away:
            away -= 1
            raise DatabaseUnavailable("db", "it is away")
        return step(self, batch, owner, **values)

    async def find(tag: str, since: float) -> None:
        looks.append(tag)

    monkeypatch.setattr(ProviderBatchStore, "step", seldom)
    monkeypatch.setattr(house.provider, "find", find)
    counts = await house.all_settled(house.submit(4))
    assert (counts.succeeded, len(house.provider.made), looks, away) == (4, 1, [], 0)


@pytest.mark.parametrize(
    ("journal", "is_cancelled"),
    [
        ({"creating_at": None}, True),
        ({"creating_at": 2.0, "remote_id": "another"}, True),
        ({"creating_at": 2.0, "remote_id": "0"}, False),
        ({}, True),
    ],
    ids=["not found", "made again", "adopted", "not looked for yet"],
)
async def test_a_create_of_a_process_that_leads_no_more_is_read_or_cancelled(
    house: House, monkeypatch: pytest.MonkeyPatch, journal: dict[str, Any], is_cancelled: bool
) -> None:
    """A process is frozen before its create and thaws when another one has gone on: what it makes
    then is cancelled, unless the other has found it."""
    created = house.provider.create
    database = house.producer._database

    async def thawed(batch: NewBatch) -> BatchSeen:
        taken = update(provider_batches).values(owner="other", fence=9, **journal)
        database.write(lambda connection: connection.execute(taken))
        return await created(batch)

    monkeypatch.setattr(house.provider, "create", thawed)
    monkeypatch.setattr(
        house.provider, "_seen", lambda nth: BatchSeen(str(nth), "runs", False, None)
    )
    house.submit(4)
    async with house.working():
        await house.until(lambda: len(house.provider.made) == 1)
    assert house.provider.cancelled == ({"0"} if is_cancelled else set())


async def test_a_full_account_waits(house: House) -> None:
    """Whether the provider says so at once or by failing the batch: no attempt is counted, and the
    documents go once there is room. More tokens than the account may have are never asked for at
    once."""
    full = LineProblem("token_limit_exceeded", "too many tokens", None)
    house.provider.errors = {"create": [TokenCapReached("full")]}
    house.provider.problems = lambda names, nth: (full,) if nth == 0 else ()
    job = house.submit(100, max_attempts=1)
    counts = await house.all_settled(job)
    assert (counts.succeeded, counts.dead) == (100, 0)
    batches = house.store.of_job(job.job_id)
    assert sum(batch.tokens for batch in batches) > 1_000 >= max(batch.tokens for batch in batches)


async def test_a_budget_is_never_passed(house: House) -> None:
    """Batches are created while the most that they may cost fits into what is left of it; then the
    job pauses and says so."""
    job = house.submit(9, budget_usd=0.01, batch_max_requests=3, params={"max_tokens": 10})

    def is_paused() -> bool:
        found = house.producer.status(job.job_id).job
        return found.state is JobState.PAUSED and not house.provider_is_busy(job)

    async with house.working():
        await house.until(is_paused)
    counts = house.counts(job)
    assert 0 < counts.cost_microusd <= 10_000
    assert len(house.provider.made) == counts.succeeded / 3 == 2
    reason = house.producer.status(job.job_id).job.reason or ""
    assert reason.startswith("budget_exhausted: 0.0")
    assert "the next batch of 3 documents may cost" in reason


async def test_files_of_a_batch_without_room_are_not_left_at_the_provider(house: House) -> None:
    """Each try uploads them anew; one worker leads each try, and waits longer each time."""
    full = LineProblem("token_limit_exceeded", "too many tokens", None)
    house.provider.problems = lambda names, nth: (full,) if nth < 3 else ()
    counts = await house.all_settled(house.submit(4))
    assert (counts.succeeded, len(house.provider.made), house.provider.uploads) == (4, 4, 4)
    assert house.provider.deleted == [f"file-{batch.tag}" for batch in house.provider.made[:3]]


@pytest.mark.parametrize(
    "error",
    [AccountStopped("405 no such route"), BatchRefused(400, "no", "no"), TryLater(0.0, "500")],
)
async def test_a_provider_that_deletes_nothing_holds_up_no_job(
    house: House, error: Exception
) -> None:
    """The log names files that stay there."""
    house.provider.errors = {"delete": [error] * 1_000}
    job = house.submit(4, batch_files="delete")
    counts = await house.all_settled(job)
    assert (counts.succeeded, house.producer.status(job.job_id).job.state) == (4, JobState.RUNNING)


async def test_a_batch_that_never_fits_pauses_its_job(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to set.

    Its documents wait for batches of another size, and no try of theirs is counted."""
    monkeypatch.setattr(ending, "FULL_TRIES", 2)
    full = LineProblem("token_limit_exceeded", "too many tokens", None)
    house.provider.problems = lambda names, nth: (full,) if nth < 3 else ()
    job = house.submit(4, max_attempts=1)
    async with house.working():
        await house.until(
            lambda: (
                house.producer.status(job.job_id).job.state is JobState.PAUSED
                and not house.store.open_of(job.job_id)
            )
        )
    assert "batch_enqueued_tokens" in str(house.producer.status(job.job_id).job.reason)
    house.producer.resume(job.job_id)
    counts = await house.all_settled(job)
    assert (counts.succeeded, len(house.provider.made)) == (4, 5), "two smaller ones"


GONE = BatchGone(404, "not_found", "no such batch")


@pytest.mark.parametrize("call", ["look", "answers"])
async def test_a_404_of_a_moment_pays_nothing_again(house: House, call: str) -> None:
    """Whether polls answer it or the download of the outputs: it is looked for again, and its
    answers are read."""
    house.provider.errors = {call: [GONE] * 4}
    job = house.submit(4)
    counts = await house.all_settled(job)
    assert (counts.succeeded, len(house.provider.made)) == (4, 1)
    [batch] = house.store.of_job(job.job_id)
    assert (batch.trouble, batch.missing, batch.unread) == (None, None, None)


async def test_a_batch_that_is_gone_is_sent_again(house: House) -> None:
    """After minutes of looks its documents are tried in another one; here these are parts of a
    second."""
    house.provider.gone = {0}
    job = house.submit(4)
    counts = await house.all_settled(job)
    assert (counts.succeeded, len(house.provider.made)) == (4, 2)
    assert house.provider.looks_at_gone >= LOOKS_MIN
    lost, _ = house.store.of_job(job.job_id)
    assert (lost.why or "").startswith("batch_lost: 404")
    assert lost.unread is None, "nothing says that anything was answered"


def spent_besides(house: House, job: Job) -> list[Any]:
    query = select(spending).where(spending.c.job_id == job.job_id)
    return house.producer._database.read(lambda connection: list(connection.execute(query)))


async def test_counted_answers_are_waited_for_and_then_named_as_paid(house: House) -> None:
    """They are looked for as long as providers keep outputs.

    What was paid for and never came stands in the journal with what it may have cost, and nothing
    of it is deleted at the provider."""
    house.set_batch(answers_kept_s=6.0)
    house.provider.counted, house.provider.ended = Counts(4, 3, 0), False
    job = house.submit(4, batch_files="delete")
    async with house.working():
        await house.until(lambda: any(one.succeeded == 3 for one in house.store.of_job(job.job_id)))
        house.provider.gone, began = {0}, time.time()
        house.provider.ended = True
        await house.until(
            lambda: any(one.missing is not None for one in house.store.of_job(job.job_id))
        )
        [open_one] = [
            one for one in house.store.sums(job.job_id) if one.state is BatchState.CREATED
        ]
        [(number, trouble)] = open_one.troubles
        assert (number, trouble.call, trouble.name) == (1, "look", "batch_missing")
        assert any("does not know the batch" in line for line in batch_troubles([open_one]))
        await house.until(
            lambda: house.counts(job).succeeded == 4 and not house.store.open_of(job.job_id)
        )
    assert time.time() - began >= 6.0
    lost, after = house.store.of_job(job.job_id)
    assert (lost.unread, after.unread, len(house.provider.made)) == (3, None, 2)
    assert lost.unread_microusd == lost.may_cost_microusd * 3 // 4 > 0
    [row] = spent_besides(house, job)
    assert (row.kind, row.lane, row.calls, row.cost_microusd) == (
        "unread",
        "batch",
        3,
        lost.unread_microusd,
    )
    line = batches_line(house.store.sums(job.job_id))
    assert "3 answers (up to $" in line
    assert "were paid for and could not be read" in line
    assert house.provider.deleted == [f"file-{after.tag}"]


async def test_another_leader_goes_on_counting_looks(house: House) -> None:
    """What was looked for stands in the journal: the next worker does not begin anew, nor give up
    at once."""
    house.set_batch(lost_after_s=3_600.0)
    house.provider.gone = {0}
    job = house.submit(4)

    def looks() -> int:
        return sum(
            one.missing.looks for one in house.store.of_job(job.job_id) if one.missing is not None
        )

    async with house.working():
        await house.until(lambda: looks() >= 2)
    before = looks()
    [since] = {
        one.missing.since for one in house.store.of_job(job.job_id) if one.missing is not None
    }
    async with house.working():
        await house.until(lambda: looks() > before)
        assert {
            one.missing.since for one in house.store.of_job(job.job_id) if one.missing is not None
        } == {since}
        house.provider.gone = set()
        await house.until(lambda: house.counts(job).succeeded == 4)
    assert len(house.provider.made) == 1


@pytest.mark.parametrize("line", [None, UnreadableLine("out", 4, "cut off")])
async def test_an_output_that_is_too_short_is_read_again(
    house: House, line: UnreadableLine | None
) -> None:
    """Before any document of it is sent again: what comes at the next reading was paid for once."""
    reads = 0

    def answer(name: str, nth: int) -> BatchAnswer | None:
        nonlocal reads
        reads += name == "d3"  # the first one of each reading
        return good(name) if reads > 2 or name in ("d3", "d2") else None

    house.provider.answer, house.provider.counted = answer, Counts(4, 4, 0)
    house.provider.odd = () if line is None else (line,)
    job = house.submit(4)
    counts = await house.all_settled(job)
    assert (counts.succeeded, counts.calls, len(house.provider.made)) == (4, 4, 1)
    [batch] = house.store.of_job(job.job_id)
    assert (batch.answers_read, batch.unread) == (4, None)


async def test_an_output_that_stays_short_is_given_up_and_counted(house: House) -> None:
    """Its missing documents go into the next batch, and what their first answers have cost is
    named."""

    def answer(name: str, nth: int) -> BatchAnswer | None:
        return good(name) if nth or name in ("d3", "d2") else None

    house.provider.answer, house.provider.counted = answer, Counts(4, 4, 0)
    job = house.submit(4)
    async with house.working():
        await house.until(lambda: house.counts(job).succeeded == 2)
        house.provider.counted = None if len(house.provider.made) > 1 else house.provider.counted
        await house.until(lambda: len(house.provider.made) == 2)
        house.provider.counted = None
        await house.until(lambda: house.counts(job).succeeded == 4)
    first, second = house.store.of_job(job.job_id)
    assert (first.answers_read, first.unread, second.requests) == (2, 2, 2)


async def test_more_lines_than_counts_are_all_taken(house: House) -> None:
    """A provider that counts less than it gives out has given it out all the same."""
    house.provider.counted = Counts(4, 2, 0)
    counts = await house.all_settled(house.submit(4))
    assert (counts.succeeded, len(house.provider.made)) == (4, 1)


@pytest.mark.parametrize("call", ["upload", "create", "look", "answers"])
async def test_a_403_of_a_moment_pauses_nothing(house: House, call: str) -> None:
    """The address, a proxy or the key's rights may pass: a run of them pauses the job, as in every
    lane."""
    house.provider.errors = {call: [Astray("403 no rights").named("forbidden", 403)]}
    job = house.submit(4)
    seen = list[JobState]()
    async with house.working():

        def over() -> bool:
            seen.append(house.producer.status(job.job_id).job.state)
            return house.counts(job).succeeded == 4

        await house.until(over)
    assert set(seen) == {JobState.RUNNING}


async def test_a_403_that_stays_pauses_the_job_until_it_is_over(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its reason and the time of the next look; where the provider has taken the batch before,
    it goes on by itself."""
    house.settings = house.settings.model_copy(update={"pause_after_run": 3})
    monkeypatch.setattr(troubles, "PAUSE_FIRST_S", 5.0)
    house.provider.errors = {"look": [Astray("403 no rights").named("forbidden", 403)] * 3}
    job = house.submit(4)
    async with house.working():
        await house.until(lambda: house.producer.status(job.job_id).job.state is JobState.PAUSED)
        found = house.producer.status(job.job_id).job
        assert "403 no rights" in str(found.reason)
        assert found.resume_at is not None
        assert 0 < found.resume_at - time.time() <= 5
        await house.until(lambda: house.counts(job).succeeded == 4)
    assert len(house.provider.made) == 1


async def test_an_account_that_was_never_in_order_waits_for_a_person(house: House) -> None:
    """A wrong key is no passing trouble: the job pauses without an end."""
    house.provider.errors = {"upload": [AccountStopped("401 invalid key")]}
    job = house.submit(4)
    async with house.working():
        await house.until(lambda: house.producer.status(job.job_id).job.state is JobState.PAUSED)
    assert house.producer.status(job.job_id).job.resume_at is None


@pytest.mark.parametrize("call", ["upload", "create", "look", "answers"])
async def test_what_a_batch_waits_for_is_said(
    house: House, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, with what was answered, since when, how often, and when it is tried again: while it
    lasts, and no longer."""
    monkeypatch.setattr(troubles, "FAULT_CAP_S", 0.05)
    error = TryLater(None, "provider default: HTTP 500 \x1b[31mout of order").named(
        "server_error", 500
    )
    house.provider.errors = {call: [error] * 10_000}
    job = house.submit(4)
    began = time.time()

    def shown() -> list[tuple[int, BatchTrouble]]:
        return [one for some in house.store.sums(job.job_id) for one in some.troubles]

    async with house.working():
        await house.until(lambda: any(trouble.times >= 3 for _, trouble in shown()))
        [(number, trouble)] = shown()
        assert (number, trouble.call, trouble.name, trouble.status) == (
            1,
            call,
            "server_error",
            500,
        )
        assert began <= trouble.since <= time.time()
        [line] = batch_troubles(house.store.sums(job.job_id))
        at = {"answers": "download of answers", "look": "look at its state"}.get(call, call)
        assert f"server_error at the {at}" in line
        assert "HTTP 500" in line
        assert "\x1b" not in line
        house.provider.errors = {}
        await house.until(lambda: house.counts(job).succeeded == 4)
    assert shown() == []


async def test_a_file_that_the_provider_has_dropped_is_uploaded_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch may wait for its turn for longer than its provider keeps files."""
    house.provider.errors = {"create": [BatchGone(404, "not_found", "no such file")]}
    monkeypatch.setattr(sending, "FILE_KEPT_S", 0.0)
    counts = await house.all_settled(house.submit(4))
    assert (counts.succeeded, len(house.provider.made), house.provider.uploads) == (4, 1, 2)


async def test_outputs_are_waited_for(house: House) -> None:
    """A batch whose answers are counted and not shown yet is not paid for a second time."""
    house.provider.late = 3
    counts = await house.all_settled(house.submit(4))
    assert (counts.succeeded, len(house.provider.made), house.provider.late) == (4, 1, 0)


async def test_outputs_that_are_gone_are_asked_for_again(house: House) -> None:
    """Once they were looked for long enough their documents are tried in another batch; nothing
    waits for a person."""
    house.set_batch(answers_kept_s=0.0)
    house.provider.errors = {"answers": [GONE] * 8}
    counts = await house.all_settled(house.submit(4))
    assert (counts.succeeded, len(house.provider.made)) == (4, 2)


async def test_a_cancelled_job_ends_without_a_batch_that_is_gone(house: House) -> None:
    """A provider that does not know the batch any more has nothing to cancel."""
    gone: Exception = BatchGone(404, "not_found", "no such batch")
    house.provider.ended = False
    job = house.submit(4)
    async with house.working():
        await house.until(lambda: len(house.provider.made) == 1)
        house.provider.errors = {"cancel": [gone] * 1_000, "look": [gone] * 1_000}
        house.producer.cancel(job.job_id)
        await house.until(lambda: not house.store.open_of(job.job_id))
    assert house.provider.cancelled == set()


@pytest.mark.parametrize(
    "error", [AccountStopped("401 invalid_api_key"), BatchRefused(400, "bad_endpoint", "no such")]
)
async def test_what_a_person_must_correct_pauses_the_job(house: House, error: Exception) -> None:
    """With the provider's words; nothing is lost, and resuming tries the same batch again."""
    house.provider.errors = {"create": [error]}
    job = house.submit(4)
    async with house.working():
        await house.until(lambda: house.producer.status(job.job_id).job.state is JobState.PAUSED)
    assert str(error) in str(house.producer.status(job.job_id).job.reason)
    house.producer.resume(job.job_id)
    counts = await house.all_settled(job)
    assert (counts.succeeded, len(house.provider.made), house.provider.uploads) == (4, 1, 1)


async def test_a_pause_lets_running_batches_end_and_makes_none(house: House) -> None:
    """What the provider has is charged in any case, so it is collected; the rest waits."""
    house.provider.ended = False
    job = house.submit(100, batch_max_requests=10)
    async with house.working():
        await house.until(lambda: len(house.provider.made) >= 2)
        house.producer.pause(job.job_id)
        await asyncio.sleep(0.5)
        made = len(house.provider.made)
        house.provider.ended = True
        await house.until(lambda: house.counts(job).succeeded >= 10 * made)
        await asyncio.sleep(0.2)
    assert len(house.provider.made) == made < 10
    assert house.counts(job).succeeded == 10 * made


async def test_a_feed_whose_release_was_lost_is_released_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker keeps no lease of a feed that it has packed to its end: control could never end the
    job."""
    release, lost = JobStore.release_feed, list[str]()

    def away_once(store: JobStore, feed: Feed, owner: str) -> None:
        if not lost:
            lost.append(owner)
            raise DatabaseUnavailable("ledger.db", "the connection is lost")
        release(store, feed, owner)

    monkeypatch.setattr(JobStore, "release_feed", away_once)
    job = house.submit(4)
    live = LiveJobs(house.producer._database)

    def is_free() -> bool:
        return [feed.free for _, feeds in live.look() for feed in feeds if feed.feed.exhausted] == [
            True
        ]

    async with house.working():
        await house.until(is_free)
    assert lost
    assert house.producer.status(job.job_id).job.state is JobState.RUNNING


async def test_a_cancelled_job_cancels_what_runs(house: House) -> None:
    """Nothing is left at the provider, and no file of a batch that was never created."""
    house.provider.ended = False
    job = house.submit(30, batch_max_requests=10)
    async with house.working():
        await house.until(lambda: len(house.provider.made) >= 2)
        house.producer.cancel(job.job_id)
        await house.until(lambda: not house.store.open_of(job.job_id))
    assert house.provider.cancelled == {str(nth) for nth in range(len(house.provider.made))}


def moved(house: House, job: Job, lane: str, slow_s: float = 0.0) -> None:
    """All that the lane before held has gone on, as control sees to it, whose clock is so many
    seconds slow."""
    moves = LaneMoves(house.producer._database)
    before = house.producer.status(job.job_id).job.lane
    move = moves.move(job.job_id, before, lane, "by_hand", "a test", {}, now=time.time() - slow_s)
    assert move is not None
    moves.note_left(move, time.time())


def waiting(house: House, job: Job) -> list[Remainder]:
    return list(RemainderStore(house.producer._database).unclaimed(job.job_id, 1))


async def test_a_feed_that_is_read_anew_waits_for_batches_that_have_its_documents(
    house: House,
) -> None:
    """Redis was lost while the job left and came back: what is in a batch is not paid for twice."""
    house.provider.ended, house.provider.never = False, {0}
    job = house.submit(10)
    async with house.working():
        await house.until(lambda: len(house.provider.made) == 1)
        moved(house, job, "api")
        moved(house, job, "batch")
        JobStore(house.producer._database).rewind_feeds(job.job_id)
        await house.until(lambda: house.provider.cancelled == {"0"})
        house.provider.never.clear()
        await house.until(lambda: not house.store.is_busy(job.job_id))
    assert len(house.provider.made) == 1
    assert house.counts(job).calls == 10


async def test_what_workers_of_the_lane_before_hold_is_in_no_batch(house: House) -> None:
    """A feed that is read anew, after a restart of Redis or a feeder that died, comes upon documents
    whose calls are under way in the lane before: they are not paid for in a batch as well."""
    job = house.submit(10)
    moved(house, job, "api")
    client = RedisAddress.parse(house.settings.redis_url).connect()
    hot = RedisLedger(client, Meta(house.producer._database).epoch())
    hot.install_epoch()
    held = [ItemKey(job.job_id, 1, doc) for doc in ("d3", "d7")]
    hot.publish("penstock.api", [Publish(key, "", b"{}") for key in held], buckets_for(job))
    client.close()
    moved(house, job, "batch")
    async with house.working():
        await house.until(lambda: house.counts(job).succeeded == 8)
        await house.until(lambda: not house.store.is_busy(job.job_id))
    asked = {name for names in house.provider.names for name in names}
    assert asked == {f"d{n}" for n in range(10)} - {key.doc_id for key in held}


async def test_a_job_that_leaves_the_lane_leaves_nothing_there(house: House) -> None:
    """What runs is cancelled and what is packed given up; answers are kept, and no document loses a
    try. Where the job comes back the rest goes into new batches."""

    def answer(name: str, nth: int) -> BatchAnswer | None:
        stopped = BatchAnswer(name, None, b"", error="batch_cancelled")
        return (
            good(name)
            if name in ("d0", "d1") or nth >= before
            else stopped
            if name == "d2"
            else None
        )

    before = 100
    house.provider.answer, house.provider.ended = answer, False
    job = house.submit(60, batch_max_requests=10, max_attempts=1)
    async with house.working():
        await house.until(lambda: len(house.provider.made) >= 2)
        moved(house, job, "api")
        await house.until(lambda: not house.store.open_of(job.job_id))
        before = len(house.provider.made)
        assert house.provider.cancelled == {str(nth) for nth in range(before)}
        left = waiting(house, job)
        assert {(one.attempts, one.reason) for one in left} == {(0, "lane_left")}
        packed = sum(batch.requests for batch in house.store.of_job(job.job_id))
        assert (len(left), house.counts(job).succeeded, house.counts(job).dead) == (
            packed - 2,
            2,
            0,
        )
        moved(house, job, "batch")
        house.provider.ended = True
        await house.until(lambda: house.counts(job).succeeded == 60)
    assert house.counts(job).answered_twice == 0


async def test_answers_of_a_batch_that_was_handed_over_are_stored_or_counted(house: House) -> None:
    """The first answer to a document is its result; one that comes second was paid for, and reading
    it again adds nothing."""
    house.provider.ended = False
    job = house.submit(4)
    async with house.working():
        await house.until(lambda: len(house.provider.made) == 1)
        moved(house, job, "api")
        [batch] = house.store.to_hand_over(job.job_id)
        house.store.hand_over(batch)
        elsewhere = Result(
            ItemKey(job.job_id, 1, "d0"), 200, b"{}", "req-9", "m", "stop", 9, 9, 50, 1, 1, 1
        )
        OutcomeStore(house.producer._database).settle([elsewhere], [])
        house.provider.errors["answers"] = [TryLater(0.0, "cut")]
        house.provider.ended = True
        await house.until(lambda: not house.store.open_of(job.job_id))
    counts = house.counts(job)
    assert (counts.succeeded, counts.answered_twice, counts.calls) == (4, 1, 5)
    assert counts.twice_microusd == (10 * 100 + 5 * 200) // 2
    assert waiting(house, job) == []


async def test_what_the_lane_before_answers_first_was_paid_for_in_the_batch_as_well(
    house: House,
) -> None:
    """A call that was still in flight there, or a batch that was cancelled late: the answer of the
    new batch comes second, and is counted once, however often it is read."""
    house.provider.ended = False
    job = house.submit(4)
    moved(house, job, "api")
    moved(house, job, "batch")
    async with house.working():
        await house.until(lambda: len(house.provider.made) == 1)
        elsewhere = Result(
            ItemKey(job.job_id, 1, "d0"), 200, b"{}", "req-9", "m", "stop", 9, 9, 50, 1, 1, 1
        )
        OutcomeStore(house.producer._database).settle([elsewhere], [])
        house.provider.errors["answers"] = [TryLater(0.0, "cut")]
        house.provider.ended = True
        await house.until(lambda: not house.store.open_of(job.job_id))
    counts = house.counts(job)
    assert (counts.succeeded, counts.answered_twice, counts.calls) == (4, 1, 5)
    assert waiting(house, job) == []


async def test_a_batch_that_was_handed_over_is_never_created(house: House) -> None:
    """Its documents are elsewhere, also where its job is back in the lane and the clocks of
    processes do not agree on whether it was packed before the job has left."""
    house.provider.errors["upload"] = [TryLater(60.0, "busy")]
    job = house.submit(4)
    async with house.working():
        await house.until(lambda: house.store.open_of(job.job_id) == 1)
        await house.until(lambda: not house.provider.errors["upload"])
    moved(house, job, "api", slow_s=5.0)
    [batch] = house.store.to_hand_over(job.job_id)
    house.store.hand_over(batch)
    moved(house, job, "batch", slow_s=4.0)
    async with house.working():
        await house.until(lambda: not house.store.open_of(job.job_id))
    assert (house.provider.made, [one.why for one in house.store.of_job(job.job_id)]) == (
        [],
        ["lane_left"],
    )


async def test_answers_that_come_while_their_documents_go_on_are_stored_or_counted(
    house: House,
) -> None:
    """Rows of a handing over that has begun hide none of them; one that cannot be used has still
    cost what it has, once."""

    def answer(name: str, nth: int) -> BatchAnswer | None:
        usage = b'{"error": {"message": "busy"}}'
        return BatchAnswer(name, 500, usage) if name == "d1" else good(name)

    house.provider.answer, house.provider.ended = answer, False
    job = house.submit(4)
    async with house.working():
        await house.until(lambda: len(house.provider.made) == 1)
        keys = [ItemKey(job.job_id, 1, doc) for doc in ("d0", "d1")]
        RemainderStore(house.producer._database).add(
            [Remainder(key, str(nth), 0, 0, 0, 0, 0, "lane_left") for nth, key in enumerate(keys)]
        )
        moved(house, job, "api")
        await house.until(lambda: house.provider.cancelled == {"0"})
        house.provider.ended = True
        await house.until(lambda: not house.store.open_of(job.job_id))
    counts = house.counts(job)
    assert (counts.succeeded, counts.answered_twice, counts.calls) == (3, 0, 4)
    assert [(one.key.doc_id, one.calls) for one in waiting(house, job)] == [("d1", 0)]


async def test_a_batch_leaves_what_a_call_has_reserved(house: House) -> None:
    """A document that was handed over is asked for in another lane, too: its budget holds while
    that call is under way."""
    house.provider.ended = False
    job = house.submit(2, budget_usd=1.0, params={"max_tokens": 10})
    hot = RedisLedger(
        RedisAddress.parse(house.settings.redis_url).connect(),
        Meta(house.producer._database).epoch(),
    )
    async with house.working():
        await house.until(lambda: len(house.provider.made) == 1)
        moved(house, job, "api")
        [batch] = house.store.to_hand_over(job.job_id)
        house.store.hand_over(batch)
        call = Begin(ItemKey(job.job_id, 1, "d0"), buckets_for(job), MayCost(3_000, owner="me"))
        assert hot.begin([call])[0].reply is BeginReply.GO
        house.provider.ended = True
        await house.until(lambda: not house.store.open_of(job.job_id))
    assert house.counts(job).succeeded == 2
    account = hot.budgets.seen(job.job_id)
    assert account is not None
    assert account.reserved == 3_000


async def test_the_budget_of_a_tenant_is_never_passed_by_its_batches_together(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one job's batch may cost is reserved before it is created, and leaves less room for the
    other job's; a larger budget lets that go on, and nothing is reserved in the end."""
    monkeypatch.setattr(tenant_costs, "BUDGETS_S", 0.0)
    database = house.producer._database
    hot = RedisLedger(
        RedisAddress.parse(house.settings.redis_url).connect(), Meta(database).epoch()
    )

    def allow(usd: float) -> None:
        limits = KeyLimits(budget_usd=usd)
        ApiKeyStore(database).create(NewApiKey("key", "shop", frozenset({"write"}), limits=limits))

    house.provider.ended = False
    allow(1.0)
    spec = {"tenant": "shop", "params": {"max_tokens": 10}}
    first = house.submit(4, **spec)
    async with house.working():
        await house.until(lambda: len(house.provider.made) == 1)
        [batch] = house.store.of_job(first.job_id)
        account = hot.budgets.seen(first.job_id)
        assert account is not None
        assert account.tenant == (1_000_000, batch.may_cost_microusd, batch.may_cost_microusd)
        allow(1.5 * batch.may_cost_microusd / 1e6)
        second = house.submit(5, **spec)
        await house.until(lambda: house.store.open_of(second.job_id) == 1)
        house.provider.ended = True
        await house.until(lambda: house.producer.status(second.job_id).job.state is JobState.PAUSED)
        assert len(house.provider.made) == 1
    reason = str(house.producer.status(second.job_id).job.reason)
    assert reason.startswith("tenant_budget_exhausted: 0.004"), reason
    assert "tenant 'shop'" in reason
    costs = re.search(
        r"documents may cost (\S+); what is left of this job costs at most about (\S+) USD", reason
    )
    assert costs is not None
    assert costs[1] == costs[2], "all that is left is in the next batch"
    # control does so before it lets it go on
    TenantAccounts(database, hot.budgets).look(second, BOUNDLESS, 1.0, spent=0)
    house.producer.resume(second.job_id)
    counts = await house.all_settled(second)
    assert (counts.succeeded, len(house.provider.made)) == (5, 2)
    account = hot.budgets.seen(second.job_id)
    assert account is not None
    assert account.tenant == (1_000_000, 9_000, 0)


async def test_lost_files_are_packed_again(house: House) -> None:
    """A disk may go at any time: the source is read again, between the batch's own cursors."""
    house.provider.ended = False
    job = house.submit(30, batch_max_requests=10)
    async with house.working():
        await house.until(lambda: len(house.provider.made) == 3)
    shutil.rmtree(house.folder / "packed")
    house.provider.ended = True
    counts = await house.all_settled(job)
    assert (counts.succeeded, len(house.provider.made)) == (30, 3)


@pytest.mark.parametrize("is_over", [False, True])
async def test_answers_outlive_their_source_and_their_files(house: House, is_over: bool) -> None:
    """What was paid for is kept, whatever became of the rest: the journal says which document each
    answer is for."""
    house.provider.ended = False
    house.provider.answer = lambda name, nth: (
        BatchAnswer(name, 400, b"{}") if name == "d7" else good(name)
    )
    job = house.submit(30, batch_max_requests=10)
    async with house.working():
        await house.until(lambda: len(house.provider.made) == 3)
    shutil.rmtree(house.folder / "packed")
    (house.folder / "docs.jsonl").write_text('{"id": "another", "text": "one"}\n')
    if is_over:
        house.producer._jobs.set_state(
            job.job_id, JobState.FAILED, why=by_hand("no"), expect={JobState.RUNNING}
        )
    house.provider.ended = True
    async with house.working():
        await house.until(lambda: not house.store.open_of(job.job_id))
    counts = house.counts(job)
    assert (counts.succeeded, counts.dead_by_reason) == (29, {"bad_request": 1})
    (letter,) = house.producer.dead_letters(job.job_id)
    assert (letter.key.doc_id, letter.request) == ("d7", b"")


async def test_a_batch_without_an_end_can_be_taken_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long after its window its job pauses and says so.

    Resumed, it is cancelled, and its documents go into another one."""
    monkeypatch.setattr(watching, "CANCEL_TAKES_S", 0.1)
    house.set_batch(stuck_after_s=0.2)
    house.provider.never = {0}
    job = house.submit(4, max_attempts=1)
    async with house.working():
        await house.until(lambda: house.producer.status(job.job_id).job.state is JobState.PAUSED)
        assert str(house.producer.status(job.job_id).job.reason).startswith(
            "batch_stuck: provider batch 0 "
        )
        assert house.provider.cancelled == set()
        house.producer.resume(job.job_id)
        await house.until(lambda: house.counts(job).succeeded == 4)
    assert (house.provider.cancelled, len(house.provider.made)) == ({"0"}, 2)


async def test_a_cancelled_job_says_what_it_waits_for(house: House) -> None:
    """And a provider that asks to be left alone for an hour does not keep it from being
    cancelled."""
    house.provider.never = {0}
    house.provider.errors = {"look": [TryLater(3_600.0, "429 later")]}
    job = house.submit(4)
    async with house.working():
        await house.until(
            lambda: house.provider.errors["look"] == [] and house.provider_is_busy(job)
        )
        house.producer.cancel(job.job_id)
        await house.until(lambda: house.provider.cancelled == {"0"})
        await house.until(lambda: "asked to cancel it" in str(house.store.sums(job.job_id)[0].why))
        house.provider.never = set()
        await house.until(lambda: not house.store.open_of(job.job_id))


async def test_a_worker_leaves_what_it_has_no_settings_for(house: House) -> None:
    """Jobs and batches of another provider wait for a worker that has its settings, and are not
    paused."""
    job = house.submit(20, batch_max_requests=10)
    whole = house.settings
    house.settings = whole.model_copy(update={"providers": {"other": whole.providers["default"]}})
    async with house.working():
        await asyncio.sleep(0.3)
        assert (house.store.of_job(job.job_id), house.provider.made) == ([], [])
    house.settings, house.provider.ended = whole, False
    async with house.working():
        await house.until(lambda: len(house.provider.made) == 2)
    house.settings = whole.model_copy(update={"providers": {"other": whole.providers["default"]}})
    async with house.working() as engine:
        await asyncio.sleep(0.3)
        assert engine._describe()["in_flight"] == "0"
    assert house.producer.status(job.job_id).job.state is JobState.RUNNING
    assert sum(one.led or 0 for one in house.store.sums(job.job_id)) == 0
    house.settings, house.provider.ended = whole, True
    assert (await house.all_settled(job)).succeeded == 20


async def test_files_of_batches_that_are_over_go_while_a_worker_runs(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when the next one starts: what another process has left there is old by then."""
    monkeypatch.setattr(leader, "SWEEP_EACH_S", 0.0)
    async with house.working():
        left = house.folder / "packed" / ("a" * 32)
        left.mkdir()
        os.utime(left, (0, 0))
        await house.until(lambda: not left.exists())


async def test_an_answer_that_is_too_long_is_paid_for_once(house: House) -> None:
    """Its document is a dead letter that says so, and is not asked again."""
    house.provider.odd = (UnreadableLine("out", 1, "it has 40000000 bytes", "d2"),)
    counts = await house.all_settled(house.submit(4))
    assert (counts.succeeded, counts.dead_by_reason, counts.calls) == (
        3,
        {"answer_too_large": 1},
        4,
    )
    assert len(house.provider.made) == 1


async def test_files_go_from_the_provider_where_the_job_says_so(house: House) -> None:
    """Once all of their answers are stored."""
    counts = await house.all_settled(house.submit(20, batch_max_requests=10, batch_files="delete"))
    assert (counts.succeeded, len(house.provider.deleted)) == (20, 2)


async def test_an_answer_that_is_not_what_the_job_asked_for_is_asked_for_again(
    house: House,
) -> None:
    """Answers are held to the job's schema as in every lane, and a refused one was paid for."""
    schema = {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"type": "integer"}},
        "additionalProperties": False,
    }

    def answer(name: str, nth: int) -> BatchAnswer | None:
        said = '{"a": 1}' if nth else "no"
        choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return BatchAnswer(name, 200, json.dumps({"choices": [choice], "usage": USAGE}).encode())

    house.provider.answer = answer
    counts = await house.all_settled(house.submit(2, response_schema=schema))
    assert (counts.succeeded, counts.succeeded_after_retry, counts.calls) == (2, 2, 4)
    assert counts.prompt_tokens == 40


async def test_an_open_job_is_packed_as_it_comes(house: House) -> None:
    """Documents that services push go in batches, too, and each once."""
    job = house.producer.open_job(
        {"lane": "batch", "model": "m", "prompt": "{text}", "batch_max_requests": 5}
    )
    for number in range(12):
        job.enqueue(f"d{number}", {"id": f"d{number}", "text": "x"})
    job.close()
    counts = await house.all_settled(house.producer.status(job.job.job_id).job)
    assert (counts.succeeded, counts.calls) == (12, 12)


async def test_a_replay_goes_in_batches_too(house: House) -> None:
    """Dead letters are packed from what they keep of their requests."""
    house.provider.answer = lambda name, nth: (
        BatchAnswer(name, 400, b"{}") if nth == 0 else good(name)
    )
    job = house.submit(5)
    assert (await house.all_settled(job)).dead == 5
    house.producer.replay(job.job_id)
    counts = await house.all_settled(job)
    assert (counts.succeeded, counts.dead) == (5, 0)
    states = {batch.state for batch in house.store.of_job(job.job_id)}
    assert states == {BatchState.SETTLED}


def refused(name: str, _nth: int = 0) -> BatchAnswer | None:
    """An answer that is paid for and is not JSON."""
    choice = {"message": {"role": "assistant", "content": "well"}, "finish_reason": "stop"}
    return BatchAnswer(
        name, 200, json.dumps({"model": "m", "choices": [choice], "usage": USAGE}).encode(), "req-1"
    )


async def test_a_large_job_begins_with_a_small_batch(house: House) -> None:
    """Every answer misses the schema: the first batch is checked before the rest is packed, and its
    requests are all that is paid. Resumed, the job sends the rest and does not stop for the
    same."""
    house.set_batch(first_from=200, first_requests=110)
    house.set_provider(batch_enqueued_tokens=None)
    house.provider.limits = house.provider.limits._replace(requests=300, total_bytes=10**7)
    house.provider.answer = refused
    job = house.submit(250, response_schema={"type": "object"}, max_attempts=1)
    jobs = JobStore(house.producer._database)
    async with house.working():
        await house.until(lambda: jobs.get(job.job_id).state is JobState.PAUSED)
        await house.until(lambda: not house.provider_is_busy(job))
        assert [len(names) for names in house.provider.names] == [110]
        pause = jobs.get(job.job_id).pause
        assert pause is not None
        assert (pause.code, pause.params["bad"]) == ("stop_missed", 110)
        house.producer.resume(job.job_id)
        await house.until(lambda: house.counts(job).dead == 250)
    assert jobs.get(job.job_id).state is JobState.RUNNING


@pytest.mark.parametrize(
    ("documents", "spec"),
    [(199, {}), (200, {"deadline_s": 47 * 3_600.0}), (200, {"stop_at_dead": "off"})],
)
async def test_other_jobs_have_no_small_batch(
    house: House, documents: int, spec: dict[str, object]
) -> None:
    """Few documents, a deadline that leaves no time for it, and no stop-loss."""
    house.set_batch(first_from=200, first_requests=110)
    house.set_provider(batch_enqueued_tokens=None)
    house.provider.limits = house.provider.limits._replace(requests=1_000, total_bytes=10**7)
    job = house.submit(documents, **spec)
    await house.all_settled(job)
    assert [len(names) for names in house.provider.names] == [documents]


async def test_a_prompt_that_explodes_is_in_no_batch(house: House) -> None:
    """It is a dead letter that cost nothing; the others go."""
    source = house.folder / "docs.jsonl"
    source.write_text(
        "".join(
            json.dumps({"id": f"d{n}", "text": "x" * (800 if n == 3 else 9)}) + "\n"
            for n in range(9)
        )
    )
    spec = {"lane": "batch", "model": "m", "prompt": "{text}", "max_prompt_tokens": 150}
    job = house.producer.submit(source, spec)
    counts = await house.all_settled(job)
    assert (counts.succeeded, counts.dead_by_reason, counts.calls) == (8, {"prompt_too_long": 1}, 8)
