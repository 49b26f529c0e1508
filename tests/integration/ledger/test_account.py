"""The account of a job: what it has spent, which only grows."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, select, update

from penstock_ledger import (
    JobStore,
    NothingToReplay,
    OutcomeStore,
    ProviderBatchStore,
    Remainder,
    RemainderStore,
    SpendingStore,
    TenantCosts,
    month_of,
    purge_job,
)
from penstock_ledger.model import DeadLetter, ItemKey, NewJob, Paid, PaidBeside, Result, Saving
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import outcomes, spending
from penstock_ledger.stores.account import UNREAD, add_spent
from penstock_ledger.stores.batch_figures import BatchFigures


def test_what_is_added_adds_up(either: Database) -> None:
    """Two payments of the same kind are one row with their sum, which names the job's tenant and
    when it was accepted."""
    job, _ = JobStore(either).create(
        NewJob("job", "job", {"tenant": "alpha"}, {"kind": "spool"}, "digest", None)
    )

    def pay(connection: Connection) -> None:
        for calls in (1, 2):
            add_spent(
                connection,
                "job",
                Paid(calls=calls, cost_microusd=10 * calls),
                kind=UNREAD,
                lane="batch",
                documents=calls,
            )

    either.write(pay)
    row = either.read(lambda connection: connection.execute(select(spending)).one())
    assert (row.kind, row.lane, row.documents, row.calls, row.cost_microusd) == (
        "unread",
        "batch",
        3,
        3,
        30,
    )
    assert (row.tenant, row.accepted_at) == ("alpha", job.created_at)


def test_what_an_explicit_cache_cost_is_booked_once(either: Database) -> None:
    """Whichever worker notes it, in the account of its job and against what the cache saved; its
    rent for some time more is a payment of its own."""
    JobStore(either).create(NewJob("job", "job", {}, {"kind": "spool"}, "digest", None))
    made = PaidBeside(ItemKey("job", 1, "cachedContents/a"), 0, 5_000, 0, 900)
    rent = made._replace(prompt_tokens=0, cost_microusd=30)
    for lane in ("api", "other"):
        store = OutcomeStore(either, lane)
        store.note_cache(made, "made", "prompt_cache")
        store.note_cache(rent, "until 300", "prompt_cache")
    counts = OutcomeStore(either).counts("job")
    assert (counts.cost_microusd, counts.prompt_tokens, counts.calls) == (930, 5_000, 0)
    assert counts.by_kind["prompt_cache"].cost_microusd == 930
    assert OutcomeStore(either).savings("job") == [Saving("prompt_cache", 0, 0, -930)]


class Histories:
    """One job whose documents, messages and batches meet whatever can happen to them, and counters
    of what was billed and saved that know nothing of stores."""

    def __init__(self, db: Database, seed: int) -> None:
        self.db, self.chance, self.billed = db, random.Random(seed), 0
        self.jobs, self.batches, self.remainders = (
            JobStore(db),
            ProviderBatchStore(db, "batch"),
            RemainderStore(db),
        )
        self.stores = {lane: OutcomeStore(db, lane) for lane in ("api", "gpu", None)}
        self.job_id, self.generation, self.calls, self.purged = f"job-{seed}", 1, 0, False
        self.jobs.create(
            NewJob(self.job_id, self.job_id, {"tenant": "alpha"}, {"kind": "spool"}, "digest", None)
        )
        self.messages = [(self.key(f"d{nth}"), Paid()) for nth in range(6)]
        self.last: Callable[[], object] = lambda: None
        self.saved = self.saving = Saving("tier:flex", 0)  # by all answers; by the latest

    def key(self, doc: str) -> ItemKey:
        return ItemKey(self.job_id, self.generation, doc)

    def call(self, *, is_read: bool = True) -> Paid:
        """A call is billed; what it saved is known once its answer is read."""
        self.calls += 1
        cost = self.chance.choice([0, 1, 7, 100])
        self.billed += cost
        if is_read:
            self.saving = Saving("tier:flex", 1, 5, self.chance.choice([-40, 0, 100]))
            self.saved = self.saved.plus(self.saving)
        return Paid(1, 3, 2, cost, self.chance.choice([0, 0, 1]))

    def do(self, work: Callable[[], object]) -> None:
        """Whatever is written may be written twice: a commit whose answer was lost is repeated."""
        for _ in range(self.chance.choice([1, 1, 2])):
            work()
        self.last = work

    def outcome(self, key: ItemKey, paid: Paid) -> tuple[list[Result], list[DeadLetter]]:
        if self.chance.random() < 0.5:
            common = paid._asdict()
            letter = DeadLetter(
                key,
                self.chance.choice("xy"),
                1,
                common.pop("calls"),
                f"{self.calls}",
                400,
                b"{}",
                None,
                **common,
            )
            return [], [letter]
        return self.result(key, paid)

    def result(self, key: ItemKey, paid: Paid) -> tuple[list[Result], list[DeadLetter]]:
        name = f"r{self.calls}"
        common = paid._asdict()
        return [Result(key, 200, b"{}", name, "m", "stop", latency_ms=1, attempts=1, **common)], []

    def settles(self) -> None:
        """A call ends in an outcome, the first of its document or not."""
        key, before = self.messages.pop(self.chance.randrange(len(self.messages)))
        store = self.stores[self.chance.choice(["api", "gpu", None])]
        results, letters = self.outcome(key, before.plus(self.call()))
        earlier, savings = {key: before} if any(before) else {}, {key: [self.saving]}
        self.do(lambda: store.settle(results, letters, earlier=earlier, savings=savings))

    def retries(self) -> None:
        """Its answer misses the schema: paid, and asked again."""
        self.retries_of(self.chance.randrange(len(self.messages)))

    def retries_of(self, nth: int) -> None:
        key, before = self.messages[nth]
        own = self.call()
        retried, savings = [(f"retried-{self.calls}", PaidBeside(key, *own))], {key: [self.saving]}
        self.do(lambda: OutcomeStore(self.db).settle([], [], retried=retried, savings=savings))
        self.messages[nth] = (key, before.plus(own))

    def comes_twice(self) -> None:
        self.messages.append(self.chance.choice(self.messages))

    def loses_redis(self) -> None:
        """Messages are made again, and know nothing of what was paid; a broker apart may keep the
        old ones."""
        again = [(key, Paid()) for key, _ in self.messages]
        self.messages = again + (self.messages if self.chance.random() < 0.5 else [])

    def leaves_its_lane(self) -> None:
        key, before = self.messages.pop(self.chance.randrange(len(self.messages)))
        left = [PaidBeside(key, *before)] if any(before) else []
        self.do(lambda: OutcomeStore(self.db).settle([], [], left=left))
        self.messages.append((key, Paid()))

    def goes_through_batches(self) -> None:
        """A batch answers a document badly; another one has it then, or another lane, or it gets an
        outcome there."""
        doc, first = self.key(f"b{self.calls}"), self.call()
        row = Remainder(doc, "{}", 1, *first[:4], "timeout", None, first.unpriced)
        of_first = {doc: [self.saving]}
        self.do(lambda: self.batches.settle("t1", [], [], [row], savings=of_first))
        fate = self.chance.choice(["outcome", "elsewhere", "waits", "passed on"])
        if fate == "outcome":
            results, letters = self.outcome(doc, first.plus(self.call()))
            earlier, savings = {doc: first}, {doc: [self.saving]}
            self.do(
                lambda: self.batches.settle(
                    "t2", results, letters, [], earlier=earlier, savings=savings
                )
            )
        elif fate == "elsewhere":
            results, letters = self.outcome(doc, self.call())
            savings = {doc: [self.saving]}
            self.do(lambda: OutcomeStore(self.db, "api").settle(results, letters, savings=savings))
            self.do(lambda: self.batches.forget([doc]))
        elif fate == "passed on":
            self.do(lambda: self.batches.passed_on([doc]))
            self.messages.append((doc, Paid()))

    def loses_a_batch(self) -> None:
        lost = self.call(is_read=False)
        self.db.write(
            lambda connection: add_spent(connection, self.job_id, lost, kind=UNREAD, lane="batch")
        )

    def replays(self) -> None:
        with contextlib.suppress(NothingToReplay):
            feed, _ = self.jobs.replay(self.job_id, reason=self.chance.choice(["x", "y", None]))
            self.generation = feed.generation
            again = OutcomeStore(self.db).replayable(self.job_id, feed.generation)
            self.messages += [(self.key(letter.key.doc_id), Paid()) for letter in again]

    def replays_in_a_release_before(self) -> None:
        """Its process takes the money away, as it did; a control process of this release sees the
        job then."""
        with contextlib.suppress(NothingToReplay), pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock_ledger.stores.tallies.add_superseded", lambda *_: None)
            self.replays()
        OutcomeStore(self.db).mend_replays(self.job_id)

    def is_purged(self) -> None:
        purge_job(self.db, self.job_id)
        self.purged = True


@pytest.mark.parametrize("is_told", [True, False])
def test_an_outcome_of_the_release_before_counts_earlier_attempts_once(
    either: Database, is_told: bool
) -> None:
    """A worker of this release has noted a paid retry, and one of the release before, which knows
    of no notes, stores the outcome: control counts the retry once, whether the outcome says it or
    its message had forgotten it."""
    story = Histories(either, 0)
    key, _ = story.messages[0]
    story.retries_of(0)
    earlier = story.messages[0][1] if is_told else Paid()
    results, _ = story.result(key, earlier.plus(story.call(is_read=False))._replace(unpriced=0))
    OutcomeStore(either, "api").settle(results, [])
    unsaid = update(outcomes).values(unpriced=None)
    either.write(lambda connection: connection.execute(unsaid))
    for _ in range(2):
        OutcomeStore(either).mend_retries(story.job_id)
        _agrees(either, story)


STEPS = (
    (Histories.settles, 8), (Histories.retries, 6), (Histories.comes_twice, 2), (Histories.loses_redis, 1),
    (Histories.leaves_its_lane, 2), (Histories.goes_through_batches, 3), (Histories.loses_a_batch, 1),
    (Histories.replays, 2), (Histories.replays_in_a_release_before, 1),
)  # fmt: skip


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.whole) for seed in range(2, 6))]
)
def test_whatever_happens_the_account_is_what_was_billed(either: Database, seed: int) -> None:
    """After each step of a random history all readers of the account say what a counter of calls
    says, to the last millionth: the job's figures, its budget, its tenant's month, and the sums by
    tenant and by lane; what its answers saved was booked once. A purge changes nothing in it, and
    what a frozen worker brings after it is added."""
    story = Histories(either, seed)
    steps, weights = zip(*STEPS, strict=True)
    for _ in range(30):
        if story.messages:
            story.chance.choices(steps, weights)[0](story)
        _agrees(either, story)
    story.is_purged()
    _agrees(either, story)
    if story.messages:
        key, before = story.messages[0]
        results, letters = story.outcome(key, before.plus(story.call()))
        OutcomeStore(either, "api").settle(
            results,
            letters,
            earlier={key: before} if any(before) else {},
            savings={key: [story.saving]},
        )
        _agrees(either, story)


def _agrees(db: Database, story: Histories) -> None:
    counts = OutcomeStore(db).counts(story.job_id)
    assert counts == OutcomeStore(db).recount(story.job_id)
    since, store = 0.0, SpendingStore(db)
    by_lane = sum(one.cost_microusd for one in store.by_lane(since))
    by_tenant = {one.name: one.cost_microusd for one in store.by_tenant(since)}
    month = month_of(time.time())
    found = (
        counts.cost_microusd,
        BatchFigures(db).spent(story.job_id),
        by_tenant.get("alpha", 0),
        by_lane,
        round(TenantCosts(db).usd_of("alpha", month) * 1_000_000),
    )
    assert found == (story.billed,) * 5, counts.by_kind
    assert OutcomeStore(db).savings(story.job_id) == ([story.saved] if story.saved.answers else [])
