"""How many feeders read a job's source at once, why so many, and how far they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

__all__ = ["feeders_line", "feeders_of"]

if TYPE_CHECKING:
    from penstock_ledger.model import Feed, Job

    Shards = Sequence[tuple[Feed, str | None]]  # as ``FeedStore.shards`` has them


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
