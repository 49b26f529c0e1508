"""The end of a `penstock run`: result files, the report, and what to do about an open job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from penstock_cli import files, result_forms
from penstock_cli.connect import Books
from penstock_cli.errors import JobStopped
from penstock_cli.run.all_alike import advice
from penstock_cli.run.check import asks_a_provider
from penstock_cli.run.request import Plan
from penstock_cli.show.figures import KeptFigures
from penstock_ledger.reasons import Code
from penstock_producer.job.lanes import packs
from penstock_producer.prices import next_budget
from penstock_producer.reporting.advice import Advice, on_terminal
from penstock_producer.reporting.money import MICRO
from penstock_producer.reporting.pauses import advice_for
from penstock_producer.reporting.text import argument, count
from penstock_producer.reporting.words import counted_batches

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_cli.show.terminal import Repetition
    from penstock_ledger.model import Job
    from penstock_producer.reporting.account import Report


def still_at_provider(ledger: Books, job: Job) -> int:
    """Return how many batches have answers that are not all read and counted."""
    from penstock_ledger import BatchState

    return sum(
        one.batches for one in ledger.provider_batches(job) if one.state is not BatchState.SETTLED
    )


def has_batch_workers(plan: Plan) -> bool:
    """Return whether this command starts workers that read them."""
    return any(packs(one.lane) for one in (plan.settings, *plan.beside))


def batches_left(plan: Plan, ledger: Books, job: Job) -> str | None:
    """Return what to say of them at the end of a run; None where there are none."""
    left = still_at_provider(ledger, job)
    if not left:
        return None
    again = (
        f"this reads them:  {plan.request.again.unchanged()}"
        if has_batch_workers(plan)
        else "a worker of their lane reads them"
    )
    return (
        f"{counted_batches(left)} of this job {'is' if left == 1 else 'are'} still at the "
        "provider. The results are complete without; what was answered there may be paid for, and "
        f"is not in the cost above. A little later, {again}"
    )


class Conclusion(NamedTuple):
    """The end of a job, and the places of its files by their purpose."""

    report: Report
    files: Mapping[str, str]
    dlq_command: str
    said: Sequence[str]  # what is left to know


def concluded(plan: Plan, ledger: Books, job: Job) -> Conclusion:
    """Write the files. Raises JobStopped for a job that is paused."""
    report, place = keep_report(plan, ledger, job)
    if not job.state.final:
        raise JobStopped(_why_stopped(plan, job, report))
    places = files.write_outputs(ledger, job, plan.request.out)
    places |= result_forms.write_tables(plan.tables, ledger, job, plan.request.out)
    command = f"penstock dlq list {argument(job.job_key)}{ledger.option()}"
    asks = asks_a_provider(plan.spec)
    url = plan.settings.provider(plan.spec.provider).shown_url if asks else None
    hints = advice(ledger, job, report, url=url, again=plan.request.again.unchanged())
    if hints:
        report = replace(report, advice=hints)
        files.write_report(report, plan.request.out)
    left = batches_left(plan, ledger, job)
    return Conclusion(report, {**places, "report": place}, command, () if left is None else (left,))


def print_conclusion(console: Console, ended: Conclusion) -> None:
    """Print the report of a run."""
    from penstock_cli.files import show

    show(
        ended.report,
        console,
        dlq_command=ended.dlq_command,
        advice=ended.report.advice,
        files=ended.files,
    )
    for line in ended.said:
        console.print(line, soft_wrap=True)


def _why_stopped(plan: Plan, job: Job, report: Report) -> str:
    """Say why the job stopped, with the command that goes on.

    With a budget that is spent it would only be paused again.
    """
    again = plan.request.again
    done = f"{count(report.finished)} of {count(report.total)} documents are finished and kept."
    message = f"job {job.job_key} is {job.state}: {job.reason or 'no reason was recorded'}. {done}"
    pause = job.pause
    code = None if pause is None else pause.code
    if code == Code.FORMAT_REFUSED:
        anew = again.changed(response_format="json_object", out=f"{plan.request.out.rstrip('/')}-2")
        return (
            f"{message} The requests of this job stay as they are; start another for example "
            f"with:  {anew}"
        )
    if code == Code.BUDGET_EXHAUSTED:
        enough = _for_all(job, report)
        return (
            f"{message} Raise --budget-usd to {enough}, a little more than all documents are "
            f"expected to cost in the end. Resume for example with:  "
            f"{again.changed(budget_usd=enough)}"
        )
    if found := advice_for(job.pause):
        advised = [_advised(one, again) for one in found]
        return "\n".join([message, *advised, f"To go on:  {again.unchanged()}"])
    is_astray = (
        pause is not None
        and code == Code.ANSWERS_ALIKE
        and pause.params.get("failure") != "forbidden"
    )
    doubt = " (with another --base-url, if that was wrong)" if is_astray else ""
    return f"{message} Once that is put right, resume with{doubt}:  {again.unchanged()}"


def _advised(one: Advice, again: Repetition) -> str:
    added = "" if one.action is None else f" (add {again.option(one.action)})"
    return f"What to do: {on_terminal(one.text)}{added}"


def still_spent(plan: Plan, ledger: Books, job: Job) -> bool:
    """Return whether a repeated command's budget pays for no further document.

    Nothing needs to start for that."""
    budget, counts = plan.spec.budget_usd, ledger.outcomes.counts(job.job_id)
    if budget is None:
        return False
    before = None if job.pause is None else job.pause.number("budget_usd")
    spent = counts.cost_microusd / MICRO
    return (before is not None and budget <= before) or budget - spent < spent / max(
        1, counts.succeeded
    )


def is_out_of_budget(job: Job) -> bool:
    return job.pause is not None and job.pause.code == Code.BUDGET_EXHAUSTED


def _for_all(job: Job, report: Report) -> str:
    """Return a budget in USD for all documents, at the mean cost so far and a tenth on top.

    It is rounded up to two significant digits, and at least what the pause says is enough, which
    has room for the next call.
    """
    enough_usd = (None if job.pause is None else job.pause.number("enough_usd")) or 0.0
    spent = report.cost_usd or 0.0
    mean = spent / max(1, report.succeeded)
    return next_budget(
        max(max(spent, spent + mean * (report.total - report.finished)) * 1.1, enough_usd)
    )


def keep_report(plan: Plan, ledger: Books, job: Job) -> tuple[Report, str]:
    """Write `report.json` as of now; returns the report and its place."""
    from penstock_cli.files import report_of

    kept = KeptFigures.load(ledger.figures_path(job))
    report = report_of(ledger, job, stats=kept.stats, seconds=kept.seconds)
    return report, files.write_report(report, plan.request.out)
