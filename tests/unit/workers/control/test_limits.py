"""When a job is stopped by its deadline, its budget or its tenant's, and when it goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock_ledger import Account, JobSeen, TenantAccount
from penstock_ledger.model import Counts, Job, JobState
from penstock_ledger.reasons import By, Code, Reason, StopCode
from penstock_producer.job.spec import JobSpec
from penstock_workers.control.job import limits as subject
from penstock_workers.control.job.limits import ENDED_S, QUIET_S, TRIED, JobLimits

USD = 1_000_000
SPENT = Reason(Code.BUDGET_EXHAUSTED, By.BUDGET, {})


def a_job(state: JobState = JobState.RUNNING, **changes: Any) -> Job:
    values = {"generation": 1, "total": 10, "created_at": 1_000.0, "finished_at": None} | changes
    return Job("job", "key", {}, {}, "digest", state, None, **values)


def seen(outstanding: int = 0, parked: int = 0) -> JobSeen:
    return JobSeen(True, False, parked, (outstanding,))


class House:
    """The limits, and all that they ask; ``moved`` is what they did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        clock = SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now)
        monkeypatch.setattr(subject, "time", clock)
        self.account = Account(0, 0, None)
        self.tenant_usd: float | None = None
        self.figures = {"succeeded": 2, "dead": 0, "cost_microusd": USD // 2}
        self.done = 2
        self.moved: list[tuple[JobState, Reason | None]] = []
        self.called: list[str] = []
        parts = cast(Any, self)
        self.limits = JobLimits(parts, parts, parts, parts)

    def stop(self, job: Job | None = None, at: JobSeen | None = None, **spec: Any) -> bool:
        return self.limits.stop(job or a_job(), JobSpec.from_json(spec), at or seen())

    # -- what the stores and the accounts say ------------------------------------------------------

    def move(self, _: Job, to: JobState, why: Reason | None) -> bool:
        self.moved.append((to, why))
        return True

    def counts(self, _: str) -> Counts:
        return Counts(self.done, 0, 1, {}, 0, 0, 0, 0)

    def stats(self, _: str) -> dict[str, int]:
        return self.figures

    def look(self, *_: object) -> Account:
        return self.account

    def budget_of_tenant(self, _: Job) -> float | None:
        return self.tenant_usd

    def mend_replays(self, job_id: str) -> None:
        self.called.append(f"mend {job_id}")

    def lift(self, job_id: str, *, some_wait: bool) -> None:
        self.called.append(f"lift {job_id} {some_wait}")

    def tried_again(self, job_id: str) -> None:
        self.called.append(f"tried {job_id}")

    def free_paused(self, _: Job) -> None:
        self.called.append("free")

    def keep_only(self, live: set[str]) -> None:
        self.called.append(f"keep {sorted(live)}")


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    return House(monkeypatch)


def test_a_job_is_cancelled_once_its_deadline_is_past(house: House) -> None:
    """Not a moment before."""
    house.now += 60
    assert not house.stop(deadline_s=60)
    house.now += 0.1
    assert house.stop(deadline_s=60)
    late = Reason(Code.DEADLINE_EXCEEDED, By.CONTROL, {"deadline_s": 60})
    assert house.moved == [(JobState.CANCELLING, late)]


def test_a_replay_is_in_its_account_before_its_limits_are_looked_at(house: House) -> None:
    """Once for each new generation."""
    house.stop()
    assert house.called == ["lift job False"]
    for _ in range(2):
        house.stop(a_job(generation=2))
    assert house.called[1:] == ["mend job", "lift job False", "lift job False"]


def test_a_spent_budget_pauses_a_job_and_says_what_finishing_it_costs(house: House) -> None:
    """What was spent, what is left to do at the mean so far, and what the next call may cost."""
    house.account = Account(1 * USD, 0, 30_000)
    assert house.stop(budget_usd=1.0)
    [(state, why)] = house.moved
    assert state is JobState.PAUSED
    assert why is not None
    told = {name: why.params[name] for name in ("budget_usd", "spent_usd", "left", "next_usd")}
    assert told == {"budget_usd": 1.0, "spent_usd": 1.0, "left": 7, "next_usd": 0.03}
    assert why.params["more_usd"] == 7 * 0.25


def test_a_budget_that_is_spent_to_the_last_waits_for_nothing(house: House) -> None:
    """Whatever is under way has been paid for by then."""
    house.account = Account(1 * USD, 0, None)
    assert house.stop(budget_usd=1.0, at=seen(outstanding=3))


def test_a_tenants_budget_pauses_where_it_is_the_tighter_one(house: House) -> None:
    """The reason names the tenant's money, and not the job's."""
    house.tenant_usd = 5.0
    house.account = Account(1 * USD, 0, 30_000, TenantAccount(5 * USD, 5 * USD, 0))
    assert house.stop(budget_usd=2.0)
    house.account = Account(2 * USD, 0, None, TenantAccount(5 * USD, 2 * USD, 0))
    assert house.stop(budget_usd=2.0)
    told = [
        (why.code, *(why.params[name] for name in ("budget_usd", "spent_usd", "next_usd")))
        for _, why in house.moved
        if why is not None
    ]
    assert told == [
        (Code.TENANT_BUDGET_EXHAUSTED, 5.0, 5.0, 0.03),
        (Code.BUDGET_EXHAUSTED, 2.0, 2.0, 0.0),
    ]


def test_a_job_with_all_its_outcomes_is_not_paused(house: House) -> None:
    """However little its budget leaves: nothing is left to pay for, and its feed reaches its
    end."""
    house.account, house.done = Account(1 * USD, 0, None), 9
    assert not house.stop(budget_usd=1.0)
    assert house.moved == []
    assert house.limits.within_budget(a_job(), 5) == 5


def test_a_budget_that_calls_under_way_still_hold_is_waited_for(house: House) -> None:
    """They may cost less than was reserved; nothing is fed meanwhile."""
    house.account = Account(USD - 10, 10, 20)
    at = seen(outstanding=3, parked=3)
    for _ in range(2):
        assert not house.stop(budget_usd=1.0, at=at)
        house.now += 2 * QUIET_S
    assert house.limits.within_budget(a_job(), 5) == 0


def test_documents_elsewhere_in_the_queue_are_waited_for_some_seconds(house: House) -> None:
    """Where the rest pays for none that was tried and nothing is under way; a job of which all
    wait is paused at once."""
    house.account = Account(USD - 10, 0, 20)
    assert not house.stop(budget_usd=1.0, at=seen(3, parked=1))
    house.now += QUIET_S
    assert not house.stop(budget_usd=1.0, at=seen(3, parked=1))
    for meanwhile in (Account(USD - 10, 10, 20), Account(USD - 30, 0, 20)):
        house.account = meanwhile
        assert not house.stop(budget_usd=1.0, at=seen(3, parked=1))
        house.account = Account(USD - 10, 0, 20)
        house.now += 1
        assert not house.stop(budget_usd=1.0, at=seen(3, parked=1)), "the wait begins anew"
        house.now += QUIET_S - 1
    house.now += 2
    assert house.stop(budget_usd=1.0, at=seen(3, parked=1))
    assert house.stop(budget_usd=1.0, at=seen(3, parked=3))


def test_room_for_the_least_that_was_refused_is_room(house: House) -> None:
    """To the last millionth: what waits is tried again, about as much as there is room for."""
    house.account = Account(USD - 20, 0, 20)
    assert not house.stop(budget_usd=1.0, at=seen(3, parked=3))
    assert house.limits.to_unpark(a_job(), 3, 100) == 3
    assert "tried job" in house.called


def test_where_there_is_no_room_a_few_others_are_tried(house: House) -> None:
    """They may cost less than what was refused; once none is left untried, none goes back while
    calls are under way."""
    house.account = Account(USD - 150, 50, 50)
    house.stop(budget_usd=1.0, at=seen(40, parked=40))
    went = house.limits.to_unpark(a_job(), 40, 100)
    house.account = Account(USD - 100, 90, 50)
    house.stop(budget_usd=1.0, at=seen(40, parked=40))
    rest = [house.limits.to_unpark(a_job(), 40, 100) for _ in range(5)]
    assert went == 4
    assert rest == [TRIED, TRIED, TRIED, 40 - went - 3 * TRIED, 0]


def test_a_job_without_a_budget_takes_all_that_is_asked_for(house: House) -> None:
    """In the feed and out of its waiting line."""
    house.stop()
    assert house.limits.within_budget(a_job(), 7) == 7
    assert house.limits.to_unpark(a_job(), 3, 100) == 100


@pytest.mark.parametrize("why", [SPENT, Reason(StopCode.DEAD, By.STOP_LOSS, {})])
def test_a_paused_job_whose_last_outcomes_came_goes_on(house: House, why: Reason) -> None:
    """It is looked at every few seconds, so that it ends."""
    paused = a_job(JobState.PAUSED, why=why)
    assert not house.limits.go_on_if_done(paused)
    house.done = 9
    house.now += ENDED_S - 0.1
    assert not house.limits.go_on_if_done(paused)
    house.now += 0.1
    assert house.limits.go_on_if_done(paused)
    assert house.moved == [(JobState.RUNNING, None)]


def test_a_pause_of_another_kind_is_no_business_of_limits(house: House) -> None:
    """A person's pause ends by a person."""
    house.done = 9
    paused = a_job(JobState.PAUSED, why=Reason(Code.BY_HAND, By.PERSON, {}))
    assert not house.limits.go_on_if_done(paused)
    assert not house.limits.go_on_if_raised(paused)
    assert house.moved == []


@pytest.mark.parametrize(("now_usd", "goes_on"), [(5.0, False), (5.1, True), (None, True)])
def test_a_job_goes_on_once_its_tenant_may_spend_more(
    house: House, now_usd: float | None, goes_on: bool
) -> None:
    """More than when it was paused, or without bounds."""
    house.tenant_usd = now_usd
    why = Reason(Code.TENANT_BUDGET_EXHAUSTED, By.BUDGET, {"budget_usd": 5.0})
    assert house.limits.go_on_if_raised(a_job(JobState.PAUSED, why=why)) is goes_on
    assert house.called == ["free"]


def test_what_is_known_of_a_job_goes_with_it(house: House) -> None:
    """Its account, too."""
    house.account = Account(0, 0, None)
    house.stop(budget_usd=1.0)
    house.limits.keep_only(set())
    assert house.called == ["keep []"]
    assert house.limits.within_budget(a_job(), 1_000) == 1_000
