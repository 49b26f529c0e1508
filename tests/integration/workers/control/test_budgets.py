"""Budgets by reservation: real scripts on a real Redis, a real control loop and ledger; workers and
providers are played."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from budget_house import QUEUE, SEEDS, USD, House, Played, run
from rows_of_before import paused_before
from servers import RedisServer

from penstock_ledger import (
    Account,
    Begin,
    BeginReply,
    ItemKey,
    Job,
    JobState,
    MayCost,
    Result,
    SettleBatch,
    SettledDead,
    SettledDone,
    buckets_for,
    keys,
)
from penstock_ledger.in_redis.budget_book import OWNER_LEASE_S
from penstock_ledger.model import DeadLetter
from penstock_ledger.reasons import Code
from penstock_producer.prices import spent_budget
from penstock_workers.control import loop
from penstock_workers.control.job import accounts


@pytest.fixture
def house(redis_server: RedisServer, tmp_path: Path) -> Iterator[House]:
    made = House(redis_server, tmp_path)
    yield made
    made.close()


def test_no_budget_is_passed_in_fifty_seeded_runs(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spent and reserved never pass a budget by more than one call's estimate, whatever answers
    cost, fail, are repaired, and die with their workers; each run ends by itself and has used its
    budget up; what was billed is counted once; more finishes it."""
    monkeypatch.setattr(accounts, "SPENT_S", 0.0)
    monkeypatch.setattr(accounts, "STRAY_S", 0.0)
    jobs = [
        house.submit(
            8, f"seed-{seed}", budget_usd=random.Random(seed).uniform(0.003, 0.011), max_attempts=9
        )
        for seed in range(SEEDS)
    ]
    played = Played(house, {job.job_id: round(job.spec["budget_usd"] * USD) for job in jobs})
    run(house, played)
    paused = [job for job in jobs if house.state(job) is JobState.PAUSED]
    assert 20 < len(paused) < SEEDS
    assert played.deaths
    for job in jobs:
        name = job.job_id
        account = played.account(name)
        assert played.billed[name] - played.unfinished(name) <= account.spent <= played.billed[name]
        if job in paused:
            pause = house.jobs.get(name).pause
            assert pause is not None
            assert pause.code == Code.BUDGET_EXHAUSTED
            assert (pause.number("enough_usd") or 0.0) > (pause.number("budget_usd") or 0.0)
            assert played.budgets[name] - account.spent < 2 * played.estimate[name], (
                "the rest pays for no more"
            )
            played.budgets[name] = USD
            assert house.producer.limit(name, budget_usd=1.0, deadline_s=None)
            assert house.producer.resume(name)
    run(house, played)
    assert {house.state(job) for job in jobs} == {JobState.COMPLETED}
    assert all(house.batches.spent(job.job_id) == played.billed[job.job_id] for job in jobs)
    assert sum(played.account(job.job_id).reserved for job in jobs) == 0


def test_what_dead_workers_reserved_is_given_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what two looks in a row find in the name of a worker that is dead: calls of one that
    lives stand, however long."""
    monkeypatch.setattr(accounts, "STRAY_S", 0.0)
    job = house.submit(2, "strays", budget_usd=0.01)
    house.control.tick()
    house.hot.budgets.renew("alive")
    begins = [
        Begin(
            ItemKey(job.job_id, 1, f"d{nth}"),
            buckets_for(job),
            MayCost(1_000 * (nth + 1), owner=owner),
        )
        for nth, owner in enumerate(("alive", "dead"))
    ]
    assert [begun.reply for begun in house.hot.begin(begins)] == [BeginReply.GO] * 2
    house.control.tick()
    assert house.hot.budgets.look(job.job_id, 10_000).reserved == 3_000
    house.control.tick()
    assert house.hot.budgets.look(job.job_id, 10_000).reserved == 1_000


def test_the_dead_are_known_where_none_lives_that_makes_calls(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they reserved is given back though no other worker has said since that it lives, as where
    the job has moved to the batch lane."""
    monkeypatch.setattr(accounts, "STRAY_S", 0.0)
    job = house.submit(1, "alone", budget_usd=0.01)
    house.control.tick()
    house.hot.budgets.renew("dead")
    key = ItemKey(job.job_id, 1, "d0")
    house.hot.begin([Begin(key, buckets_for(job), MayCost(1_000, owner="dead"))])
    house.control.tick()
    assert house.hot.budgets.look(job.job_id, 10_000).reserved == 1_000
    house.redis.zincrby(keys.BUDGET_OWNERS, -OWNER_LEASE_S - 1, "dead")
    house.control.tick()
    house.control.tick()
    assert house.hot.budgets.look(job.job_id, 10_000).reserved == 0


