"""Attempts are booked by the rules of their job: by route, by step, and where an answer went on.

A booking is a saving below 0, which SQL adds once for each answer, see the ledger's account.py.
"""

from __future__ import annotations

from penstock_ledger import Saving
from penstock_producer.job.routing import route_in
from penstock_producer.reporting.by_rules import ESCALATED, route_cause, step_cause
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.outcome import Dead, Done, Outcome
from penstock_workers.item.spent import Spent


def booked(attempt: Attempt, outcome: Outcome) -> tuple[Saving, ...]:
    """Return what an attempt cost by each rule; a document counts where it ends."""
    spent, spec, found = attempt.spent, attempt.job.spec, list[Saving]()
    ends = isinstance(outcome, Done | Dead)
    if spec.routes and attempt.given:  # of an equal request's answer in a batch nothing is read
        found.append(_of(route_cause(route_in(attempt.given)), ends, spent))
    if attempt.step:
        found.append(_of(step_cause(attempt.step), ends, spent))
    if spec.escalate is not None and attempt.spent_in_all.escalations:
        better = spent._replace(cost_microusd=spent.cost_microusd - attempt.first_microusd)
        found.append(_of(ESCALATED, spent.escalations, better))
    return tuple(found)


def _of(cause: str, documents: int, spent: Spent) -> Saving:
    return Saving(
        cause, int(documents), saved_microusd=-spent.cost_microusd, unpriced=spent.unpriced
    )
