"""What an earlier job measured: means, latencies, retries and pace, from the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock_cli.errors import UsageProblem

if TYPE_CHECKING:
    from penstock_ledger import ProviderBatch
    from penstock_ledger.model import Spent
    from penstock_producer.job.spec import JobSpec

LOOKED_AT: Final = 20_000  # outcomes, the first by their ids
LATENCIES: Final = 1_000  # kept of them, evenly over their order
STEADY: Final = (0.1, 0.9)  # of the outcomes in time: what lies between has neither the start nor the end in it
AGAIN_MAX: Final = 0.9


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """Figures of one document, where not said otherwise."""

    spec: JobSpec
    lane: str  # that answered it; the first that it may go to where several did
    documents: int  # finished
    tokens_in: float
    tokens_out: float
    answer_bytes: float
    cost_usd: float | None  # None where nothing has a price
    latencies_s: Sequence[float]  # of calls
    again: float  # calls that were followed by another, of all
    per_second: float | None  # of one worker, between the job's beginning and its end
    turnarounds_s: Sequence[float]  # of its batches at providers, from create to end


def measured_job(name: str, state: Path | None, workers: int) -> MeasuredJob:
    """Raises UsageProblem for a job of which nothing has finished; JobNotFound."""
    from penstock_cli.connect import books
    from penstock_ledger import BatchFigures
    from penstock_producer.job.spec import JobSpec

    with books(state) as ledger:
        job = ledger.jobs.get(name)
        counts = ledger.outcomes.counts(job.job_id)
        some = ledger.outcomes.spent(job.job_id, LOOKED_AT)
        batches = BatchFigures(ledger.database).of_job(job.job_id)
        lanes = {one.lane for one in ledger.made_with(job)}
    answered = [one for one in some if not one.is_dead and one.calls]
    if not answered:
        raise UsageProblem(f"--from-job {name}: it has no answered document to measure; take one that has results")
    finished = counts.succeeded + counts.dead
    spec = JobSpec.accepted(job.spec)
    return MeasuredJob(
        spec,
        lanes.pop() if len(lanes) == 1 else spec.first_lane,
        finished,
        _mean([one.prompt_tokens for one in answered]),
        _mean([one.completion_tokens for one in answered]),
        _mean([one.answer_bytes for one in answered]),
        _mean([one.cost_microusd for one in some]) / 1e6 if counts.cost_microusd else None,
        _latencies(answered),
        min(AGAIN_MAX, max(0.0, 1 - len(answered) / sum(one.calls for one in answered))),
        _pace(some, finished, workers),
        _turnarounds(batches),
    )


def _latencies(answered: Sequence[Spent]) -> Sequence[float]:
    """Milliseconds are whole ones: a call takes half of one at least."""
    ordered = sorted(max(0.5, one.latency_ms) / 1_000 for one in answered)
    step = max(1, len(ordered) // LATENCIES)
    return ordered[step // 2 :: step]


def _pace(some: Sequence[Spent], finished: int, workers: int) -> float | None:
    """None where all was stored at once, or too few documents say nothing."""
    times = sorted(one.created_at for one in some)
    first, last = (round(part * (len(times) - 1)) for part in STEADY)
    if last <= first or times[last] <= times[first]:
        return None
    seen = (last - first) * finished / len(some)
    return seen / (times[last] - times[first]) / workers


def _turnarounds(batches: Sequence[ProviderBatch]) -> Sequence[float]:
    return [
        max(0.1, one.ended_at - one.created_at)
        for one in batches
        if one.ended_at is not None and one.created_at is not None
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
