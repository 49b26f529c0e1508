"""A sample stands for the whole job: tokens, cost and time, each with an interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock_cli.job.lane_needs import LanePlan, lane_plans
from penstock_cli.job.picture import (
    LOOKED_AT,
    Asked,
    MeasuredJob,
    MeasuredLane,
    Picture,
    measured_job,
    most_of,
)
from penstock_cli.run.sample import SampleRecord, latest_record
from penstock_producer.accepting.quality import GoneOn
from penstock_producer.accepting.sampling import (
    CONFIDENCE,
    Interval,
    extrapolated,
    share_of_largest,
)
from penstock_producer.job.lanes import has_own_model
from penstock_producer.reporting.text import count, counted, duration, safe, usd

if TYPE_CHECKING:
    from penstock_cli.run.request import RunRequest
    from penstock_ledger.model import Spent
    from penstock_producer.job.spec import JobSpec
    from penstock_workers.settings import WorkerSettings

FEW: Final = 30  # documents: an interval from fewer is itself a guess
# of the cost in a hundredth of the documents: the interval may miss what is rarer still
HEAVY: Final = 0.1
LIKE: Final = ("escalate", "model")  # what makes an earlier job say how many answers go on


def gone_on_before(state: Path, job_key: str, spec: JobSpec) -> GoneOn | None:
    """Return how many answers went on in a sample of this job, or in an earlier job of its key.

    Of those with the same rule and model it is the one with the most documents; None where none has
    any."""
    from penstock_cli.connect import books
    from penstock_ledger import JobNotFound
    from penstock_producer.reporting.account import rules_of

    folder = state.expanduser()
    if spec.escalate is None or not folder.joinpath("penstock.db").is_file():
        return None
    record = latest_record(folder, job_key, spec)
    found = list[GoneOn]()
    with books(folder) as ledger:
        for name in (job_key, *(() if record is None else (record.job_key,))):
            try:
                job = ledger.jobs.get(name)
            except JobNotFound:
                continue
            counts, rules = ledger.outcomes.counts(job.job_id), rules_of(ledger.database, job)
            ended = counts.succeeded + counts.dead
            is_like = all(job.spec.get(one) == getattr(spec, one) for one in LIKE)
            if ended and is_like and rules is not None and rules.escalated is not None:
                found.append(GoneOn(job.job_key, ended, rules.escalated["documents"]))
    return max(found, key=lambda one: one.documents, default=None)


def of_sample(request: RunRequest) -> list[str]:
    """Return what a sample of this run says about the whole job; nothing where there is none."""
    from penstock_cli.run.check import understood
    from penstock_cli.run.request import cards_of

    if not request.state.expanduser().joinpath("penstock.db").is_file():
        return []
    spec, of_lanes = understood(request)
    cards = cards_of(request.gpus, of_lanes)
    workers = request.workers if cards is None else len(cards.groups)
    return sample_says(
        request.state, request.job_key, spec, of_lanes[0], workers, request.concurrency
    )


def sample_says(
    state: Path,
    job_key: str,
    spec: JobSpec,
    settings: WorkerSettings,
    workers: int,
    concurrency: int | None,
) -> list[str]:
    """Return lines for people; none where no sample with these options has an answer."""
    from penstock_cli.connect import books
    from penstock_cli.errors import UsageProblem
    from penstock_ledger import JobNotFound

    record = latest_record(state, job_key, spec)
    if record is None:
        return []
    try:
        with books(state) as ledger:
            some = ledger.outcomes.spent(ledger.jobs.get(record.job_key).job_id, LOOKED_AT)
        # the sample's own is of lines that say it all
        job = replace(measured_job(record.job_key, state, 1), spec=spec)
    except (JobNotFound, UsageProblem):
        return []
    asked = Asked(workers=workers, concurrency=concurrency, job=record.job_key, state=state)
    return list(_lines(record, some, job, settings, asked))


def _lines(
    record: SampleRecord,
    some: Sequence[Spent],
    job: MeasuredJob,
    settings: WorkerSettings,
    asked: Asked,
) -> Iterator[str]:
    sampled = [one for one in some if one.doc_id in record.sizes]
    measured = {
        "in": [float(one.prompt_tokens) for one in sampled],
        "out": [float(one.completion_tokens) for one in sampled],
        "cost": [one.cost_microusd / 1e6 for one in sampled],
    }
    sizes = [float(record.sizes[one.doc_id]) for one in sampled]
    sums = extrapolated(sizes, measured, record.documents, record.size)
    if not sums:
        return
    yield (
        f"all {counted(record.documents, 'document')}, as a random sample of {count(len(sampled))} "
        f"has them, with {CONFIDENCE:.0%} intervals:"
    )
    yield f"  tokens in   {_counts(sums['in'])}"
    yield f"  tokens out  {_counts(sums['out'])}"
    for lane in job.lanes.values():
        its = (
            [one for one in sampled if one.lane in (lane.lane, None)]
            if len(job.lanes) > 1
            else sampled
        )
        cost = sums["cost"] if len(job.lanes) == 1 else _cost_of_all(its, record)
        if cost is None:
            continue
        where = (
            f" in {lane.lane}, by the {counted(len(its), 'document')} answered there"
            if len(job.lanes) > 1
            else ""
        )
        plans = [_planned(record, job, lane, settings, asked, sums, place) for place in range(3)]
        yield f"  cost        {_costs(lane, cost, plans)}{where}"
        yield f"  time        {_times(plans)}{where}"
    if len(sampled) < FEW:
        yield f"  from so few documents an interval is itself a guess; --sample {FEW * 4} says more"
    of_largest = share_of_largest(
        measured["cost"] if job.main.cost_usd is not None else measured["out"]
    )
    if len(sampled) >= FEW and of_largest > HEAVY:
        yield (
            f"  the largest hundredth of the sample makes {of_largest:.0%} of the sum: documents "
            "that are rarer and larger still may lie outside of the sample, and the sum above the "
            "interval"
        )


def _counts(found: Interval) -> str:
    return _about(*(count(round(end)) for end in (found.middle, found.low, found.high)))


def _about(middle: str, low: str, high: str) -> str:
    """Write an estimate with its interval, unless both ends read the same."""
    return f"about {middle}" + (f" ({low} to {high})" if low != high else "")


def _cost_of_all(its: Sequence[Spent], record: SampleRecord) -> Interval | None:
    """Return the cost as if the lane of these documents answered all of them."""
    sizes = [float(record.sizes[one.doc_id]) for one in its]
    return extrapolated(
        sizes, {"cost": [one.cost_microusd / 1e6 for one in its]}, record.documents, record.size
    ).get("cost")


def _costs(lane: MeasuredLane, found: Interval, plans: Sequence[LanePlan]) -> str:
    """Return the cost of a lane; of one that hosts a model, by the time that it computes.

    A sample's own time has the start and the end in it."""
    if has_own_model(lane.lane):
        known = [plan.cost_usd for plan in plans if plan.cost_usd is not None]
        found = Interval(min(known), plans[1].cost_usd or 0.0, max(known)) if known else found
    elif lane.cost_usd is None:
        known = []
    else:
        known = [found.middle]
    if not known:
        return "unknown, as a price is missing"
    return _about(usd(found.middle), usd(found.low), usd(found.high))


