"""The job of a `penstock run` in its ledger: submitted, or found again with what is finished."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock_cli.connect import Books, books
from penstock_cli.errors import UsageProblem
from penstock_cli.job.given import FromJob
from penstock_cli.run.request import Plan
from penstock_cli.show.terminal import remember
from penstock_producer.job.options import STOP_FIELDS
from penstock_producer.pins import skipped_in_words
from penstock_producer.reporting.text import count, counts_in_words, duration, usd

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_ledger.model import Job
    from penstock_producer import Producer


@contextlib.contextmanager
def opened_ledger(plan: Plan) -> Iterator[Books]:
    from penstock_ledger import open_database

    plan.progress.note(f"opening the ledger in {plan.state.root}")
    database = open_database(plan.state.database_url)
    try:
        database.migrate()
    finally:
        database.close()
    with books(plan.state.root) as ledger:
        yield ledger


def accepted(plan: Plan, ledger: Books) -> Job:
    """Submit the job, or find the one that this command started earlier and say how far it is."""
    from penstock_ledger import JobConflict
    from penstock_producer import Producer, SpecError

    request = plan.request

    def read(rows: int) -> None:
        plan.progress.note(f"reading {request.source}:", f"{count(rows)} rows")

    try:
        with Producer(
            plan.settings.model_copy(update={"database_url": plan.state.database_url})
        ) as producer:
            changed = _change_limits(plan, ledger, producer)
            plan.progress.note(f"reading {request.source}")
            if request.outcomes is None:
                job_id = producer.submit(
                    request.source, plan.spec, job_key=request.job_key, progress=read
                ).job_id
            else:
                job_id = _submit_from(producer, plan, request.outcomes, read)
    except SpecError as error:
        raise request.given.refusal(error) from error
    except JobConflict as error:
        raise UsageProblem(
            f"{plan.state.root} holds a job {request.job_key!r} with another source or other "
            f"options: {'; '.join(error.differences)}. To resume it, repeat its command unchanged; "
            "to start anew, give another --out and --job NAME."
        ) from error
    job = ledger.jobs.get(job_id)
    if changed:
        plan.console.print(changed)
    _take_over_samples(plan, ledger, job)
    _say_where_it_stands(plan.console, ledger, job)
    _warn_of_deadline(plan, ledger, job)
    remember(plan.state, job.job_id, request.again)
    return job


def _submit_from(
    producer: Producer, plan: Plan, outcomes: FromJob, read: Callable[[int], None]
) -> str:
    from penstock_ledger import JobNotFound

    try:
        return producer.submit_from(
            outcomes.job,
            plan.spec,
            where=outcomes.where,
            job_key=plan.request.job_key,
            progress=read,
        ).job_id
    except JobNotFound as error:
        raise UsageProblem(
            f"--from-job {outcomes.job}: {plan.state.root} holds no such job; give the --state of "
            "the run that it belongs to (.penstock in its --out)"
        ) from error


def _take_over_samples(plan: Plan, ledger: Books, job: Job) -> None:
    """Give a job that was just made what its samples have answered."""
    from penstock_cli.run.sample import take_over

    if (
        job.state.final
        or plan.request.sample is not None
        or plan.request.outcomes is not None
        or ledger.figures_path(job).exists()
    ):
        return
    if ledger.outcomes.counts(job.job_id).succeeded == 0:
        taken = take_over(ledger, job, plan.state, plan.request.source, plan.spec)
        if taken:
            plan.progress.say(
                f"{count(taken)} documents are taken over from a sample, which has paid for them"
            )


def _change_limits(plan: Plan, ledger: Books, producer: Producer) -> str:
    """Change budget and deadline of an unfinished job; return what to say about it.

    Everything else in a spec decides what results are, so that a difference there is another job.
    """
    from penstock_ledger import JobNotFound
    from penstock_producer.job.spec import JobSpec

    try:
        job = ledger.jobs.get(plan.request.job_key)
    except JobNotFound:
        return ""
    stops = {name: getattr(plan.spec, name) for name in STOP_FIELDS}
    now = {"budget_usd": plan.spec.budget_usd, "deadline_s": plan.spec.deadline_s, **stops}
    stored = JobSpec.accepted(job.spec)
    # accepted by a release before that option, and the same job without it
    if stored.response_format is None:
        stored = stored.model_copy(update={"response_format": "auto"})
    same = stored.model_copy(update={**now, "over_budget": plan.spec.over_budget}) == plan.spec
    if job.state.final or stored == plan.spec or not same:
        return ""
    producer.limit(
        job.job_id, budget_usd=plan.spec.budget_usd, deadline_s=plan.spec.deadline_s, stops=stops
    )
    budget = "none" if plan.spec.budget_usd is None else usd(plan.spec.budget_usd)
    deadline = "none" if plan.spec.deadline_s is None else duration(plan.spec.deadline_s)
    cost = plan.spec.stop_at_usd_per_doc
    stop = f"{plan.spec.stop_at_dead} dead{'' if cost is None else f' or {usd(cost)} per document'}"
    return (
        f"limits of the job are now: budget {budget}, deadline {deadline} from its submit, stop at "
        f"{stop}"
    )


def _warn_of_deadline(plan: Plan, ledger: Books, job: Job) -> None:
    """Warn where the deadline of a job that was just made is not expected to be met."""
    if (
        plan.spec.deadline_s is None
        or not plan.spec.asks_a_provider
        or job.state.final
        or ledger.figures_path(job).exists()
    ):
        return
    from penstock_cli.run.lane_choice import late_warning

    warning = late_warning(ledger, job, plan.settings)
    if warning is not None:
        plan.console.print(warning, soft_wrap=True)


def _say_where_it_stands(console: Console, ledger: Books, job: Job) -> None:
    counts = ledger.outcomes.counts(job.job_id)
    finished, total = counts.succeeded + counts.dead, job.total or 0
    if job.state.final:
        message = (
            f"job {job.job_key} is {job.state} already: {count(finished)} of {count(total)} "
            "documents finished"
        )
    elif ledger.figures_path(job).exists():
        message = f"resuming: {count(finished)} of {count(total)} already finished"
    else:
        message = f"job {job.job_key}: {count(total)} documents"
        if counts.dead:
            reasons = counts_in_words(counts.dead_by_reason)
            message += (
                f", {count(counts.dead)} of them unusable and dead letters already ({reasons})"
            )
    console.print(message, soft_wrap=True)
    if (skipped := skipped_in_words(job.source)) is not None:
        console.print(skipped, soft_wrap=True, markup=False)
