"""The sums of `penstock costs`, and how they are shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock_cli.show.text import aligned
from penstock_producer.reporting.money import is_unpriced
from penstock_producer.reporting.prices import Money, money_of
from penstock_producer.reporting.text import count, one_line

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger import Spending

NO_TENANT, NO_LANE = "(no tenant)", "(no lane)"


class Cost(NamedTuple):
    """Of one tenant or lane."""

    of: Spending
    unpriced: int  # of its jobs: some of what they cost has no known price

    def to_json(self, by: str) -> dict[str, Any]:
        figures = self.of._asdict()
        del figures["cost_microusd"], figures["unpriced"]
        name, money = figures.pop("name"), self.money
        return {
            by: name,
            **figures,
            "cost_usd": money.usd,
            "known_usd": money.known_usd,
            "jobs_without_price": self.unpriced,
        }

    @property
    def money(self) -> Money:
        return money_of(self.of, is_priced=not self.unpriced)


def costs_by(ledger: Books, by: str, since: float) -> list[Cost]:
    """The dearest first.

    A job counts as a whole where it was submitted at `since` (Unix time) or later."""
    from penstock_ledger import Provenance, SpendingStore

    store = SpendingStore(ledger.database)
    tenants = store.tenants(since)
    unpriced = defaultdict[str | None, set[str]](set)
    for job_id, made in Provenance(ledger.database).of_all():
        if job_id in tenants and is_unpriced(made):
            unpriced[tenants[job_id] if by == "tenant" else made.lane].add(job_id)
    found = store.by_tenant(since) if by == "tenant" else store.by_lane(since)
    costs = [Cost(one, len(unpriced[one.name])) for one in found]
    return sorted(costs, key=lambda cost: (-cost.of.cost_microusd, cost.of.name or ""))


def table(costs: Sequence[Cost], by: str) -> list[str]:
    """A line for each, and one of all."""
    header = [by, "jobs", "succeeded", "dead", "calls", "tokens in", "tokens out", "cost"]
    rows = [
        _row(one_line(cost.of.name or (NO_TENANT if by == "tenant" else NO_LANE), 64), cost, by)
        for cost in costs
    ]
    if len(costs) > 1:
        whole = costs[0].of._replace(name=None)
        for cost in costs[1:]:
            whole = whole.plus(cost.of[1:])
        rows.append(_row("together", Cost(whole, sum(cost.unpriced for cost in costs)), by))
    return aligned(header, rows)


def _row(name: str, cost: Cost, by: str) -> list[str]:
    of = cost.of
    jobs = (
        "" if by == "lane" and (of.name is None) else count(of.jobs)
    )  # a job may have run in several lanes
    figures = (of.succeeded, of.dead, of.calls, of.prompt_tokens, of.completion_tokens)
    return [name, jobs, *map(count, figures), cost.money.words]
