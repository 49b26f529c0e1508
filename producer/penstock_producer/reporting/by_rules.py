"""The report says what the rules of a job did: by route, for answers that went on, and by step.

How many documents a rule takes is known from the survey, where there was one. The rest is booked
with each answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock_ledger import RULE
from penstock_ledger.texts import SetOption, Text
from penstock_producer.job.routing import OWN, RoutingTable
from penstock_producer.pins import ROUTES
from penstock_producer.reporting.money import MICRO
from penstock_producer.reporting.text import counted, one_line, usd

if TYPE_CHECKING:
    from penstock_ledger import Saving, StepTaken
    from penstock_ledger.model import Job

__all__ = ["ESCALATED", "ByRules", "by_rules", "route_cause", "rule_lines", "step_cause"]

ESCALATED: Final = f"{RULE}escalated"
RULE_CHARS: Final = 200  # of a rule in a line


def route_cause(rule: int) -> str:
    """Return the name under which documents are booked that a rule takes, 0 for none."""
    return f"{RULE}route:{rule}"


def step_cause(step: int) -> str:
    """Return the same of documents that are asked by a step of `degrade`."""
    return f"{RULE}step:{step}"


class ByRules(NamedTuple):
    """The rules of a job with what they took and cost, for JSON; nothing where it has none."""

    routes: Sequence[dict[str, Any]] = ()
    escalated: dict[str, Any] | None = None
    degraded: Sequence[dict[str, Any]] = ()  # `at` is null where the moment has not come


def by_rules(job: Job, booked: Iterable[Saving], taken: Sequence[StepTaken]) -> ByRules:
    """Return what the rules of a job did; ``taken`` are the steps that it has taken."""
    found = {one.cause: one for one in booked}

    def of(name: str, rule: str, cause: str) -> dict[str, Any]:
        one = found.get(cause)
        if one is None:
            return {name: rule, "documents": 0, "cost_usd": 0.0}
        cost_usd = None if one.unpriced else round(-one.saved_microusd / MICRO, 6)
        return {name: rule, "documents": one.answers, "cost_usd": cost_usd}

    rules, rule = job.spec.get("routes") or [], job.spec.get("escalate")
    surveyed, routes = job.source.get(ROUTES) or {}, []
    rest = () if not rules or RoutingTable(rules).takes_all else (0,)
    for number in (*range(1, len(rules) + 1), *rest):
        one = of("rule", rules[number - 1] if number else OWN, route_cause(number))
        ended = one["documents"]
        routes.append(one | {"documents": surveyed.get(str(number), ended), "ended": ended})
    at = {step.number: step.at for step in taken}
    return ByRules(
        routes,
        None if rule is None else of("rule", rule, ESCALATED),
        [
            of("step", step, step_cause(number)) | {"at": at.get(number)}
            for number, step in enumerate(job.spec.get("degrade") or (), start=1)
        ],
    )


def rule_lines(
    routes: Sequence[Mapping[str, Any]],
    escalated: Mapping[str, Any] | None,
    steps: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    """Yield a line for each rule of a job: what it took, and what that cost."""
    for one in routes:
        took = counted(one["documents"], "document")
        yield f"route {_rule(one['rule'])}: {took}, {_cost(one)}"
    if escalated is not None:
        went = counted(escalated["documents"], "document")
        yield Text(
            SetOption("escalate"),
            f" {_rule(escalated['rule'])}: {went} went on, {_cost(escalated, ' more')}",
        )
    for one in steps:
        took = counted(one["documents"], "document")
        since = "not taken yet" if one["at"] is None else f"since {_moment(one['at'])}, {took}"
        yield Text(SetOption("degrade"), f" {_rule(one['step'])}: {since}")


def _cost(one: Mapping[str, Any], more: str = "") -> str:
    return "at an unknown cost" if one["cost_usd"] is None else f"{usd(one['cost_usd'])}{more}"


def _rule(text: str) -> str:
    return one_line(text, RULE_CHARS)


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
