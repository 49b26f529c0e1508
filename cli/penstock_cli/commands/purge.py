"""`penstock purge`: forget a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli.errors import UsageProblem
from penstock_cli.job import options

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job


def purge(
    job: options.JobName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    leave_batches: Annotated[
        bool,
        typer.Option(
            "--leave-batches",
            help="Forget batches that still run at a provider, which charges for them.",
        ),
    ] = False,
    state: options.StateOption = None,
) -> None:
    """Delete a finished job: its results and dead letters, in SQL and Redis."""
    from penstock_cli.connect import books
    from penstock_ledger import needed_by, purge_job
    from penstock_producer.reporting.text import argument, count, safe

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        if not found.state.final:
            raise UsageProblem(
                f"job {safe(found.job_key)} is {found.state}; cancel it first: penstock cancel "
                f"{argument(job)}"
            )
        needed = needed_by(ledger.database, found.job_id)
        if needed is not None:
            raise UsageProblem(
                f"{safe(needed)} still reads the outcomes of {safe(found.job_key)}; wait until "
                "that has ended, or cancel it"
            )
        if not leave_batches:
            _refuse_open_batches(ledger, found)
        counts = ledger.outcomes.counts(found.job_id)
        question = (
            f"Delete {safe(found.job_key)} with {count(counts.succeeded)} results and "
            f"{count(counts.dead)} dead letters?"
        )
        if not yes and not typer.confirm(question):
            raise typer.Exit(0)
        rows = purge_job(ledger.database, found.job_id)
        redis = ledger.redis_if_running()
        if redis is not None:
            redis.forget(found.job_id)
        if ledger.state is not None:
            ledger.figures_path(found).unlink(missing_ok=True)
    typer.echo(f"{safe(found.job_key)} is forgotten: {count(rows)} outcomes deleted")


def _refuse_open_batches(ledger: Books, job: Job) -> None:
    """Forgotten ones would run on at their provider: nothing cancels them, and what they answer is
    paid for and not read."""
    from penstock_producer.reporting.text import argument, count, safe

    open_ones = [one for one in ledger.provider_batches(job) if one.state != "settled"]
    if open_ones:
        number, providers = (
            sum(one.batches for one in open_ones),
            ", ".join(sorted({one.provider for one in open_ones})),
        )
        raise UsageProblem(
            f"job {safe(job.job_key)} has {count(number)} batches at {safe(providers)} that are "
            "not settled; a worker of its lane cancels them there and ends them (penstock status "
            f"{argument(job.job_key)} says what they wait for), or forget them with "
            "--leave-batches and cancel them at the provider yourself"
        )
