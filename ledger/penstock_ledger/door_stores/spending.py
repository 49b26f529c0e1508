"""What the jobs of a time have cost, by tenant or by lane: from the tallies, so no outcome is read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, and_, func, or_, select

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import jobs, lane_tallies, paid_beside, tallies
from penstock_ledger.stores.outcome_rows import DEAD

_PAID: Final = ("calls", "prompt_tokens", "completion_tokens", "cost_microusd")

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

    def plus(self, other: Sequence[int], sign: int = 1) -> Spending:
        return Spending(self.name, *(mine + sign * its for mine, its in zip(self[1:], other, strict=True)))


class SpendingStore:
    """Only reads. ``since``: jobs that were submitted at that Unix time, or later. ``tenants`` None means all; in it None stands
    for jobs without a tenant."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def tenants(self, since: float) -> dict[str, str | None]:
        """The tenant of each job."""
        query = select(jobs.c.job_id, jobs.c.tenant).where(jobs.c.created_at >= since)
        return {row.job_id: row.tenant for row in self._rows(query)}

    def by_tenant(self, since: float, tenants: Tenants = None) -> list[Spending]:
        """Also what was paid besides outcomes: answers that came second, attempts in lanes that jobs have left."""
        chosen = _chosen(since, tenants)
        found = {
            row.tenant: Spending(row.tenant, row.jobs, *_NONE)
            for row in self._rows(
                select(jobs.c.tenant, func.count().label("jobs")).where(*chosen).group_by(jobs.c.tenant)
            )
        }
        for query in (_outcomes(chosen, jobs.c.tenant), _besides(chosen, jobs.c.tenant)):
            for row in self._rows(query):  # a job may have come meanwhile
                before = found.get(row.tenant, Spending(row.tenant, 0, *_NONE))
                found[row.tenant] = before.plus((0, *_figures(row)))
        return list(found.values())

    def by_lane(self, since: float, tenants: Tenants = None) -> list[Spending]:
        """Of a document: the lane that answered it at last. The rest, which has no lane, is last."""
        query = (
            select(
                lane_tallies.c.lane,
                func.count(lane_tallies.c.job_id.distinct()).label("jobs"),
                (func.sum(lane_tallies.c.number) - func.sum(lane_tallies.c.dead)).label("succeeded"),
                func.sum(lane_tallies.c.dead).label("dead"),
                *(func.sum(lane_tallies.c[name]).label(name) for name in _PAID),
            )
            .join(jobs, jobs.c.job_id == lane_tallies.c.job_id)
            .where(*_chosen(since, tenants))
            .group_by(lane_tallies.c.lane)
        )
        found = [Spending(row.lane, int(row.jobs), *_figures(row)) for row in self._rows(query)]
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


_NONE: Final = (0,) * (len(Spending._fields) - 2)


def _chosen(since: float, tenants: Tenants) -> Conditions:
    if tenants is None:
        return [jobs.c.created_at >= since]
    named = jobs.c.tenant.in_([tenant for tenant in tenants if tenant is not None])
    return [jobs.c.created_at >= since, or_(named, jobs.c.tenant.is_(None)) if None in tenants else named]


def _outcomes(chosen: Conditions, of: Any) -> Any:
    """Results that were reused show the tokens of another's call: they count without them."""
    dead = tallies.c.kind == DEAD
    asked = or_(dead, tallies.c.reason == "")
    tokens = {"prompt_tokens", "completion_tokens"}
    paid = {
        name: func.sum(tallies.c[name]).filter(asked) if name in tokens else func.sum(tallies.c[name]) for name in _PAID
    }
    return _of_jobs(
        chosen,
        of,
        tallies,
        {
            "succeeded": func.sum(tallies.c.number).filter(~dead),
            "dead": func.sum(tallies.c.number).filter(dead),
            **paid,
        },
    )


def _besides(chosen: Conditions, of: Any) -> Any:
    paid = {name: func.sum(paid_beside.c[name]) for name in _PAID}
    return _of_jobs(chosen, of, paid_beside, paid)


def _of_jobs(chosen: Conditions, of: Any, table: Any, figures: Mapping[str, Any]) -> Any:
    return (
        select(of, *(figure.label(name) for name, figure in figures.items()))
        .join_from(table, jobs, and_(jobs.c.job_id == table.c.job_id, *chosen))
        .group_by(of)
    )


def _figures(row: Row[Any]) -> tuple[int, ...]:
    """PostgreSQL sums are decimals, and a sum of nothing is NULL; what was paid besides outcomes has no documents."""
    return tuple(int(row._mapping.get(name) or 0) for name in Spending._fields[2:])
