"""Workers and a provider that are played, for budgets: real scripts on a real Redis, a real control
loop and ledger."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
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
    open_database,
)
from penstock_ledger.model import DeadLetter
from penstock_producer import Producer, ProducerSettings
from penstock_producer.feed.wire import item_tag
from penstock_producer.settings import ProviderFacts
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
        path.write_bytes(
            b"".join(
                orjson.dumps({"id": f"d{n}", "text": f"text {n}"}) + b"\n" for n in range(documents)
            )
        )
        return self.producer.submit(path, {"prompt": "{text}", "model": "m", **spec}, job_key=name)

    def state(self, job: Job) -> JobState:
        return self.jobs.get(job.job_id).state

    def close(self) -> None:
        self.producer.close()
        self.database.close()


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


FATES = {
    "done": 70,
    "dead": 5,
    "refused": 6,
    "paid again": 6,
    "repaired": 5,
    "unpaid": 5,
    "half settled": 3,
}


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
                self.house.hot.rehydrate(
                    job_id, generation, [(doc_id, False)], buckets_for(call.job)
                )
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
        # a call once in a while costs more than was thought
        wrong = 1.2 if chance.random() < 0.02 else 1.0
        fate = chance.choices([*FATES], [*FATES.values()])[0]
        cost = (
            0
            if fate in ("unpaid", "dead")
            else round(estimate * wrong * (wrong > 1 or chance.uniform(0.1, 1.0)))
        )
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
                results.append(
                    Result(call.key, 200, b"{}", None, None, None, 1, 1, in_all, 1, 1, 1)
                )
            if call.fate == "done":
                done.append(
                    SettledDone(call.key, buckets, cost_microusd=call.spent, has_budget=True)
                )
            elif call.fate == "half settled":  # its worker dies between SQL and Redis
                self.seen.add(call.key)
                self.back.append(call.raw)
            elif call.fate in ("dead", "refused"):
                letters.append(
                    DeadLetter(call.key, "x", 1, 1, "", 400, b"", None, cost_microusd=in_all)
                )
                dead.append(
                    SettledDead(call.key, buckets, "x", cost_microusd=call.spent, has_budget=True)
                )
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
            call.key,
            buckets_for(call.job),
            QUEUE,
            item_tag(call.key),
            call.raw,
            0.0,
            cost_microusd=call.paid + cost,
            has_budget=True,
        )

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
            assert account.committed <= most, (
                f"seed {self.jobs[job_id].job_key}: {account} of {budget}"
            )
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
