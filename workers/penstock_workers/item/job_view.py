"""A worker keeps of a job what never changes while it runs, for each way in which it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from penstock_producer.job.levers import Escalation
from penstock_producer.job.spec import JobSpec
from penstock_producer.job.targets import Target
from penstock_producer.planning.prefixes import CachedPrompts
from penstock_ratelimit import Flow
from penstock_ratelimit.for_penstock import DEFAULT_FLOW
from penstock_workers.item.same_request import ReusePolicy
from penstock_workers.settings import ProviderSettings


@dataclass(frozen=True, slots=True)
class JobView:
    """A worker's view of a job: the parts that never change while it runs."""

    job_id: str
    spec: JobSpec
    provider: ProviderSettings
    buckets: int  # of the completed set
    flow: Flow = DEFAULT_FLOW  # where its items stand in the lines of a worker
    reuse: ReusePolicy | None = None  # None: all of its requests are sent
    # the same job with the next model that an item is asked of, see follow_ups.py
    fallback: JobView | None = None
    # callers wait for its answers: they are settled without delay, and announced
    awaited: bool = False
    tenant_usd: float | None = None  # the budget of its tenant for a month, which bounds it, too
    named_endpoint: str | None = None  # the path that these items name, where it is not the job's
    # control may choose another service tier: it is read anew now and then
    changes_tier: bool = False
    has_rules: bool = False  # by which documents may be asked otherwise than its spec says
    # the same job as documents are asked that its rules take, by their numbers from 1 on; None in
    # the place of a rule that refuses
    routes: tuple[JobView | None, ...] = ()
    escalation: Escalated | None = None  # where an answer may go on to a better model
    # as it is asked from its next step of `degrade` on, see control/job/degrading.py
    next_step: tuple[Target, JobView] | None = None
    cached: CachedPrompts | None = None  # None: the provider's prompt cache is not used


class Escalated(NamedTuple):
    """The rule by which an answer goes on to another model, and the job as that one is asked."""

    rule: Escalation
    view: JobView
