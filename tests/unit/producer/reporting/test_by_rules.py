"""The lines of a report on the rules of its job."""

from __future__ import annotations

from penstock_ledger import Job, JobState, Saving
from penstock_producer.reporting.by_rules import (
    ESCALATED,
    by_rules,
    route_cause,
    rule_lines,
)


def test_a_cost_that_is_not_known_is_no_zero() -> None:
    """A route to a model without a price says so, and so do answers that went on to one; others
    have their sum."""
    rules = {"routes": ["lang=de -> model=a"], "escalate": "score<0.5 -> model=b"}
    job = Job("job", "job", rules, {}, "", JobState.COMPLETED, None, 1, 10, 0.0, 1.0)
    booked = [
        Saving(route_cause(1), 3, saved_microusd=-20, unpriced=1),
        Saving(route_cause(0), 7, saved_microusd=-5_000),
        Saving(ESCALATED, 2, unpriced=2),
    ]
    found = by_rules(job, booked, ())
    assert [one["cost_usd"] for one in found.routes] == [None, 0.005]
    assert [str(line) for line in rule_lines(found.routes, found.escalated, ())] == [
        "route lang=de -> model=a: 3 documents, at an unknown cost",
        "route else: the job's own model: 7 documents, $0.0050",
        "escalate score<0.5 -> model=b: 2 documents went on, at an unknown cost",
    ]