def test_a_call_stays_reserved_whose_document_a_batch_has_finished(house: House) -> None:
    """Its message may come again while it is under way, and is skipped; what was only carried along
    is given back."""
    job = house.submit(2, "faster", budget_usd=0.01)
    house.control.tick()
    called, carried = (ItemKey(job.job_id, 1, f"d{nth}") for nth in range(2))
    buckets = buckets_for(job)

    def begin(key: ItemKey, call: MayCost) -> BeginReply:
        return house.hot.begin([Begin(key, buckets, call)])[0].reply

    assert begin(called, MayCost(1_000, owner="one")) is BeginReply.GO
    assert begin(carried, MayCost(0, paid=300, owner="one")) is BeginReply.GO
    house.hot.settle(
        SettleBatch(
            [SettledDone(key, buckets, False, 1, 1, 500, calls=1) for key in (called, carried)]
        )
    )
    assert house.hot.budgets.seen(job.job_id) == Account(1_000, 1_300, None)
    for key in called, carried:
        assert begin(key, MayCost(1_000, owner="another")) is BeginReply.DONE
    assert house.hot.budgets.seen(job.job_id) == Account(1_000, 1_000, None)
    house.hot.settle(
        SettleBatch([SettledDone(called, buckets, False, 1, 1, 900, calls=1, has_budget=True)])
    )
    account = house.hot.budgets.seen(job.job_id)
    assert account is not None
    assert account.reserved == 0, "the call has ended"


def test_calls_under_way_stay_reserved_when_redis_was_only_restarted(house: House) -> None:
    """Only where SQL has the outcome is nothing reserved any more, since Redis may have lost the
    end of that call."""
    job = house.submit(2, "restarted", budget_usd=0.01)
    house.control.tick()
    house.hot.budgets.renew("alive")
    docs = [ItemKey(job.job_id, 1, f"d{nth}") for nth in range(2)]
    begins = [
        Begin(key, buckets_for(job), MayCost(1_000 * (nth + 1), owner="alive"))
        for nth, key in enumerate(docs)
    ]
    assert [begun.reply for begun in house.hot.begin(begins)] == [BeginReply.GO] * 2
    house.outcomes.settle([Result(docs[0], 200, b"{}", None, None, None, 1, 1, 700, 1, 1, 1)], [])
    for _ in range(2):
        house.redis.set(keys.EPOCH_RUN, "the run before")
        house.control.tick()
        house.control.tick()
        assert house.hot.budgets.seen(job.job_id) == Account(700, 2_000, None)
    house.redis.flushall()
    house.control.tick()
    house.control.tick()
    assert house.hot.budgets.seen(job.job_id) == Account(700, 0, None)


