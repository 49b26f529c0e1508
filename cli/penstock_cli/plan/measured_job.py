"""What an earlier job measured: means, latencies, retries and pace, from the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock_cli.errors import UsageProblem

if TYPE_CHECKING:
    from penstock_ledger import ProviderBatch
    from penstock_ledger.model import Spent
    from penstock_producer.job.spec import JobSpec

LOOKED_AT: Final = 20_000  # outcomes, the first by their ids
LATENCIES: Final = 1_000  # kept of them, evenly over their order
STEADY: Final = (
    0.1,
    0.9,
)  # of the outcomes in time: what lies between has neither the start nor the end in it
AGAIN_MAX: Final = 0.9


@dataclass(frozen=True, slots=True)
class MeasuredLane:
    """Of the documents of a job that one lane has answered."""

    lane: str
    documents: int  # finished there
    cost_usd: float | None  # of one; None where nothing has a price
    latencies_s: Sequence[float]  # of calls
    again: float  # calls that were followed by another, of all
    per_second: float | None  # of one worker, between its beginning and its end there


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """Figures of one document, where not said otherwise."""

    spec: JobSpec
    documents: int  # finished
    tokens_in: float
    tokens_out: float
    answer_bytes: float
    lanes: Mapping[str, MeasuredLane]  # one at least; the one that answered most comes first
    turnarounds_s: Sequence[float]  # of its batches at providers, from create to end

    @property
    def main(self) -> MeasuredLane:
        """The lane that answered most."""
        return next(iter(self.lanes.values()))


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
    answered = _answered(some)
    if not answered:
        raise UsageProblem(
            f"--from-job {name}: it has no answered document to measure; take one that has results"
        )
    finished = counts.succeeded + counts.dead
    spec = JobSpec.accepted(job.spec)
    usual = lanes.pop() if len(lanes) == 1 else spec.first_lane
    return MeasuredJob(
        spec,
        finished,
        _mean([one.prompt_tokens for one in answered]),
        _mean([one.completion_tokens for one in answered]),
        _mean([one.answer_bytes for one in answered]),
        _by_lane(some, usual, finished / len(some), workers),
        _turnarounds(batches),
    )


def _by_lane(
    some: Sequence[Spent], usual: str, share: float, workers: int
) -> Mapping[str, MeasuredLane]:
    """``usual``: where documents were answered of which the ledger does not say it; ``share``: of
    the job's documents by those that were looked at."""
    found: dict[str, list[Spent]] = {}
    for one in some:
        found.setdefault(one.lane or usual, []).append(one)
    measured = [_lane(lane, its, share, workers) for lane, its in found.items() if _answered(its)]
    return {one.lane: one for one in sorted(measured, key=attrgetter("documents"), reverse=True)}


def _lane(lane: str, its: Sequence[Spent], share: float, workers: int) -> MeasuredLane:
    answered = _answered(its)
    finished = round(len(its) * share)
    return MeasuredLane(
        lane,
        finished,
        _mean([one.cost_microusd for one in its]) / 1e6
        if any(one.cost_microusd for one in its)
        else None,
        _latencies(answered),
        min(AGAIN_MAX, max(0.0, 1 - len(answered) / sum(one.calls for one in answered))),
        _pace(its, finished, workers),
    )


def _answered(some: Sequence[Spent]) -> list[Spent]:
    return [one for one in some if not one.is_dead and one.calls]


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
