"""Budgets by reservation: real scripts on a real Redis, a real control loop and ledger; workers and providers are played."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from envelopes import decode_envelope
from servers import RedisServer, as_bytes

from penstock_ledger import (
    Account,
    Begin,
    BeginReply,
    Database,
    ItemKey,
    Job,
    JobState,
    JobStore,
    LiveJobs,
    MayCost,
    Meta,
    OutcomeStore,
    ProviderBatchStore,
    RedisLedger,
    Result,
    SettleBatch,
    SettledDead,
    SettledDone,
    SettledRetry,
    buckets_for,
    keys,
    open_database,
)
from penstock_ledger.model import DeadLetter
from penstock_producer import Producer, ProducerSettings
from penstock_producer.feed.wire import item_tag
from penstock_producer.settings import ProviderFacts
from penstock_workers.control.job import accounts
from penstock_workers.control.loop import Control
from penstock_workers.settings import WorkerSettings

QUEUE = "penstock.api"
SEEDS = 50
USD = 1_000_000


class House:
    """A ledger, a queue and one control loop; ``Played`` are its workers."""

    def __init__(self, redis_server: RedisServer, folder: Path) -> None:
        self.folder, self.redis = folder, redis_server.client()
        url = f"sqlite:///{folder}/ledger.db"
        settings = WorkerSettings(redis_url=redis_server.url, database_url=url)
        self.database: Database = open_database(url)
        self.database.migrate()
        prices = {"default": ProviderFacts(usd_per_mtok_in=1.0)}
        self.producer = Producer(ProducerSettings(database_url=url, providers=prices))
        self.hot = RedisLedger(self.redis, Meta(self.database).epoch())
        self.jobs, self.outcomes = JobStore(self.database), OutcomeStore(self.database)
        self.batches = ProviderBatchStore(self.database)
        self.control = Control(settings, self.database, self.hot, owner="test")

    def submit(self, documents: int, name: str, **spec: Any) -> Job:
        path = self.folder / f"{name}.jsonl"
        path.write_bytes(b"".join(orjson.dumps({"id": f"d{n}", "text": f"text {n}"}) + b"\n" for n in range(documents)))
        return self.producer.submit(path, {"prompt": "{text}", "model": "m", **spec}, job_key=name)

    def state(self, job: Job) -> JobState:
        return self.jobs.get(job.job_id).state

    def close(self) -> None:
        self.producer.close()
        self.database.close()


@pytest.fixture
def house(redis_server: RedisServer, tmp_path: Path) -> Iterator[House]:
    made = House(redis_server, tmp_path)
    yield made
    made.close()


@dataclass
class Call:
    """One document in the hands of a worker."""

    job: Job
    key: ItemKey
    raw: bytes
    may_cost: MayCost
    cost: int  # what the provider bills for it
    fate: str
    rounds: int  # until its answer
    paid: int = 0  # by earlier calls of the same attempt

    @property
    def spent(self) -> int:
        return self.paid + self.cost


FATES = {"done": 70, "dead": 5, "refused": 6, "paid again": 6, "repaired": 5, "unpaid": 5, "half settled": 3}


class Played:
    """Workers of many jobs at once, in rounds; all that is random comes from the job's own seed."""

    def __init__(self, house: House, budgets: dict[str, int]) -> None:
        self.house, self.budgets = house, budgets
        self.jobs = {job_id: house.jobs.get(job_id) for job_id in budgets}
        self.chance = {job_id: random.Random(nth) for nth, job_id in enumerate(budgets)}
        self.all = random.Random(0)
        self.workers: list[tuple[str, list[Call]]] = [self._worker() for _ in range(4)]
        self.back: list[bytes] = []  # messages of dead workers, until their leases end
        self.billed: Counter[str] = Counter()  # by answers that came
        self.lost: Counter[str] = Counter()  # by calls whose worker died
        self.estimate: Counter[str] = Counter()  # the largest of a job
        self.earlier: Counter[ItemKey] = Counter()  # what retries of a document were billed
        self.seen: set[ItemKey] = set()  # keys that a worker has died with
        self.deaths = 0

    def turn(self) -> None:
        self.house.control.tick()
        self.house.redis.lpush(QUEUE, *self.back) if self.back else None
        self.back = []
        for nth, (owner, calls) in enumerate(self.workers):
            self._claim(owner, calls)
            self._check({call.job.job_id for call in calls})
            self._answer(owner, calls)
            if self.all.random() < 0.03:
                self._die(nth)

    def _worker(self) -> tuple[str, list[Call]]:
        owner = f"owner-{self.all.randrange(10**9)}"
        self.house.hot.budgets.renew(owner)
        return owner, []

    def _claim(self, owner: str, calls: list[Call]) -> None:
        raws = self.house.redis.rpop(QUEUE, 64 - len(calls)) if len(calls) < 64 else None
        wanted = [self._call(owner, as_bytes(raw)) for raw in raws or ()]
        again = [call for call in wanted if call.key in self.seen]
        ended = self.house.outcomes.terminal([call.key for call in again]) if again else frozenset()
        for call in again:
            if call.key in ended:  # as item/run/starts.py has it
                job_id, generation, doc_id = call.key
                self.house.hot.rehydrate(job_id, generation, [(doc_id, False)], buckets_for(call.job))
                self.house.hot.settle(SettleBatch(released=[call.key], paid={call.key: 0}))
                self.house.hot.drop_from_window([call.key])
        self._begin([call for call in wanted if call.key not in ended], calls)

    def _begin(self, wanted: list[Call], calls: list[Call]) -> None:
        begins = [Begin(call.key, buckets_for(call.job), call.may_cost) for call in wanted]
        for call, begun in zip(wanted, self.house.hot.begin(begins), strict=True):
            if begun.reply is BeginReply.GO:
                calls.append(call)
            elif begun.reply is not BeginReply.DONE:
                assert begun.reply in (BeginReply.NO_ROOM, BeginReply.PAUSED), begun
                if call.paid:
                    self.house.hot.settle(SettleBatch(retries=[self._put_off(call, 0)]))
                else:
                    self.house.hot.park(call.job.job_id, [call.raw])

    def _call(self, owner: str, raw: bytes) -> Call:
        key = decode_envelope(raw).message.key
        chance = self.chance[key.job_id]
        estimate = chance.randint(500, 3_000)
        self.estimate[key.job_id] = max(self.estimate[key.job_id], estimate)
        wrong = 1.2 if chance.random() < 0.02 else 1.0  # a call once in a while costs more than was thought
        fate = chance.choices([*FATES], [*FATES.values()])[0]
        cost = 0 if fate in ("unpaid", "dead") else round(estimate * wrong * (wrong > 1 or chance.uniform(0.1, 1.0)))
        call = MayCost(estimate, is_most=True, owner=owner)
        return Call(self.jobs[key.job_id], key, raw, call, cost, fate, chance.randint(0, 3))

    def _answer(self, owner: str, calls: list[Call]) -> None:
        answered = [call for call in calls if call.rounds == 0]
        calls[:] = [call for call in calls if call.rounds > 0]
        for call in calls:
            call.rounds -= 1
        results, letters, done, dead, retries = [], [], [], [], []
        for call in answered:
            self.billed[call.job.job_id] += call.cost
            buckets, in_all = buckets_for(call.job), self.earlier[call.key] + call.spent
            if call.fate in ("done", "half settled"):
                results.append(Result(call.key, 200, b"{}", None, None, None, 1, 1, in_all, 1, 1, 1))
            if call.fate == "done":
                done.append(SettledDone(call.key, buckets, cost_microusd=call.spent, has_budget=True))
            elif call.fate == "half settled":  # its worker dies between SQL and Redis
                self.seen.add(call.key)
                self.back.append(call.raw)
            elif call.fate in ("dead", "refused"):
                letters.append(DeadLetter(call.key, "x", 1, 1, "", 400, b"", None, cost_microusd=in_all))
                dead.append(SettledDead(call.key, buckets, "x", cost_microusd=call.spent, has_budget=True))
            elif call.fate != "repaired":
                retries.append(self._put_off(call, call.cost))
        self.house.outcomes.settle(results, letters)
        self.house.hot.settle(SettleBatch(done, dead, retries))
        for call in answered:
            if call.fate == "repaired":  # the model is shown its answer, in the same attempt
                self.house.hot.settle(SettleBatch(released=[call.key], paid={call.key: call.spent}))
                again = self._call(owner, call.raw)
                again.may_cost, again.paid = again.may_cost._replace(paid=call.spent), call.spent
                self._begin([again], calls)

    def _put_off(self, call: Call, cost: int) -> SettledRetry:
        self.earlier[call.key] += call.paid + cost
        return SettledRetry(
            call.key, buckets_for(call.job), QUEUE, item_tag(call.key), call.raw, 0.0,
            cost_microusd=call.paid + cost, has_budget=True,
        )  # fmt: skip

    def _die(self, nth: int) -> None:
        """Its calls may be billed, and no one knows; its messages come back."""
        owner, calls = self.workers[nth]
        for call in calls:
            self.lost[call.job.job_id] += call.spent
            self.billed[call.job.job_id] -= call.paid
            self.seen.add(call.key)
            self.back.append(call.raw)
        self.house.redis.zrem("penstock:budgets:owners", owner)
        self.workers[nth] = self._worker()
        self.deaths += 1

    def _check(self, job_ids: set[str]) -> None:
        for job_id in job_ids:
            account, budget = self.account(job_id), self.budgets[job_id]
            most = budget + self.estimate[job_id]
            assert account.committed <= most, f"seed {self.jobs[job_id].job_key}: {account} of {budget}"
            assert self.billed[job_id] <= most

    def unfinished(self, job_id: str) -> int:
        """What was billed for documents without an outcome."""
        keys = [key for key in self.earlier if key.job_id == job_id]
        ended = self.house.outcomes.terminal(keys)
        return sum(self.earlier[key] for key in keys if key not in ended)

    def account(self, job_id: str) -> Account:
        return self.house.hot.budgets.look(job_id, self.budgets[job_id])


