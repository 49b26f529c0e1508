"""Jobs as steps of other orchestrators.

Each module needs a package that Penstock does not install."""

from typing import Any

from penstock_ledger.model import JobState
from penstock_ledger.texts import Command, Run, Text
from penstock_producer.producer import JobStatus
from penstock_producer.reporting.money import money_of

POLL_S = 15.0  # between looks at a job; each is one query


def summary_of(status: JobStatus) -> dict[str, Any]:
    """Return JSON of a bounded size: no document's text is in it."""
    counts = status.counts
    return {
        "job_id": status.job.job_id,
        "job_key": status.job.job_key,
        "state": str(status.job.state),
        "reason": status.job.reason,
        "total": status.job.total,
        "succeeded": counts.succeeded,
        "dead": counts.dead,
        "dead_by_reason": dict(counts.dead_by_reason),
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "cost_usd": money_of(counts).usd,
    }


def failure_of(summary: dict[str, Any], max_dead: float) -> str | None:
    """Return why the step has failed, for people to read; None where it has not.

    ``max_dead`` is the share of documents that may end as dead letters, from 0 to 1.
    """
    name = f"job {summary['job_key']}"
    if summary["state"] != JobState.COMPLETED:
        return f"{name} is {summary['state']}: {summary['reason'] or 'no reason was given'}"
    finished = summary["succeeded"] + summary["dead"]
    if finished and summary["dead"] / finished > max_dead:
        reasons = ", ".join(
            f"{number} {reason}" for reason, number in sorted(summary["dead_by_reason"].items())
        )
        return Text(
            f"{name}: {summary['dead']} of {finished} documents are dead letters ({reasons}), and "
            f"max_dead is {max_dead:g}; look at them with ",
            Run(Command.DEAD_LETTERS, (summary["job_key"],)),
            ", and replay them before this step is tried again",
        )
    return None
