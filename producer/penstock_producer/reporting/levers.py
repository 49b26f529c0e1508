"""The report says what the rules of a job did: by route, for answers that went on, and by step.

How many documents a rule takes is known from the survey, where there was one. The other figures are
counters of the job in Redis, which are for people.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock_ledger import LEVER
from penstock_ledger.texts import SetOption, Text
from penstock_producer.job.routing import RoutingTable
from penstock_producer.pins import ROUTES
from penstock_producer.reporting.money import MICRO
from penstock_producer.reporting.text import counted, one_line, usd

if TYPE_CHECKING:
    from penstock_ledger import StepTaken
    from penstock_ledger.model import Job

__all__ = [
    "ESCALATED",
    "ESCALATED_COST",
    "escalated_of",
    "lever_lines",
    "route_counter",
    "routes_of",
    "step_counter",
    "steps_taken_of",
]

ESCALATED: Final = f"{LEVER}escalated"
ESCALATED_COST: Final = f"{LEVER}escalated:microusd"
OWN: Final = "else: the job's own model"
RULE_CHARS: Final = 200  # of a rule in a line


def route_counter(rule: int) -> tuple[str, str]:
    """Return the counters of documents that a rule took, 0 for none, and of what they cost."""
    return f"{LEVER}route:{rule}", f"{LEVER}route:{rule}:microusd"


def step_counter(step: int) -> tuple[str, str]:
    """Return the same of documents that were asked by a step of `degrade`."""
    return f"{LEVER}step:{step}", f"{LEVER}step:{step}:microusd"


def routes_of(job: Job, stats: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the routes of a job for JSON: their rules, documents, and cost so far."""
    rules = job.spec.get("routes") or []
    surveyed = job.source.get(ROUTES) or {}
    found = []
    rest = () if RoutingTable(rules).takes_all else (0,)
    for number in (*range(1, len(rules) + 1), *rest) if rules else ():
        ended, cost_usd = _taken(route_counter(number), stats)
        documents = surveyed.get(str(number), ended)
        rule = OWN if number == 0 else rules[number - 1]
        found.append({"rule": rule, "documents": documents, "ended": ended, "cost_usd": cost_usd})
    return found


def escalated_of(job: Job, stats: Mapping[str, int]) -> dict[str, Any] | None:
    """Return how many answers went on, and what the better model's cost; None without a rule."""
    rule = job.spec.get("escalate")
    if rule is None:
        return None
    documents, cost_usd = _taken((ESCALATED, ESCALATED_COST), stats)
    return {"rule": rule, "documents": documents, "cost_usd": cost_usd}


def steps_taken_of(
    job: Job, stats: Mapping[str, int], taken: Sequence[StepTaken]
) -> list[dict[str, Any]]:
    """Return the steps of a job for JSON; ``at`` is null where the moment has not come."""
    at = {step.number: step.at for step in taken}
    found = []
    for number, step in enumerate(job.spec.get("degrade") or (), start=1):
        documents, cost_usd = _taken(step_counter(number), stats)
        found.append(
            {"step": step, "at": at.get(number), "documents": documents, "cost_usd": cost_usd}
        )
    return found


def lever_lines(
    routes: Sequence[Mapping[str, Any]],
    escalated: Mapping[str, Any] | None,
    steps: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    """Yield a line for each rule of a job: what it took, and what that cost."""
    for one in routes:
        took = counted(one["documents"], "document")
        yield f"route {_rule(one['rule'])}: {took}, {usd(one['cost_usd'])}"
    if escalated is not None:
        went = counted(escalated["documents"], "document")
        yield Text(
            SetOption("escalate"),
            f" {_rule(escalated['rule'])}: {went} went on, {usd(escalated['cost_usd'])} more",
        )
    for one in steps:
        took = counted(one["documents"], "document")
        since = "not taken yet" if one["at"] is None else f"since {_moment(one['at'])}, {took}"
        yield Text(SetOption("degrade"), f" {_rule(one['step'])}: {since}")


def _taken(names: tuple[str, str], stats: Mapping[str, int]) -> tuple[int, float]:
    documents, microusd = (stats.get(name, 0) for name in names)
    return documents, round(microusd / MICRO, 6)


def _rule(text: str) -> str:
    return one_line(text, RULE_CHARS)


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
