"""Whose work an item is, in the words of the lines in which it waits."""

from __future__ import annotations

from penstock_producer.spec import JobSpec
from penstock_ratelimit.fairness import Flow, Priority


def flow_of(job_id: str, spec: JobSpec) -> Flow:
    """The flow of all items of a job. Jobs without a tenant are those of one tenant."""
    return Flow(spec.tenant or "", job_id, spec.weight, Priority[spec.priority.upper()])
