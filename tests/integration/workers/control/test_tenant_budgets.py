"""A tenant's monthly budget over all of its running jobs: real scripts on a real Redis, a real
control loop, and the ledger."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from attempts import make_attempt
from budget_house import USD, House, Played, run
from doors import asked, door, door_settings, new_key
from rows_of_before import paused_before
from servers import RedisServer

from penstock_ledger import (
    Account,
    ApiKeyStore,
    Begin,
    BeginReply,
    Database,
    ItemKey,
    Job,
    JobState,
    JobStore,
    KeyLimits,
    MayCost,
    NewApiKey,
    NewJob,
    OutcomeStore,
    Result,
    TenantAccounts,
    TenantBudgets,
    TenantCosts,
    buckets_for,
    keys,
    month_of,
    open_database,
    purge_job,
)
from penstock_ledger.door_stores import api_keys, spending
from penstock_ledger.reasons import by_hand
from penstock_workers.control import loop
from penstock_workers.control.job import accounts
from penstock_workers.errors import PricesMissing
from penstock_workers.item.run.cost import may_cost
from penstock_workers.item.run.reading import read_job
from penstock_workers.item.settling.rows import has_budget
from penstock_workers.settings import ProviderSettings, WorkerSettings

JOBS = 12
BUDGET_USD = 0.05  # of all jobs of `shop`: about half of what their documents cost


def budget(
    database: Database, tenant: str, usd: float | None, *, expires_at: float | None = None
) -> str:
    new = NewApiKey("k", tenant, frozenset({"write"}), expires_at, KeyLimits(budget_usd=usd))
    return ApiKeyStore(database).create(new)[0]


@pytest.fixture
def house(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[House]:
    """Control looks as often as it turns."""
    for module, name in (
        (accounts, "SPENT_S"),
        (accounts, "STRAY_S"),
        (spending, "BUDGETS_S"),
    ):
        monkeypatch.setattr(module, name, 0.0)
    made = House(redis_server, tmp_path)
    yield made
    made.close()


class PlayedTenant(Played):
    """Its jobs have no budgets of their own: the one of their tenant bounds all of them
    together."""

    most = 0

    def account(self, job_id: str) -> Account:
        found = self.house.hot.budgets.seen(job_id)
        assert found is not None
        return found

    def _check(self, job_ids: set[str]) -> None:
        for job_id in job_ids:
            tenant = self.account(job_id).tenant
            assert tenant is not None
            self.most = max(self.most, tenant.committed)
            bound = tenant.budget + max(self.estimate.values())
            assert tenant.committed <= bound, (
                f"{tenant}, and no call was estimated at more than {self.estimate}"
            )
            assert sum(self.billed.values()) <= bound


def result(job: Job, doc: str, cost: int) -> Result:
    return Result(ItemKey(job.job_id, 1, doc), 200, b"{}", None, None, None, 1, 1, cost, 1, 1, 1)


def ended(jobs: JobStore, job: Job) -> None:
    assert jobs.set_state(job.job_id, JobState.CANCELLED, expect={JobState.RUNNING})


@pytest.mark.parametrize("seed", range(3))
def test_a_tenants_budget_is_not_passed_by_its_jobs_together(house: House, seed: int) -> None:
    """Whatever calls cost, fail, are repaired, and die with their workers: spent and reserved pass
    the budget by less than one call; its jobs pause with its name and the fix; a key with a larger
    budget lets them go on, and nothing is paid twice."""
    budget(house.database, "shop", BUDGET_USD)
    jobs = [house.submit(8, f"{seed}-{nth}", tenant="shop", max_attempts=9) for nth in range(JOBS)]
    played = PlayedTenant(house, {job.job_id: round(BUDGET_USD * USD) for job in jobs})
    played.all = random.Random(seed)
    run(house, played)
    paused = [job for job in jobs if house.state(job) is JobState.PAUSED]
    assert len(paused) > 2
    for job in paused:
        found = house.jobs.get(job.job_id)
        reason = found.reason or ""
        assert reason.startswith("tenant_budget_exhausted: 0.0"), reason
        assert "of the 0.05 that tenant 'shop' may spend on jobs of 20" in reason
        assert found.pause is not None
        assert BUDGET_USD < (found.pause.number("enough_usd") or 0.0) < 1.0
    assert BUDGET_USD * USD - played.most < 2 * max(played.estimate.values()), (
        "the rest pays for no more"
    )
    budget(house.database, "shop", 1.0)
    run(house, played)
    assert {house.state(job) for job in jobs} == {JobState.COMPLETED}
    assert sum(house.batches.spent(job.job_id) for job in jobs) == sum(played.billed.values())
    month = month_of(jobs[0].created_at)
    assert TenantCosts(house.database).usd_of("shop", month) == pytest.approx(
        sum(played.billed.values()) / USD
    )


def test_two_jobs_share_what_is_left_and_one_that_has_ended_still_counts(house: House) -> None:
    """Calls of one job leave less room for the other's, in Redis alone; a Redis that was lost
    learns from SQL."""
    budget(house.database, "shop", 0.01)
    first, second = (house.submit(2, name, tenant="shop") for name in ("first", "second"))
    house.control.tick()
    house.hot.budgets.renew("me")

    def begin(job: Job, doc: str, estimate: int) -> BeginReply:
        call = MayCost(estimate, owner="me")
        return house.hot.begin([Begin(ItemKey(job.job_id, 1, doc), buckets_for(job), call)])[
            0
        ].reply

    assert begin(first, "d0", 6_000) is BeginReply.GO
    assert begin(second, "d0", 4_001) is BeginReply.NO_ROOM
    assert begin(second, "d0", 4_000) is BeginReply.GO
    assert begin(first, "d1", 1) is BeginReply.NO_ROOM
    house.outcomes.settle([result(first, "d0", 5_000), result(first, "d1", 1_000)], [])
    ended(house.jobs, first)
    house.redis.flushall()
    for _ in range(3):
        house.control.tick()
    account = house.hot.budgets.seen(second.job_id)
    assert account is not None
    assert account.tenant == (10_000, 6_000, 0)
    assert begin(second, "d1", 4_001) is BeginReply.NO_ROOM
    assert begin(second, "d1", 4_000) is BeginReply.GO


def test_a_running_job_says_that_it_waits_for_its_tenants_budget(
    house: House, redis_server: RedisServer
) -> None:
    """Over HTTP and on the job's page, while calls of another job hold what is left."""
    budget(house.database, "shop", 0.01)
    settings = door_settings(house.folder, redis_server.url)
    user = {"authorization": f"Bearer {new_key(settings, 'shop', 'read')}"}
    first, second = (house.submit(2, name, tenant="shop") for name in ("first", "second"))
    house.control.tick()
    house.hot.budgets.renew("me")
    replies = [
        house.hot.begin(
            [Begin(ItemKey(job.job_id, 1, "d0"), buckets_for(job), MayCost(6_000, owner="me"))]
        )[0].reply
        for job in (first, second)
    ]
    assert replies == [BeginReply.GO, BeginReply.NO_ROOM]
    with door(settings) as url:
        waits, goes_on = (
            asked(f"{url}/v1/jobs/{job.job_id}", **user).content["waits_for"]
            for job in (second, first)
        )
        page = asked(f"{url}/ui/jobs/{second.job_id}", **user).body.decode()
    assert waits.startswith("calls wait for the budget of tenant shop, 0.01 USD for jobs of 20")
    assert goes_on is None
    assert "Calls wait for the budget of tenant shop" in page