def test_a_replay_counts_what_was_spent_before_redis_was_lost(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that had ended by then is not live when Redis is rebuilt: its counters come back with
    its replay, so that calls of both generations share one budget."""
    monkeypatch.setattr(loop, "ASIDE_S", 0.0)
    job = house.submit(1, "ended", budget_usd=0.01)
    house.control.tick()
    _die(house, job, 1)
    house.control.tick()
    house.control.tick()
    assert house.state(job) is JobState.COMPLETED
    house.redis.flushall()
    house.control.tick()
    house.producer.replay(job.job_id)
    house.control.tick()
    _die(house, job, 2)
    assert house.hot.budgets.seen(job.job_id) == Account(16_000, 0, None)


def _die(house: House, job: Job, generation: int) -> None:
    """What a worker does with a document that fails for good, and is paid 8,000 microdollars."""
    key = ItemKey(job.job_id, generation, "d0")
    letter = DeadLetter(key, "x", 1, 1, "", 400, b"{}", None, cost_microusd=8_000)
    house.outcomes.settle([], [letter])
    dead = SettledDead(key, buckets_for(job), "x", cost_microusd=8_000, has_budget=True)
    house.hot.settle(SettleBatch(dead=[dead]))


def test_only_a_most_that_was_passed_raises_later_estimates(house: House) -> None:
    """An answer that nothing bounds may cost far more than was guessed: that says nothing of calls
    whose most is known."""
    job = house.submit(4, "loose", budget_usd=0.1)
    house.control.tick()

    def reserved(doc: str, call: MayCost) -> int:
        key = ItemKey(job.job_id, 1, doc)
        assert house.hot.begin([Begin(key, buckets_for(job), call)])[0].reply is BeginReply.GO
        return house.hot.budgets.look(job.job_id, 100_000).reserved

    def ends(doc: str, cost: int) -> None:
        done = SettledDone(
            ItemKey(job.job_id, 1, doc), buckets_for(job), cost_microusd=cost, has_budget=True
        )
        house.hot.settle(SettleBatch([done]))

    assert reserved("d0", MayCost(1_000, is_most=False)) == 1_000
    ends("d0", 9_000)
    assert reserved("d1", MayCost(1_000)) == 1_000
    assert reserved("d2", MayCost(1_000, is_most=False)) == 1_000 + 9_000
    ends("d1", 1_500)
    assert reserved("d3", MayCost(1_000)) == 9_000 + 1_000 + 500


def test_about_as_many_documents_come_back_as_there_is_room_for(house: House) -> None:
    """Of hundreds that wait a few are tried when a call's room appears, and all of them once
    nothing is under way."""
    job = house.submit(1, "crowd", budget_usd=0.01)
    house.control.tick()
    house.redis.delete(QUEUE)
    house.hot.budgets.reserve_batch(job.job_id, 10_000, "t1", 9_000, spent=0)
    house.hot.park(job.job_id, [b'{"nth": %d}' % nth for nth in range(300)])
    refused = Begin(ItemKey(job.job_id, 1, "d0"), buckets_for(job), MayCost(3_000))
    assert house.hot.begin([refused])[0].reply is BeginReply.NO_ROOM
    house.control.tick()
    assert house.redis.llen(QUEUE) == 0
    house.hot.budgets.reserve_batch(job.job_id, 10_000, "t1", 4_000, spent=0)
    house.control.tick()
    assert house.redis.llen(QUEUE) == 2 * 6_000 // 3_000
    house.control.tick()
    assert house.redis.llen(QUEUE) == 4 + 2 * 6_000 // 1_500
    house.hot.budgets.end_batch(job.job_id, "t1", spent=0)
    house.control.tick()
    assert house.redis.llen(QUEUE) == 300


def test_batches_and_calls_reserve_in_one_account(house: House) -> None:
    """A call has no room beside a batch that may cost the rest of the budget, nor a batch beside
    calls; its end frees that."""
    job = house.submit(2, "both", budget_usd=0.01)
    house.control.tick()
    book = house.hot.budgets

    def begin(doc: str, estimate: int) -> BeginReply:
        key = ItemKey(job.job_id, 1, doc)
        return house.hot.begin([Begin(key, buckets_for(job), MayCost(estimate, owner="me"))])[
            0
        ].reply

    assert begin("d0", 3_000) is BeginReply.GO
    assert book.reserve_batch(job.job_id, 10_000, "t1", 8_000, spent=0) == (
        False,
        Account(0, 3_000, None),
    )
    assert book.reserve_batch(job.job_id, 10_000, "t1", 7_000, spent=0) == (
        True,
        Account(0, 10_000, None),
    )
    assert book.reserve_batch(job.job_id, 10_000, "t1", 7_000, spent=0) == (
        True,
        Account(0, 10_000, None),
    )
    assert begin("d1", 1) is BeginReply.NO_ROOM
    book.end_batch(job.job_id, "t1", spent=6_000)
    assert begin("d1", 1_001) is BeginReply.NO_ROOM
    assert begin("d1", 1_000) is BeginReply.GO
    assert book.look(job.job_id, 10_000).committed == 10_000


def test_a_worker_that_knows_another_budget_does_not_send(house: House) -> None:
    """Its spec is read anew, whether the job was given a budget meanwhile or has none any more."""
    job = house.submit(1, "changed")
    house.control.tick()
    key, buckets = ItemKey(job.job_id, 1, "d0"), buckets_for(job)
    assert house.hot.begin([Begin(key, buckets, MayCost(1))])[0].reply is BeginReply.BUDGET_CHANGED
    assert house.producer.limit(job.job_id, budget_usd=1.0, deadline_s=None)
    house.control.tick()
    assert house.hot.begin([Begin(key, buckets)])[0].reply is BeginReply.BUDGET_CHANGED
    assert house.hot.begin([Begin(key, buckets, MayCost(1))])[0].reply is BeginReply.GO


@pytest.mark.parametrize("before", [False, True], ids=["as data", "of a release before"])
def test_a_job_that_its_budget_paused_ends_once_all_is_answered(
    house: House, *, before: bool
) -> None:
    """What was under way when the budget was spent may have been all that was left."""
    job = house.submit(1, "last", budget_usd=0.001)
    house.control.tick()
    if before:
        words = "budget_exhausted: 0.0011 USD of 0.001 are spent"
        paused_before(house.database, job.job_id, words)
    else:
        reason = spent_budget(budget_usd=0.001, spent_usd=0.0011, left=1, mean_usd=0.001)
        running = {JobState.RUNNING}
        assert house.jobs.set_state(job.job_id, JobState.PAUSED, why=reason, expect=running)
    key = ItemKey(job.job_id, 1, "d0")
    house.outcomes.settle([Result(key, 200, b"{}", None, None, None, 1, 1, 1_100, 1, 1, 1)], [])
    house.hot.settle(
        SettleBatch([SettledDone(key, buckets_for(job), cost_microusd=1_100, has_budget=True)])
    )
    for _ in range(4):
        house.control.tick()
    assert house.state(job) is JobState.COMPLETED
