"""Spending is summed by tenant or by lane in a time, and by tenant in a calendar month.

Their accounts say it, so no outcome is read. Those that were purged since are in the sums of money,
calls and tokens, and not among the jobs. The sums of a month are what Redis gets.
"""

from __future__ import annotations

import datetime
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import redis
from sqlalchemy import ColumnElement, Connection, Row, Table, and_, func, or_, select, union

from penstock_ledger import keys
from penstock_ledger.door_stores.api_keys import budget_of_keys
from penstock_ledger.in_redis.budget_book import ENDED_MAX, Account, BudgetBook, TenantSeen
from penstock_ledger.model import RULE, Job, JobState, Paid, Saving
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import (
    api_keys,
    batch_remainders,
    jobs,
    lane_tallies,
    paid_beside,
    purged_costs,
    savings,
    spending,
    tallies,
)
from penstock_ledger.stores.account import cost_of_jobs, cost_of_tenant, sums_of_savings
from penstock_ledger.stores.outcome_rows import DEAD

__all__ = [
    "Conditions",
    "Month",
    "Spending",
    "SpendingStore",
    "TenantAccounts",
    "TenantBudgets",
    "TenantCosts",
    "Tenants",
    "month_of",
    "tenant_of_job",
]


class Month(NamedTuple):
    name: str  # as 2026-11
    began: float  # Unix seconds
    ends: float  # the first moment that is not in it


def month_of(now: float) -> Month:
    """Return the calendar month in UTC that a moment (Unix seconds) lies in."""
    day = datetime.datetime.fromtimestamp(now, datetime.UTC)
    first = day.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = (first + datetime.timedelta(days=32)).replace(day=1)
    return Month(f"{first:%Y-%m}", first.timestamp(), after.timestamp())


MICRO: Final = 1_000_000
CHUNK: Final = 500  # job ids in one query


class TenantBudgets:
    """US dollars that a tenant's jobs of a month may cost.

    The newest valid key of the tenant that names a budget says so, for all of its keys; where none
    is valid any more, the last one that was made does."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def of(self, tenant: str | None) -> float | None:
        """Return the budget of a tenant; None for one without a budget."""
        return None if tenant is None else self._read(api_keys.c.tenant == tenant).get(tenant)

    def all(self) -> dict[str, float]:
        """Return the budget of every tenant that has one."""
        return self._read(api_keys.c.tenant.is_not(None))

    def _read(self, which: ColumnElement[bool]) -> dict[str, float]:
        return self._db.read(lambda connection: budget_of_keys(connection, which))


class TenantCosts:
    def __init__(self, db: Database) -> None:
        self._db = db

    def usd_of(self, tenant: str, month: Month) -> float:
        """Return what jobs that were accepted in this month have cost, purged ones included."""
        return self._db.read(lambda connection: _all(connection, tenant, month)) / MICRO

    def besides(
        self, tenant: str, month: Month, known: Collection[str], *, most: int | None = None
    ) -> tuple[int, list[str]]:
        """Return those of ``known`` (job ids) that have ended, or were purged, ``most`` at a time.

        And what the jobs of the month have cost, in millionths of a dollar, without the others of
        ``known``. Never less than it was when it was asked for."""

        def look(connection: Connection) -> tuple[int, list[str]]:
            names = sorted(known)
            live = frozenset[str]().union(*(_live(connection, chunk) for chunk in _chunks(names)))
            ended = [name for name in names if name not in live][:most]
            others = sorted(set(names) - set(ended))
            cost = sum(cost_of_jobs(connection, chunk) for chunk in _chunks(others))
            return _all(connection, tenant, month) - cost, ended

        return self._db.read(look)


def _all(connection: Connection, tenant: str, month: Month) -> int:
    purged = select(func.coalesce(func.sum(purged_costs.c.cost_microusd), 0)).where(
        purged_costs.c.tenant == tenant, purged_costs.c.month == month.name
    )
    known = cost_of_tenant(connection, tenant, month.began, month.ends)
    # What a process of the release before purges meanwhile counts twice, and never not.
    return known + int(connection.execute(purged).scalar_one())


def _live(connection: Connection, names: Collection[str]) -> frozenset[str]:
    """Return those of these jobs that have not ended."""
    ended = [state for state in JobState if state.final]
    query = select(jobs.c.job_id).where(jobs.c.job_id.in_(names), jobs.c.state.not_in(ended))
    return frozenset(connection.execute(query).scalars())


def _chunks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + CHUNK] for start in range(0, len(names), CHUNK))


BUDGETS_S: Final = 5.0  # for which the budgets of tenants are remembered
# after which the costs of a tenant's other jobs are read again: purges, and corrections by hand
BASE_S: Final = 30.0
TRIES: Final = 5  # other processes may bring a job of the same tenant meanwhile


class TenantAccounts:
    """Blocks. Of one thread, or of several: what is remembered may then be read once too often."""

    def __init__(self, db: Database, book: BudgetBook) -> None:
        self._budgets, self._costs, self._book = TenantBudgets(db), TenantCosts(db), book
        self._known: dict[str, float] = {}
        self._known_until = 0.0  # monotonic
        # monotonic times of the latest looks into SQL, by account
        self._read_at: dict[str, float] = {}

    def budget_of(self, job: Job) -> float | None:
        """Return US dollars that the job's tenant may spend in a month; None for no bound."""
        tenant = tenant_of_job(job)
        if tenant is None:
            return None
        now = time.monotonic()
        if now >= self._known_until:
            self._known, self._known_until = self._budgets.all(), now + BUDGETS_S
            # what may be read again is as good as forgotten: months end, and tenants go
            known = list(self._read_at.items())  # another thread may add one
            self._read_at = {name: read_at for name, read_at in known if now - read_at < BASE_S}
        return self._known.get(tenant)

    def look(
        self,
        job: Job,
        budget: int,
        tenant_usd: float,
        *,
        spent: int | None = None,
        batches: Mapping[str, int] | None = None,
    ) -> Account:
        """Do ``BudgetBook.look`` at a job whose tenant has a budget in the month of the job.

        That is ``tenant_usd``. Raises redis.RedisError."""
        tenant, month = tenant_of_job(job), month_of(job.created_at)
        assert tenant is not None, "only tenants have budgets"
        name, now = keys.tenant_month(tenant, month.name), time.monotonic()
        seen: TenantSeen | None = None
        for attempt in range(TRIES):
            if attempt or now - self._read_at.get(name, -BASE_S) >= BASE_S:
                seen = self._seen(job, tenant, month, name)
                self._read_at[name] = now
            account = self._book.look_with_tenant(
                job.job_id,
                budget,
                (name, round(tenant_usd * MICRO)),
                seen,
                spent=spent,
                batches=batches,
            )
            if account is not None:
                return account
        raise redis.ConnectionError(
            f"the account of a tenant changes faster than it is read: {name}"
        )

    def _seen(self, job: Job, tenant: str, month: Month, name: str) -> TenantSeen:
        turn, known = self._book.jobs_of_tenant(name)
        base, ended = self._costs.besides(tenant, month, known | {job.job_id}, most=ENDED_MAX)
        return TenantSeen(turn, base, [one for one in ended if one != job.job_id])


