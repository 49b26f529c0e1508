"""Attempts are counted for people by how they were asked: again, by which rule and by which step.

What decides is counted in SQL; these counters are Redis's alone, and go with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock_ledger import Counted
from penstock_producer.job.routing import route_in
from penstock_producer.reporting.levers import (
    ESCALATED,
    ESCALATED_COST,
    route_counter,
    step_counter,
)
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.outcome import Dead, Done, Outcome


def counted(attempt: Attempt, outcome: Outcome) -> Iterator[Counted]:
    """Yield what this attempt moves."""
    job_id, spent = attempt.key.job_id, attempt.spent
    numbers = {
        "repairs": spent.repairs,
        "fallbacks": spent.fallbacks,
        ESCALATED: spent.escalations,
    }
    if attempt.job.spec.escalate is not None and attempt.spent_in_all.escalations:
        numbers[ESCALATED_COST] = spent.cost_microusd - attempt.first_microusd
    if isinstance(outcome, Done | Dead):
        names = []
        if attempt.job.spec.routes:
            names.append(route_counter(route_in(attempt.given)))
        if attempt.step:
            names.append(step_counter(attempt.step))
        for documents, microusd in names:
            numbers |= {documents: 1, microusd: attempt.spent_in_all.cost_microusd}
    return (Counted(job_id, name, number) for name, number in numbers.items() if number)
