"""Before a job is submitted, or as it is: which of its lanes would be chosen, and whether its
deadline can be met."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from penstock_producer.job.lanes import AUTO

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job
    from penstock_producer.accepting.estimates import Estimate
    from penstock_producer.job.spec import JobSpec
    from penstock_workers.lane_changes import LaneChangeSettings
    from penstock_workers.settings import ProviderSettings, WorkerSettings


def choice_lines(
    spec: JobSpec,
    guess: Estimate,
    documents: int,
    provider: ProviderSettings,
    rules: LaneChangeSettings,
) -> list[str]:
    """For a dry run, which asks no store: what a batch takes is not known to it.

    ``rules``: `[lanes]` of the settings."""
    from penstock_workers.control.lanes.forecast import Known, forecast, late

    known = Known(provider, provider.limits, provider.batch_enqueued_tokens)
    asked = (spec, guess, documents, known, rules, time.time())
    lines = []
    if spec.lane == AUTO:
        choice = forecast(*asked)
        lines.append(f"lane {AUTO} would begin with {choice.lane}: {choice.why}")
    warning = late(*asked)
    return (
        lines
        if warning is None or (spec.lane == AUTO and "No lane" in lines[0])
        else [*lines, warning]
    )


def late_warning(ledger: Books, job: Job, settings: WorkerSettings | None = None) -> str | None:
    """Of a job that was just accepted: that its deadline is not expected to be met, and what would
    meet it. ``settings``: those of its workers, where they are known; else as they stand here."""
    import redis

    from penstock_producer.accepting.estimates import Estimate
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.pins import ESTIMATE
    from penstock_workers.control.lanes.forecast import HISTORY, Known, late
    from penstock_workers.settings import WorkerSettings

    spec, found = JobSpec.accepted(job.spec), job.source.get(ESTIMATE)
    if spec.deadline_s is None or job.moves or not isinstance(found, dict):
        return None
    settings = settings or WorkerSettings.load()
    provider = settings.providers.get(spec.provider)
    if provider is None:
        return None
    view = None
    with contextlib.suppress(redis.RedisError, OSError):
        view = ledger.quota(spec.provider)
    known = Known(
        provider,
        provider.limits,
        provider.batch_enqueued_tokens,
        ledger.batches_lasted(spec.provider, HISTORY),
        view,
    )
    guess = Estimate(
        found["tokens_in"], found["tokens_out"], found["capped"], model=found.get("model")
    )
    return late(spec, guess, found["documents"], known, settings.lanes, time.time())
