"""The rules of a job have their cost: by route, for answers that go on, and by each of its steps.

Prices that lack are refused before anything is spent, where that of the job's own model is known;
where it is not, as at a server of one's own, no cost is known at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from penstock_ledger.texts import SetOption, SetSetting, Text
from penstock_producer.accepting.estimates import Estimate
from penstock_producer.accepting.prompt_caching import CacheUse, cache_use
from penstock_producer.accepting.survey import Survey
from penstock_producer.errors import Problem, SpecError
from penstock_producer.job.lanes import DEFAULT_LANE, LANES, can_answer, has_own_model, packs
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.job.routing import OWN
from penstock_producer.job.spec import JobSpec
from penstock_producer.job.tiers import FLEX

__all__ = [
    "GoneOn",
    "Levers",
    "check_batches",
    "check_prices",
    "estimated_usd",
    "factors_of",
    "levers_of",
]

Facts = Callable[[str], ProviderFacts]  # of a provider, by its name


class RouteCost(NamedTuple):
    """Documents that take one route, and what they cost; None: no price is known."""

    rule: str
    documents: int
    cost_usd: float | None


class GoneOn(NamedTuple):
    """The documents of an earlier job whose answers went on to the better model."""

    job_key: str
    documents: int  # that have ended, one at least
    went_on: int

    @property
    def share(self) -> float:
        return min(1.0, self.went_on / self.documents)


class Levers(NamedTuple):
    """The documents of a job by its rules, and their cost."""

    routes: list[RouteCost]
    # of `escalate`: where no answer goes on, and where all do; None without a rule
    escalated_usd: tuple[float | None, float | None] | None
    steps: list[
        tuple[str, float | None]
    ]  # what all documents would cost, asked by it from the first
    gone_on: GoneOn | None = None  # where an earlier job says how many answers go on

    @property
    def expected_usd(self) -> float | None:
        """Return the cost where as many answers go on as before; None where that is not known."""
        none, every = self.escalated_usd or (None, None)
        if self.gone_on is None or none is None or every is None:
            return None
        return none + (every - none) * self.gone_on.share

    def to_json(self) -> dict[str, Any]:
        escalated, before = self.escalated_usd, self.gone_on
        return {
            "routes": [one._asdict() for one in self.routes],
            "escalate": None
            if escalated is None
            else {
                "cost_usd_none": escalated[0],
                "cost_usd_all": escalated[1],
                "cost_usd": self.expected_usd,
                "share": None if before is None else before.share,
                "share_of": None if before is None else before._asdict(),
            },
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


def check_batches(spec: JobSpec, found: Survey, facts: Facts) -> None:
    """Raise SpecError for a job in batches alone that has too few documents for one of them.

    A batch is of one provider and one model."""
    if not all(map(packs, spec.permitted_lanes)):
        return  # the others take what makes no batch
    documents = Counter[tuple[str, str | None]]()
    for number, (_, asked) in _ways(spec).items() if found.routes else ():
        if number == 0 or asked is not spec:  # else the rule refuses them
            documents[asked.provider, asked.model] += found.routes[number].documents
    whole = found.total - len(found.refused) - found.repeats
    for (provider, model), number in (documents or {(spec.provider, None): whole}).items():
        why = facts(provider).too_few(number)
        if why is not None:
            setting = SetSetting(f"providers.{provider}.batch_min_requests")
            fix = Text(
                SetOption("lane", DEFAULT_LANE),
                ", or set ",
                setting,
                " to what your account's quota is",
            )
            of_model = "" if model is None else f" for the model {model}"
            raise SpecError([Problem("too_few_documents", "/lane", why + of_model, fix)])


def estimated_usd(
    spec: JobSpec, found: Survey, facts: Facts, cache: CacheUse | None = None
) -> float | None:
    """Return the estimated cost of all documents in US dollars; None where it is unknown.

    ``cache``: the use that the job makes of its provider's prompt cache. No answer goes on to a
    better model, and no step is taken: ``levers_of`` has what that costs."""
    if not found.routes:
        cost = _usd(spec, found.estimate, facts)
    else:
        cost = _sum([route.cost_usd for route in _routes(spec, found, facts)])
    if cost is None or cache is None:
        return cost
    return cost - (cache.usual_usd - cache.expected_usd) * _of_own_model(found)


def factors_of(spec: JobSpec, found: Survey, facts: Facts) -> dict[str, float]:
    """Return what rules and the prompt cache make of the cost in each lane, and in flex.

    As parts of what all documents would cost at the job's own model; nothing where that is 1, or
    not known."""
    if not spec.asks_a_provider or not (spec.routes or found.prefixes):
        return {}
    names = [lane for lane in LANES if not has_own_model(lane) and can_answer(lane, spec.endpoint)]
    ways: dict[str, dict[str, Any]] = {name: {"lane": name} for name in names}
    if spec.lets_choose_flex:
        ways[FLEX] = {"lane": DEFAULT_LANE, "tier": FLEX}
    factors = dict[str, float]()
    for name, way in ways.items():
        # one lane alone has a price of its own, and a cache is asked for where there is one
        auto = "auto" if spec.prompt_cache == "on" else spec.prompt_cache
        one = spec.model_copy(update={"lanes": None, "prompt_cache": auto, **way})
        own = _usd(one, found.estimate, facts)
        cost = estimated_usd(one, found, facts, cache_use(one, found, facts(one.provider)))
        if own and cost is not None and cost != own:
            factors[name] = cost / own
    return factors


def _of_own_model(found: Survey) -> float:
    """Return the part of all prompts that is sent to the job's own model, as the cache wants it."""
    if not found.routes or not found.estimate.tokens_in:
        return 1.0
    return found.routes[0].estimate.tokens_in / found.estimate.tokens_in


def levers_of(spec: JobSpec, found: Survey, facts: Facts, cache: CacheUse | None = None) -> Levers:
    """Return the cost by rule; ``cache`` as ``estimated_usd`` has it."""
    own, escalated = estimated_usd(spec, found, facts, cache), None
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
    for number, (rule, as_asked) in _ways(spec).items() if found.routes else ():
        route = found.routes[number]
        yield RouteCost(rule, route.documents, _usd(as_asked, route.estimate, facts))


def _ways(spec: JobSpec) -> dict[int, tuple[str, JobSpec]]:
    """Return by the number of its route each rule, and the job as its documents are asked."""
    ways = {
        rule.number: (rule.text, spec if rule.target is None else spec.asked_as(rule.target))
        for rule in spec.routing.rules
    }
    return ways if spec.routing.takes_all else {**ways, 0: (OWN, spec)}


def _prices(spec: JobSpec, facts: Facts) -> Any:
    return facts(spec.provider).prices_of(spec.model, tier=spec.tier_in(spec.first_lane))


def _usd(spec: JobSpec, guess: Estimate, facts: Facts) -> float | None:
    """Return the cost by the price of batches where the job can go nowhere else."""
    return guess.usd(_prices(spec, facts), in_batch=all(map(packs, spec.permitted_lanes)))


def _sum(costs: list[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None
