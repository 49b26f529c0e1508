"""What the jobs of a time have spent, by tenant or by lane.

Their accounts say it, so no outcome is read.

Those that were purged since are in the sums of money, calls and tokens, and not among the jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Table, and_, func, or_, select

from penstock_ledger.door_stores.tenant_costs import month_of
from penstock_ledger.model import Paid
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import (
    batch_remainders,
    jobs,
    lane_tallies,
    paid_beside,
    purged_costs,
    spending,
    tallies,
)
from penstock_ledger.stores.outcome_rows import DEAD

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
        return {row.job_id: row.tenant for row in self._rows(query)}

    def by_tenant(self, since: float, tenants: Tenants = None) -> list[Spending]:
        """Return what whole accounts hold, whatever became of the documents."""
        chosen = _chosen(since, tenants)
        found = {
            row.tenant: Spending(row.tenant, row.jobs, *_NONE)
            for row in self._rows(
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
            for row in self._rows(query):  # a job may have come meanwhile
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
            row.lane: Spending(row.lane, int(row.jobs), *_figures(row)) for row in self._rows(query)
        }
        for row in self._rows(_kept(since, tenants, spending.c.lane).where(spending.c.lane != "")):
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

    def _rows(self, query: Any) -> Iterator[Row[Any]]:
        def fetch(connection: Connection) -> Sequence[Row[Any]]:
            return connection.execute(query).all()

        return iter(self._db.read(fetch))


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