def _times(plans: Sequence[LanePlan]) -> str:
    seconds = [plan.planned.seconds for plan in plans if plan.planned is not None]
    middle = plans[1].planned
    if middle is None:
        return f"unknown: {safe(plans[1].why)}"
    told = _about(duration(middle.seconds), duration(min(seconds)), duration(max(seconds)))
    return f"{told}, bounded by {middle.binding}"


def _planned(
    record: SampleRecord,
    job: MeasuredJob,
    lane: MeasuredLane,
    settings: WorkerSettings,
    asked: Asked,
    sums: dict[str, Interval],
    place: int,
) -> LanePlan:
    """Plan with the tokens of one end of the intervals, or of their middle."""
    share_in, share_out = (sums[name][place] / record.documents for name in ("in", "out"))
    pace = _slower(
        lane,
        (sums["in"][place] + sums["out"][place]) / max(1.0, sums["in"].middle + sums["out"].middle),
    )
    (plan,) = lane_plans(
        _picture(record, job, pace, share_in, share_out), settings, asked, [lane.lane]
    )
    return plan


def _slower(lane: MeasuredLane, share: float) -> MeasuredLane:
    """Return by how much longer an engine takes for more tokens."""
    return (
        lane
        if lane.per_second is None
        else replace(lane, per_second=lane.per_second / max(0.01, share))
    )


def _picture(
    record: SampleRecord, job: MeasuredJob, lane: MeasuredLane, tokens_in: float, tokens_out: float
) -> Picture:
    job = replace(job, lanes={**job.lanes, lane.lane: lane})
    return Picture(
        job.spec,
        record.documents,
        tokens_in,
        tokens_out,
        most_of(job.spec),
        record.size / max(1, record.documents),
        job.answer_bytes,
        lane.latencies_s,
        lane.again,
        job,
        (),
    )
