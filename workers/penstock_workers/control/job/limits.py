"""Stops jobs at their deadline or budget."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final, NamedTuple

from penstock_ledger import (
    Account,
    JobSeen,
    OutcomeStore,
    RedisLedger,
    TenantAccount,
    month_of,
    tenant_of_job,
)
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import By, Code, Reason
from penstock_producer.job.lanes import packs
from penstock_producer.job.spec import JobSpec
from penstock_producer.prices import (
    is_budget_spent,
    spent_budget,
    spent_tenant_budget,
)
from penstock_workers.control.job.accounts import MICROUSD, Accounts, affordable, mean_cost
from penstock_workers.control.job.job_states import JobStates
from penstock_workers.control.job.recover import stats_from

QUIET_S: Final = 10.0
"""With nothing under way and a document that the rest does not pay for, others in the queue are
waited for so long."""
ENDED_S: Final = 5.0
"""Between two looks whether a job that is paused by its budget or its stop-loss has all its
outcomes by now."""
RETURNED: Final = 2
"""So many times the documents that the room pays for go back to the queue: while they are there,
other calls end."""
TRIED: Final = 10
"""With no room for the least that was refused, so many others go back in a round: those not tried
since may cost less."""


class _Bound(NamedTuple):
    """The rest of a budget, the job's own or its tenant's, in millionths of a dollar."""

    left: int  # that is not spent
    reserved: int  # of that, by what is under way

    @property
    def room(self) -> int:
        return self.left - self.reserved


class _Look(NamedTuple):
    """The calls that the budgets of a job allow in this round."""

    documents: int  # that may be fed
    lacking: int | None  # the least that was refused, see Account
    bound: _Bound  # with the least room

    @property
    def fits(self) -> bool:
        """Return whether there is room for some of what was refused."""
        return self.lacking is None or self.lacking <= self.bound.room


class JobLimits:
    """Holds jobs to their deadline and their budgets, on the control thread."""

    def __init__(
        self, outcomes: OutcomeStore, hot: RedisLedger, states: JobStates, accounts: Accounts
    ) -> None:
        self._outcomes = outcomes
        self._hot = hot
        self._states = states
        self._accounts = accounts
        # generations of jobs up to which replays are in their accounts
        self._mended: dict[str, int] = {}
        self._looks: dict[str, _Look] = {}  # of jobs with a budget
        # messages that wait since the others of their job went back to the queue
        self._untried: dict[str, int] = {}
        self._least: dict[str, int] = {}  # what a document that waits is taken to cost at least
        self._quiet_since: dict[str, float] = {}  # monotonic
        # monotonic times of the latest looks at paused jobs that may have all their outcomes
        self._ended_at: dict[str, float] = {}

    def stop(self, job: Job, spec: JobSpec, seen: JobSeen) -> bool:
        """Return whether the job is past a limit, and therefore stopped in this round."""
        if job.generation > self._mended.get(job.job_id, 1):
            self._outcomes.mend_replays(job.job_id)
            self._mended[job.job_id] = job.generation
            # it had ended when Redis lost its data, so that nothing of it was rebuilt
            if not self._hot.stats(job.job_id):
                known = stats_from(self._outcomes.counts(job.job_id), {})
                self._hot.reset_stats(job.job_id, known)
        if spec.deadline_s is not None and time.time() > job.created_at + spec.deadline_s:
            late = {"deadline_s": spec.deadline_s}
            reason = Reason(Code.DEADLINE_EXCEEDED, By.CONTROL, late)
            return self._states.move(job, JobState.CANCELLING, reason)
        tenant_usd = self._accounts.budget_of_tenant(job)
        if spec.budget_usd is None and tenant_usd is None:
            self._looks.pop(job.job_id, None)
            self._accounts.lift(job.job_id, some_wait=seen.parked > 0)
            return False
        return self._stop_at_budget(job, spec.budget_usd, tenant_usd, seen)

    def within_budget(self, job: Job, documents: int) -> int:
        """Return how many of so many documents the budget pays for.

        Several feeds of one job share that number, so it is taken off what is left."""
        look = self._looks.get(job.job_id)
        if look is None:
            return documents
        documents = min(documents, look.documents)
        self._looks[job.job_id] = look._replace(documents=look.documents - documents)
        return documents

    def give_back(self, job: Job, documents: int) -> None:
        """Put so many back of what ``within_budget`` has returned: they were not fed."""
        look = self._looks.get(job.job_id)
        if look is not None:
            self._looks[job.job_id] = look._replace(documents=look.documents + documents)

    def to_unpark(self, job: Job, parked: int, most: int) -> int:
        """Return how many of the messages that wait outside the queue go back to it.

        They are about as many as the budget has room for."""
        look, name = self._looks.get(job.job_id), job.job_id
        if look is None:
            return most
        left = self._untried.pop(name, 0)
        if look.fits:
            self._accounts.tried_again(name)
            left = min(parked, most)
            least = look.lacking or self._least.pop(name, 0) // 2  # what went back last found room
            number = max(1, RETURNED * look.bound.room // least) if least else most
            self._least[name] = least
        else:
            number = min(left, TRIED)
        # no call will leave more room than there is: see which of all finds some
        if not look.bound.reserved:
            number = max(number, left)
        number = min(number, most)
        self._untried[name] = max(0, left - number)
        return number

    def go_on_if_done(self, job: Job) -> bool:
        """Let a job end that its budget or its stop-loss has paused, once it has all its outcomes.

        What was under way when it was paused may have brought the last ones."""
        now = time.monotonic()
        is_stop_loss = job.pause is not None and job.pause.by is By.STOP_LOSS
        if (
            not (is_budget_spent(job.pause) or is_stop_loss)
            or now - self._ended_at.get(job.job_id, -ENDED_S) < ENDED_S
        ):
            return False
        self._ended_at[job.job_id] = now
        return self._has_all(job) and self._states.move(job, JobState.RUNNING, None)

    def go_on_if_raised(self, job: Job) -> bool:
        """Let a job go on that its tenant's budget has paused, once that is a larger one."""
        self._accounts.free_paused(job)
        if job.pause is None or job.pause.code != Code.TENANT_BUDGET_EXHAUSTED:
            return False
        before = job.pause.number("budget_usd") or 0.0
        now = self._accounts.budget_of_tenant(job)
        return (now is None or now > before) and self._states.move(job, JobState.RUNNING, None)

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._accounts.keep_only(live)
        for held in (
            self._mended,
            self._looks,
            self._untried,
            self._least,
            self._quiet_since,
            self._ended_at,
        ):
            for job_id in held.keys() - set(live):
                del held[job_id]

    def _stop_at_budget(
        self, job: Job, budget_usd: float | None, tenant_usd: float | None, seen: JobSeen
    ) -> bool:
        """Note what the budgets still pay for, and pause the job when that is nothing.

        A job that has all its outcomes is not paused."""
        account, stats = (
            self._accounts.look(job, budget_usd, tenant_usd),
            self._hot.stats(job.job_id),
        )
        under_way = sum(seen.outstanding)
        bounds = [_bound_of(account, budget_usd), _bound_of_tenant(account.tenant)]
        tightest = min(
            (bound for bound in bounds if bound is not None), key=lambda bound: bound.room
        )
        left = min(bound.left for bound in bounds if bound is not None)
        documents = affordable(left / MICROUSD, stats, under_way)
        look = self._looks[job.job_id] = _Look(documents, account.lacking, tightest)
        if left > 0 and not self._is_at_end(job, look, seen):
            return False
        if self._has_all(job):  # no document is left to pay for: the feed reaches its end
            self._looks.pop(job.job_id)
            return False
        mean = mean_cost(stats)
        if account.tenant is not None and tightest is bounds[1]:
            return self._states.move(
                job, JobState.PAUSED, self._why_tenant(job, account.tenant, account.lacking, mean)
            )
        assert budget_usd is not None, "a budget that is not the tenant's is the job's own"
        return self._states.move(job, JobState.PAUSED, self._why(job, budget_usd, account, mean))

    def _is_at_end(self, job: Job, look: _Look, seen: JobSeen) -> bool:
        """Return whether the rest of a budget pays for nothing and can no longer grow.

        It can grow as long as a call is under way that may cost less than was reserved for it."""
        under_way = sum(seen.outstanding)
        if look.bound.reserved:
            self._quiet_since.pop(job.job_id, None)
            return False
        if not under_way:
            # of batches their worker knows what the next one may cost
            return look.documents == 0 and not packs(job.lane)
        if look.fits or self._untried.get(job.job_id):
            self._quiet_since.pop(job.job_id, None)
            return False
        since = self._quiet_since.setdefault(job.job_id, time.monotonic())
        return seen.parked >= under_way or time.monotonic() - since > QUIET_S

    def _has_all(self, job: Job) -> bool:
        counts = self._outcomes.counts(job.job_id)
        return counts.succeeded + counts.dead == job.total

    def _why(self, job: Job, budget_usd: float, account: Account, mean_usd: float | None) -> Reason:
        return spent_budget(
            budget_usd=budget_usd,
            spent_usd=account.spent / MICROUSD,
            left=self._left(job),
            mean_usd=mean_usd,
            next_usd=(account.lacking or 0) / MICROUSD,
        )

    def _why_tenant(
        self, job: Job, account: TenantAccount, lacking: int | None, mean_usd: float | None
    ) -> Reason:
        return spent_tenant_budget(
            str(tenant_of_job(job)),
            month_of(job.created_at).name,
            budget_usd=account.budget / MICROUSD,
            spent_usd=account.spent / MICROUSD,
            left=self._left(job),
            mean_usd=mean_usd,
            next_usd=(lacking or 0) / MICROUSD,
        )

    def _left(self, job: Job) -> int | None:
        """Return how many documents have no outcome; None where their number is not known yet."""
        counts = self._outcomes.counts(job.job_id)
        return None if job.total is None else max(0, job.total - counts.succeeded - counts.dead)


def _bound_of(account: Account, budget_usd: float | None) -> _Bound | None:
    return (
        None
        if budget_usd is None
        else _Bound(round(budget_usd * MICROUSD) - account.spent, account.reserved)
    )


def _bound_of_tenant(account: TenantAccount | None) -> _Bound | None:
    return None if account is None else _Bound(account.budget - account.spent, account.reserved)