def test_jobs_of_earlier_months_count_there(house: House) -> None:
    """A job belongs to the month in which it was accepted: what it spends is not missing in the
    next one."""
    accounts_of = TenantAccounts(house.database, house.hot.budgets)
    job = house.submit(2, "now", tenant="shop")
    house.outcomes.settle([result(job, "d0", 7_000)], [])
    month = month_of(job.created_at)
    before = month_of(month.began - 1)
    assert (before.ends, len(before.name), before.name < month.name) == (month.began, 7, True)
    costs = TenantCosts(house.database)
    assert costs.usd_of("shop", month) == 0.007
    assert costs.usd_of("shop", before) == 0
    account = accounts_of.look(job, 10**12, 0.01, spent=7_000)
    assert account.tenant == (10_000, 7_000, 0)
    assert house.redis.exists(keys.tenant_month("shop", month.name))
    assert not house.redis.exists(keys.tenant_month("shop", before.name))


def test_jobs_that_end_leave_the_account_and_their_costs_stay(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Redis keeps of a month does not grow with the jobs that it has seen."""
    monkeypatch.setattr(spending, "BASE_S", 0.0)
    seen = TenantAccounts(house.database, house.hot.budgets)
    jobs = [house.submit(1, f"j{nth}", tenant="shop") for nth in range(5)]
    for job in jobs:
        house.outcomes.settle([result(job, "d0", 100)], [])
        assert seen.look(job, 10**12, 1.0, spent=100).tenant is not None
    name = keys.tenant_month("shop", month_of(jobs[0].created_at).name)
    assert len(house.hot.budgets.jobs_of_tenant(name)[1]) == 5
    for job in jobs[:4]:
        ended(house.jobs, job)
    for _ in range(2):
        assert seen.look(jobs[4], 10**12, 1.0, spent=100).tenant == (USD, 500, 0)
    assert house.hot.budgets.jobs_of_tenant(name)[1] == {jobs[4].job_id}


def test_a_worker_that_does_not_know_of_the_budget_does_not_send(house: House) -> None:
    """A key made while a job runs bounds it from then on: its view is read anew."""
    job = house.submit(1, "later", tenant="shop")
    house.control.tick()
    key, buckets = ItemKey(job.job_id, 1, "d0"), buckets_for(job)
    budget(house.database, "shop", 1.0)
    house.control.tick()
    assert house.hot.begin([Begin(key, buckets)])[0].reply is BeginReply.BUDGET_CHANGED
    read = read_job(house.jobs, WorkerSettings(), TenantBudgets(house.database))
    view = read(job.job_id)
    assert (view.tenant_usd, has_budget(view)) == (1.0, True)
    assert house.hot.begin([Begin(key, buckets, MayCost(1))])[0].reply is BeginReply.GO


def test_a_call_without_a_known_price_is_not_sent_for_a_tenant_with_a_budget() -> None:
    """It would count as free.

    The model of a request counts where the job names none; lanes with models of their own are paid
    by the hour, and go on."""
    provider = ProviderSettings.model_validate(
        {"base_url": "http://x", "prices": {"m": {"input": 1.0, "output": 10.0}}}
    )
    for model, known in (("m", True), ("strange", False)):
        body = b'{"model": "%s", "max_tokens": 100, "messages": []}' % model.encode()
        made = make_attempt(body=body, settings=provider, model=None, prompt=None, tenant="shop")
        made.job = replace(made.job, tenant_usd=5.0)
        if known:
            call = may_cost(made)
            assert call is not None
            assert call.estimate >= 1_000
            continue
        with pytest.raises(
            PricesMissing,
            match=r"the monthly budget of tenant 'shop' is 5 USD.*'strange'",
        ):
            may_cost(made)
        made.job = replace(made.job, tenant_usd=None)
        assert may_cost(made) is None


def test_a_line_that_names_a_dearer_model_than_its_job_reserves_what_that_costs() -> None:
    """The job's own model is for lines that name none; one without a known price is not sent."""
    prices = {"cheap": {"input": 0.1, "output": 0.1}, "dear": {"input": 50.0, "output": 100.0}}
    provider = ProviderSettings.model_validate({"base_url": "http://x", "prices": prices})
    estimates = {}
    for model in ("cheap", "dear", "models/dear", "strange"):
        body = b'{"model": "%s", "max_tokens": 100, "messages": []}' % model.encode()
        made = make_attempt(body=body, settings=provider, model="cheap", prompt=None, tenant="shop")
        made.job = replace(made.job, tenant_usd=5.0)
        if model == "strange":
            with pytest.raises(PricesMissing, match="'strange'"):
                may_cost(made)
            continue
        call = may_cost(made)
        assert call is not None
        estimates[model] = call.estimate
    assert min(estimates["dear"], estimates["models/dear"]) > 100 * estimates["cheap"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_newest_valid_key_says_what_a_tenant_may_spend(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """For all of its keys; a key without a budget says nothing, and revoking the only one lifts
    nothing."""
    at = (
        f"sqlite:///{tmp_path}/ledger.db"
        if kind == "sqlite"
        else request.getfixturevalue("migrated_url")
    )
    database = open_database(at)
    database.migrate()
    budgets, store = TenantBudgets(database), ApiKeyStore(database)
    budget(database, "shop", 5.0)
    budget(database, "other", None)
    assert budgets.all() == {"shop": 5.0}
    newer = budget(database, "shop", 7.0)
    budget(database, "shop", None)
    budget(database, "shop", 9.0, expires_at=1.0)
    assert (budgets.of("shop"), budgets.of("other"), budgets.of(None)) == (7.0, None, None)
    store.revoke(newer)
    assert budgets.of("shop") == 5.0
    for key in store.list(["shop"]):
        store.revoke(key.key_id)
    assert budgets.of("shop") == 9.0
    job = JobStore(database).create(
        NewJob("a", "a", {"lane": "api", "tenant": "shop"}, {"kind": "file"}, "d", 9)
    )[0]
    OutcomeStore(database, "api").settle([result(job, "1", 700)], [])
    costs, month = TenantCosts(database), month_of(job.created_at)
    assert costs.besides("shop", month, []) == (700, [])
    assert costs.besides("shop", month, ["a", "purged"]) == (0, ["purged"])
    ended(JobStore(database), job)
    assert costs.besides("shop", month, ["a"]) == (700, ["a"])
    database.close()


def test_purging_its_jobs_makes_no_room_in_a_tenants_budget(either: Database) -> None:
    """A tenant may forget its jobs over HTTP, and what they cost is spent: at the door, and for
    jobs that run."""
    jobs, costs = JobStore(either), TenantCosts(either)
    job, other = (
        jobs.create(
            NewJob(name, name, {"lane": "api", "tenant": "shop"}, {"kind": "file"}, "d", 9)
        )[0]
        for name in ("a", "b")
    )
    OutcomeStore(either, "api").settle([result(job, "1", 700), result(other, "1", 40)], [])
    month = month_of(job.created_at)
    for one in (job, other):
        ended(jobs, one)
        assert purge_job(either, one.job_id) == 1
        purge_job(either, one.job_id)
    assert costs.usd_of("shop", month) == 0.00074
    assert costs.besides("shop", month, ["a"]) == (740, ["a"])
    assert (costs.usd_of("else", month), costs.usd_of("shop", month_of(month.began - 1))) == (0, 0)


def test_of_many_jobs_that_end_at_once_none_counts_twice(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only some leave the account in one step; the others are in it and not in the costs beside
    it."""
    monkeypatch.setattr(spending, "BASE_S", 0.0)
    monkeypatch.setattr(spending, "ENDED_MAX", 2)
    seen = TenantAccounts(house.database, house.hot.budgets)
    jobs = [house.submit(1, f"j{nth}", tenant="shop") for nth in range(6)]
    for job in jobs:
        house.outcomes.settle([result(job, "d0", 100)], [])
        seen.look(job, 10**12, 1.0, spent=100)
    for job in jobs[:5]:
        ended(house.jobs, job)
    name = keys.tenant_month("shop", month_of(jobs[0].created_at).name)
    for left in (4, 2, 1):
        assert seen.look(jobs[5], 10**12, 1.0, spent=100).tenant == (USD, 600, 0)
        assert len(house.hot.budgets.jobs_of_tenant(name)[1]) == left


def test_a_paused_job_does_not_hold_what_its_dead_workers_reserved(house: House) -> None:
    """Its tenant's other jobs would wait for it for ever; nor does a call that ends after its job
    count twice."""
    budget(house.database, "shop", 0.01)
    first, second = (house.submit(2, name, tenant="shop") for name in ("first", "second"))
    house.control.tick()
    call, key = MayCost(6_000, owner="dead"), ItemKey(first.job_id, 1, "d0")
    assert house.hot.begin([Begin(key, buckets_for(first), call)])[0].reply is BeginReply.GO
    assert house.jobs.set_state(
        first.job_id, JobState.PAUSED, why=by_hand("by hand"), expect={JobState.RUNNING}
    )
    for _ in range(3):
        house.control.tick()
    account = house.hot.budgets.seen(second.job_id)
    assert account is not None
    assert account.tenant == (10_000, 0, 0)


@pytest.mark.parametrize("lost", ["", ":jobs"])
def test_an_account_that_is_lost_in_part_counts_nothing_twice_and_forgets_nothing(
    house: House, lost: str
) -> None:
    """One of its two hashes may expire or be evicted without the other: the sums are then those of
    what is there."""
    budget(house.database, "shop", 0.01)
    first, second = (house.submit(2, name, tenant="shop") for name in ("first", "second"))
    house.control.tick()
    house.hot.budgets.renew("me")
    call = MayCost(6_000, owner="me")
    assert (
        house.hot.begin([Begin(ItemKey(first.job_id, 1, "d0"), buckets_for(first), call)])[0].reply
        is BeginReply.GO
    )
    name = keys.tenant_month("shop", month_of(first.created_at).name)
    assert house.redis.delete(name + lost) == 1
    for _ in range(3):
        house.control.tick()
    account = house.hot.budgets.seen(second.job_id)
    assert account is not None
    assert account.tenant == (10_000, 6_000, 6_000)
    assert 0 < house.redis.ttl(name) == house.redis.ttl(name + ":jobs")


def test_keys_that_have_ended_make_room_for_others(
    either: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who changes keys each hour is not locked out; the last one that named a budget goes on saying
    it."""
    monkeypatch.setattr(api_keys, "KEYS_MAX", 3)
    store = ApiKeyStore(either)
    first = budget(either, "shop", 5.0)
    store.revoke(first)
    made = [
        store.under_lock(
            lambda keys_now: keys_now.create(NewApiKey("k", "shop", frozenset())), "shop"
        )
        for _ in range(4)
    ]
    assert [key is None for key in made] == [False, False, True, True]
    assert made[1] is not None
    store.revoke(made[1][0])
    assert (
        store.under_lock(
            lambda keys_now: keys_now.create(NewApiKey("k", "shop", frozenset())), "shop"
        )
        is not None
    )
    assert len(store.list(["shop"])) == 3
    assert store.get(made[1][0]) is None
    assert (
        TenantBudgets(either).of("shop")
        == store.under_lock(lambda keys_now: keys_now.budget_usd(), "shop")
        == 5.0
    )


def test_several_requests_at_once_make_no_more_keys_than_a_tenant_may_have(
    either: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted and made in one transaction; the keys of another tenant are not waited for."""
    monkeypatch.setattr(api_keys, "KEYS_MAX", 3)
    store = ApiKeyStore(either)

    def make(number: int) -> bool:
        tenant = "shop" if number % 2 else "else"
        new = NewApiKey("k", tenant, frozenset())
        return store.under_lock(lambda keys_now: keys_now.create(new), tenant) is not None

    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(make, range(16)))
    assert (sum(made), len(store.list(["shop"])), len(store.list(["else"]))) == (6, 3, 3)


def test_a_larger_budget_resumes_what_a_release_before_has_paused_and_no_persons_pause(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of both are alike; who has paused the job is data."""
    # how long jobs without a leader are not looked at
    monkeypatch.setattr(loop, "ASIDE_S", 0.0)
    budget(house.database, "shop", 0.05)
    ours, hers = (house.submit(2, name, tenant="shop") for name in ("ours", "hers"))
    house.control.tick()
    words = "tenant_budget_exhausted: 0.05 USD of the 0.05 that tenant 'shop' may spend on jobs"
    paused_before(house.database, ours.job_id, words)
    assert house.producer.pause(hers.job_id, reason=words)
    house.control.tick()
    assert house.state(ours) is JobState.PAUSED
    budget(house.database, "shop", 1.0)
    for _ in range(3):
        house.control.tick()
    assert (house.state(ours), house.state(hers)) == (JobState.RUNNING, JobState.PAUSED)