def tenant_of_job(job: Job) -> str | None:
    tenant = job.spec.get("tenant")
    return None if tenant is None else str(tenant)


_PAID: Final = Paid._fields

Tenants = Collection[str | None] | None
Conditions = Sequence[ColumnElement[bool]]


class Spending(NamedTuple):
    """Of one tenant, or of one lane."""

    name: str | None  # None: jobs without a tenant; what no lane is noted of
    jobs: int
    succeeded: int
    dead: int
    calls: int
    prompt_tokens: int  # of calls that were made, as the next two
    completion_tokens: int
    cost_microusd: int
    unpriced: int = 0  # answers of which no price is known

    def plus(self, other: Sequence[int], sign: int = 1) -> Spending:
        return Spending(
            self.name, *(mine + sign * its for mine, its in zip(self[1:], other, strict=True))
        )


class SpendingStore:
    """Only reads.

    ``since``: jobs that were submitted at that Unix time, or later. ``tenants`` None means all; in
    it None stands for jobs without a tenant."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def tenants(self, since: float) -> dict[str, str | None]:
        """Return the tenant of each job."""
        query = select(jobs.c.job_id, jobs.c.tenant).where(jobs.c.created_at >= since)
        return {row.job_id: row.tenant for row in self._db.rows(query)}

    def by_tenant(self, since: float, tenants: Tenants = None) -> list[Spending]:
        """Return what whole accounts hold, whatever became of the documents."""
        chosen = _chosen(since, tenants)
        found = {
            row.tenant: Spending(row.tenant, row.jobs, *_NONE)
            for row in self._db.rows(
                select(jobs.c.tenant, func.count().label("jobs"))
                .where(*chosen)
                .group_by(jobs.c.tenant)
            )
        }
        parts = [
            _outcomes(chosen),
            *(_besides(table, chosen) for table in (paid_beside, batch_remainders)),
        ]
        parts += [_kept(since, tenants), _purged_before(since, tenants)]
        for query in parts:
            for row in self._db.rows(query):  # a job may have come meanwhile
                before = found.get(row.tenant, Spending(row.tenant, 0, *_NONE))
                found[row.tenant] = before.plus((0, *_figures(row)))
        return list(found.values())

    def by_lane(self, since: float, tenants: Tenants = None) -> list[Spending]:
        """Return what each lane answered and cost.

        A document belongs to the lane that answered it at last; money to the lane that was paid.

        The rest, of which no lane is known, is last.
        """
        query = (
            select(
                lane_tallies.c.lane,
                func.count(lane_tallies.c.job_id.distinct()).label("jobs"),
                (func.sum(lane_tallies.c.number) - func.sum(lane_tallies.c.dead)).label(
                    "succeeded"
                ),
                func.sum(lane_tallies.c.dead).label("dead"),
                *(func.sum(lane_tallies.c[name]).label(name) for name in _PAID),
            )
            .join(jobs, jobs.c.job_id == lane_tallies.c.job_id)
            .where(*_chosen(since, tenants))
            .group_by(lane_tallies.c.lane)
        )
        lanes = {
            row.lane: Spending(row.lane, int(row.jobs), *_figures(row))
            for row in self._db.rows(query)
        }
        kept = _kept(since, tenants, spending.c.lane).where(spending.c.lane != "")
        for row in self._db.rows(kept):
            lanes[row.lane] = lanes.get(row.lane, Spending(row.lane, 0, *_NONE)).plus(
                (0, *_figures(row))
            )
        found = list(lanes.values())
        rest = Spending(None, 0, *_NONE)
        for one in self.by_tenant(since, tenants):
            rest = rest.plus((0, *one[2:]))
        for one in found:
            rest = rest.plus((0, *one[2:]), -1)
        return [*found, rest] if any(rest[1:]) else found

    def savings(
        self, since: float, tenants: Tenants = None, *, by_lane: bool = False
    ) -> dict[str | None, list[Saving]]:
        """Return what answers saved, by tenant or by the lane that was paid; purged jobs as well.

        None: jobs without a tenant; what no lane is noted of."""
        accepted = [
            select(table.c.job_id, table.c.tenant).where(
                *_chosen(since, tenants, at, table.c.tenant)
            )
            for table, at in ((jobs, jobs.c.created_at), (spending, spending.c.accepted_at))
        ]
        whose = union(*accepted).subquery()
        of = savings.c.lane if by_lane else whose.c.tenant
        query = (
            select(of, savings.c.cause, *sums_of_savings())
            .join_from(savings, whose, whose.c.job_id == savings.c.job_id)
            # what answers cost by rules is in their cost, and is no saving
            .where(~savings.c.cause.startswith(RULE))
            .group_by(of, savings.c.cause)
            .order_by(savings.c.cause)
        )
        found = defaultdict[str | None, list[Saving]](list)
        for name, cause, *figures in self._db.rows(query):
            found[name or None].append(Saving(cause, *map(int, figures)))
        return dict(found)


LAST_YEAR: Final = 253_000_000_000.0  # Unix seconds: the last that calendars know
_NONE: Final = (0,) * (len(Spending._fields) - 2)


def _chosen(
    since: float, tenants: Tenants, accepted: Any = jobs.c.created_at, tenant: Any = jobs.c.tenant
) -> Conditions:
    return [accepted >= since, *_of_tenants(tenants, tenant)]


def _of_tenants(tenants: Tenants, tenant: Any) -> Conditions:
    if tenants is None:
        return []
    named = tenant.in_([one for one in tenants if one is not None])
    return [or_(named, tenant.is_(None)) if None in tenants else named]


def _outcomes(chosen: Conditions) -> Any:
    """Return the query of outcomes.

    Results that were reused show the tokens of another's call: they count without them.
    """
    dead = tallies.c.kind == DEAD
    asked = or_(dead, tallies.c.reason == "")
    tokens = {"prompt_tokens", "completion_tokens"}
    paid = {
        name: func.sum(tallies.c[name]).filter(asked)
        if name in tokens
        else func.sum(tallies.c[name])
        for name in _PAID
    }
    succeeded, died = (func.sum(tallies.c.number).filter(which) for which in (~dead, dead))
    return _of_jobs(chosen, tallies, {"succeeded": succeeded, "dead": died, **paid})


def _besides(table: Table, chosen: Conditions) -> Any:
    return _of_jobs(chosen, table, {name: func.sum(table.c[name]) for name in _PAID})


def _of_jobs(chosen: Conditions, table: Table, figures: Mapping[str, Any]) -> Any:
    return (
        select(jobs.c.tenant, *(figure.label(name) for name, figure in figures.items()))
        .join_from(table, jobs, and_(jobs.c.job_id == table.c.job_id, *chosen))
        .group_by(jobs.c.tenant)
    )


def _kept(since: float, tenants: Tenants, of: Any = spending.c.tenant) -> Any:
    """Return what is in accounts besides what goes with its job."""
    sums = (func.sum(spending.c[name]).label(name) for name in _PAID)
    return (
        select(of, *sums)
        .where(*_chosen(since, tenants, spending.c.accepted_at, spending.c.tenant))
        .group_by(of)
    )


def _purged_before(since: float, tenants: Tenants) -> Any:
    """Return what releases before have kept of purged jobs.

    That is money alone, by the month in which they were accepted."""
    cost = func.sum(purged_costs.c.cost_microusd).label("cost_microusd")
    first = month_of(min(since, LAST_YEAR)).name if since > 0 else ""
    chosen = [purged_costs.c.month > first, *_of_tenants(tenants, purged_costs.c.tenant)]
    return select(purged_costs.c.tenant, cost).where(*chosen).group_by(purged_costs.c.tenant)


def _figures(row: Row[Any]) -> tuple[int, ...]:
    """Return the figures of a row as integers.

    PostgreSQL sums are decimals, and a sum of nothing is NULL.

    What was paid besides outcomes has no documents.
    """
    return tuple(int(row._mapping.get(name) or 0) for name in Spending._fields[2:])
