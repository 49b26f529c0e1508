"""The rules of a job have their cost: by route, for answers that go on, and by each of its steps.

Prices that lack are refused before anything is spent, where that of the job's own model is known;
where it is not, as at a server of one's own, no cost is known at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from penstock_ledger.texts import SetSetting, Text
from penstock_producer.accepting.estimates import Estimate
from penstock_producer.accepting.survey import Survey
from penstock_producer.errors import Problem, SpecError
from penstock_producer.job.lanes import packs
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.job.routing import OWN
from penstock_producer.job.spec import JobSpec

__all__ = ["Levers", "check_prices", "estimated_usd", "levers_of"]

Facts = Callable[[str], ProviderFacts]  # of a provider, by its name


class RouteCost(NamedTuple):
    """Documents that take one route, and what they cost; None: no price is known."""

    rule: str
    documents: int
    cost_usd: float | None


class Levers(NamedTuple):
    """The documents of a job by its rules, and their cost."""

    routes: list[RouteCost]
    # of `escalate`: where no answer goes on, and where all do; None without a rule
    escalated_usd: tuple[float | None, float | None] | None
    steps: list[
        tuple[str, float | None]
    ]  # what all documents would cost, asked by it from the first

    def to_json(self) -> dict[str, Any]:
        escalated = self.escalated_usd
        return {
            "routes": [one._asdict() for one in self.routes],
            "escalate": None
            if escalated is None
            else {"cost_usd_none": escalated[0], "cost_usd_all": escalated[1]},
            "degrade": [{"step": step, "cost_usd_all": cost} for step, cost in self.steps],
        }


def check_prices(spec: JobSpec, facts: Facts) -> None:
    """Raise SpecError for a rule whose model has no price, in a job whose own model has one."""
    if not spec.asks_a_provider or _prices(spec, facts) is None:
        return
    problems = [
        Problem(
            "missing_price",
            pointer,
            f"no price of {asked.model} at provider {asked.provider}"
            f"{'' if asked.tier is None else f' in the tier {asked.tier}'} is known here, so that "
            "it would count as free",
            Text("set ", SetSetting(f'providers.{asked.provider}.prices."{asked.model}"')),
        )
        for pointer, asked in spec.asked_by_rules
        if _prices(asked, facts) is None
    ]
    if problems:
        raise SpecError(problems)


def estimated_usd(spec: JobSpec, found: Survey, facts: Facts) -> float | None:
    """Return the estimated cost of all documents in US dollars; None where it is unknown.

    No answer goes on to a better model, and no step is taken: ``levers_of`` has what that costs."""
    if not found.routes:
        return _usd(spec, found.estimate, facts)
    costs = [route.cost_usd for route in _routes(spec, found, facts)]
    return _sum(costs)


def levers_of(spec: JobSpec, found: Survey, facts: Facts) -> Levers:
    """Return the cost by rule."""
    own, escalated = estimated_usd(spec, found, facts), None
    if spec.escalation is not None:
        better = _usd(spec.asked_as(spec.escalation.target), found.estimate, facts)
        escalated = own, _sum([own, better])
    asked = [one for pointer, one in spec.asked_by_rules if pointer.startswith("/degrade")]
    steps = [
        (step.text, _usd(one, found.estimate, facts))
        for step, one in zip(spec.steps, asked, strict=True)
    ]
    return Levers(list(_routes(spec, found, facts)), escalated, steps)


def _routes(spec: JobSpec, found: Survey, facts: Facts) -> Iterator[RouteCost]:
    """Yield the routes in the order of their rules, and last what takes none."""
    asked = {
        rule.number: (rule.text, spec if rule.target is None else spec.asked_as(rule.target))
        for rule in spec.routing.rules
    }
    rest = () if spec.routing.takes_all else (0,)
    for number in (*asked, *rest) if found.routes else ():
        rule, as_asked = asked.get(number, (OWN, spec))
        route = found.routes[number]
        yield RouteCost(rule, route.documents, _usd(as_asked, route.estimate, facts))


def _prices(spec: JobSpec, facts: Facts) -> Any:
    return facts(spec.provider).prices_of(spec.model, tier=spec.tier_in(spec.first_lane))


def _usd(spec: JobSpec, guess: Estimate, facts: Facts) -> float | None:
    """Return the cost by the price of batches where the job can go nowhere else."""
    return guess.usd(_prices(spec, facts), in_batch=all(map(packs, spec.permitted_lanes)))


def _sum(costs: list[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None
