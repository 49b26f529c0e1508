"""Where a job comes from, and how many feeders read its source at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_ledger.model import Feed, Job

    Shards = Sequence[tuple[Feed, str | None]]

__all__ = ["feeders_line", "feeders_of", "from_job_line", "started_by_line"]


def feeders_line(job: Job, shards: Shards, *, one_machine: bool) -> str:
    """Return one sentence on the feeders; empty for a job of which it need not be said.

    ``one_machine``: its database is a file of SQLite.
    """
    from penstock_producer.feed.feeder_plan import is_worth_telling, plan_feeders
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.reporting.text import count, safe

    if job.total is None:
        return ""
    spec = JobSpec.accepted(job.spec)
    plan = plan_feeders(spec, job.total, 0, job.source, one_machine=one_machine)
    if not shards:
        return (
            f"read by {plan}"
            if is_worth_telling(spec, plan, job.total) and not job.state.final
            else ""
        )
    why = plan.why if spec.budget_usd is None else "one after the other, since it has a budget"
    read = sum(shard.exhausted for shard, _ in shards)
    leaders = Counter(owner for shard, owner in shards if owner is not None and not shard.exhausted)
    leading = ", ".join(
        f"{safe(owner)} leads {count(number)}" for owner, number in sorted(leaders.items())
    )
    parts = filter(None, (f"{count(read)} at their end", leading))
    return f"read by {len(shards)} feeders ({why}): {'; '.join(parts)}"


def feeders_of(shards: Shards) -> dict[str, Any] | None:
    """Return the feeders for programs; None where one feeder reads all of it."""
    if not shards:
        return None
    return {"number": len(shards), "at_their_end": sum(shard.exhausted for shard, _ in shards)}


def from_job_line(job: Job) -> str:
    """Return one sentence on the job whose outcomes this one reads.

    It is empty for a job with a source of its own.
    """
    from penstock_producer.reporting.text import one_line, safe

    if job.source.get("kind") != "job":
        return ""
    where = " and ".join(job.source["where"])
    chosen = f", where {one_line(where)}" if where else ""
    last, skipped = job.source["generation"], job.source.get("after_generation", 0)
    generations = (
        f"of generation {skipped + 1} to {last}" if skipped else f"up to generation {last}"
    )
    return f"over the outcomes of job {safe(job.source['job_key'])}, {generations}{chosen}"


def started_by_line(job: Job) -> str:
    """Return one sentence; empty for a job that was submitted by hand or by a service."""
    from penstock_producer.reporting.text import safe
    from penstock_producer.schedules.marks import started_by

    found = started_by(job)
    if found is None:
        return ""
    name, planned = found
    return f"started by schedule {safe(name)} for {planned}"