def run(house: House, played: Played) -> None:
    """Until none of them runs and no call is under way."""
    running: list[str] = []
    for _ in range(300):
        played.turn()
        live = [job for job, _ in LiveJobs(house.database).look()]
        running = [job.job_key for job in live if job.state is JobState.RUNNING]
        if not running and not any(calls for _, calls in played.workers):
            return
    raise AssertionError(f"these do not end: {running}")


def test_no_budget_is_passed_in_fifty_seeded_runs(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spent and reserved never pass a budget by more than one call's estimate, whatever answers cost, fail, are repaired, and die
    with their workers; each run ends by itself and has used its budget up; what was billed is counted once; more finishes it."""
    monkeypatch.setattr(accounts, "SPENT_S", 0.0)
    monkeypatch.setattr(accounts, "STRAY_S", 0.0)
    jobs = [
        house.submit(8, f"seed-{seed}", budget_usd=random.Random(seed).uniform(0.003, 0.011), max_attempts=9)
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
            reason = house.jobs.get(name).reason or ""
            assert reason.startswith("budget_exhausted: ")
            assert f"penstock resume {job.job_key} --budget-usd" in reason
            assert played.budgets[name] - account.spent < 2 * played.estimate[name], "the rest pays for no more"
            played.budgets[name] = USD
            assert house.producer.limit(name, budget_usd=1.0, deadline_s=None)
            assert house.producer.resume(name)
    run(house, played)
    assert {house.state(job) for job in jobs} == {JobState.COMPLETED}
    assert all(house.batches.spent(job.job_id) == played.billed[job.job_id] for job in jobs)
    assert sum(played.account(job.job_id).reserved for job in jobs) == 0


def test_what_dead_workers_reserved_is_given_back(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what two looks in a row find in the name of a worker that is dead: calls of one that lives stand, however long."""
    monkeypatch.setattr(accounts, "STRAY_S", 0.0)
    job = house.submit(2, "strays", budget_usd=0.01)
    house.control.tick()
    house.hot.budgets.renew("alive")
    begins = [
        Begin(ItemKey(job.job_id, 1, f"d{nth}"), buckets_for(job), MayCost(1_000 * (nth + 1), owner=owner))
        for nth, owner in enumerate(("alive", "dead"))
    ]
    assert [begun.reply for begun in house.hot.begin(begins)] == [BeginReply.GO] * 2
    house.control.tick()
    assert house.hot.budgets.look(job.job_id, 10_000).reserved == 3_000
    house.control.tick()
    assert house.hot.budgets.look(job.job_id, 10_000).reserved == 1_000


def test_a_call_stays_reserved_whose_document_a_batch_has_finished(house: House) -> None:
    """Its message may come again while it is under way, and is skipped; what was only carried along is given back."""
    job = house.submit(2, "faster", budget_usd=0.01)
    house.control.tick()
    called, carried = (ItemKey(job.job_id, 1, f"d{nth}") for nth in range(2))
    buckets = buckets_for(job)

    def begin(key: ItemKey, call: MayCost) -> BeginReply:
        return house.hot.begin([Begin(key, buckets, call)])[0].reply

    assert begin(called, MayCost(1_000, owner="one")) is BeginReply.GO
    assert begin(carried, MayCost(0, paid=300, owner="one")) is BeginReply.GO
    house.hot.settle(SettleBatch([SettledDone(key, buckets, False, 1, 1, 500, calls=1) for key in (called, carried)]))
    assert house.hot.budgets.seen(job.job_id) == Account(1_000, 1_300, None)
    for key in called, carried:
        assert begin(key, MayCost(1_000, owner="another")) is BeginReply.DONE
    assert house.hot.budgets.seen(job.job_id) == Account(1_000, 1_000, None)
    house.hot.settle(SettleBatch([SettledDone(called, buckets, False, 1, 1, 900, calls=1, has_budget=True)]))
    account = house.hot.budgets.seen(job.job_id)
    assert account is not None
    assert account.reserved == 0, "the call has ended"


def test_calls_under_way_stay_reserved_when_redis_was_only_restarted(house: House) -> None:
    """Only where SQL has the outcome is nothing reserved any more, since Redis may have lost the end of that call."""
    job = house.submit(2, "restarted", budget_usd=0.01)
    house.control.tick()
    house.hot.budgets.renew("alive")
    docs = [ItemKey(job.job_id, 1, f"d{nth}") for nth in range(2)]
    begins = [Begin(key, buckets_for(job), MayCost(1_000 * (nth + 1), owner="alive")) for nth, key in enumerate(docs)]
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


def test_only_a_most_that_was_passed_raises_later_estimates(house: House) -> None:
    """An answer that nothing bounds may cost far more than was guessed: that says nothing of calls whose most is known."""
    job = house.submit(4, "loose", budget_usd=0.1)
    house.control.tick()

    def reserved(doc: str, call: MayCost) -> int:
        key = ItemKey(job.job_id, 1, doc)
        assert house.hot.begin([Begin(key, buckets_for(job), call)])[0].reply is BeginReply.GO
        return house.hot.budgets.look(job.job_id, 100_000).reserved

    def ends(doc: str, cost: int) -> None:
        done = SettledDone(ItemKey(job.job_id, 1, doc), buckets_for(job), cost_microusd=cost, has_budget=True)
        house.hot.settle(SettleBatch([done]))

    assert reserved("d0", MayCost(1_000, is_most=False)) == 1_000
    ends("d0", 9_000)
    assert reserved("d1", MayCost(1_000)) == 1_000
    assert reserved("d2", MayCost(1_000, is_most=False)) == 1_000 + 9_000
    ends("d1", 1_500)
    assert reserved("d3", MayCost(1_000)) == 9_000 + 1_000 + 500


def test_about_as_many_documents_come_back_as_there_is_room_for(house: House) -> None:
    """Of hundreds that wait a few are tried when a call's room appears, and all of them once nothing is under way."""
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
    """A call has no room beside a batch that may cost the rest of the budget, nor a batch beside calls; its end frees that."""
    job = house.submit(2, "both", budget_usd=0.01)
    house.control.tick()
    book = house.hot.budgets

    def begin(doc: str, estimate: int) -> BeginReply:
        key = ItemKey(job.job_id, 1, doc)
        return house.hot.begin([Begin(key, buckets_for(job), MayCost(estimate, owner="me"))])[0].reply

    assert begin("d0", 3_000) is BeginReply.GO
    assert book.reserve_batch(job.job_id, 10_000, "t1", 8_000, spent=0) == (False, Account(0, 3_000, None))
    assert book.reserve_batch(job.job_id, 10_000, "t1", 7_000, spent=0) == (True, Account(0, 10_000, None))
    assert book.reserve_batch(job.job_id, 10_000, "t1", 7_000, spent=0) == (True, Account(0, 10_000, None))
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


def test_a_job_that_its_budget_paused_ends_once_all_is_answered(house: House) -> None:
    """What was under way when the budget was spent may have been all that was left."""
    job = house.submit(1, "last", budget_usd=0.001)
    house.control.tick()
    reason = "budget_exhausted: 0.0011 USD of 0.001 are spent"
    assert house.jobs.set_state(job.job_id, JobState.PAUSED, reason=reason, expect={JobState.RUNNING})
    key = ItemKey(job.job_id, 1, "d0")
    house.outcomes.settle([Result(key, 200, b"{}", None, None, None, 1, 1, 1_100, 1, 1, 1)], [])
    house.hot.settle(SettleBatch([SettledDone(key, buckets_for(job), cost_microusd=1_100, has_budget=True)]))
    for _ in range(4):
        house.control.tick()
    assert house.state(job) is JobState.COMPLETED
