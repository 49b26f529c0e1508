"""What is done to a job: `penstock pause`, `resume`, `cancel`, `move`, `purge`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli.job import options
from penstock_producer.reporting.advice import on_terminal

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job


def pause(
    job: options.JobName,
    reason: Annotated[
        str, typer.Option(help="The reason that `penstock status` shows.")
    ] = "paused by `penstock pause`",
    state: options.StateOption = None,
) -> None:
    """Stop dispatching a job; what is in flight finishes."""
    from penstock_cli.connect import books

    with books(state) as ledger:
        _say_state(ledger, ledger.operations.pause(ledger.jobs.get(job), reason).job)


def resume(
    job: options.JobName,
    budget_usd: Annotated[
        float | None,
        typer.Option(
            "--budget-usd",
            min=0,
            help="The budget of the whole job from now on; what is spent already counts.",
        ),
    ] = None,
    state: options.StateOption = None,
) -> None:
    """Let a paused job go on; a pause or a hold of its provider ends, too."""
    from penstock_cli.connect import books
    from penstock_cli.run.watch import resumed
    from penstock_producer.reporting.text import safe

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        if budget_usd is not None:
            found = ledger.operations.limit(found, {"budget_usd": budget_usd}).job
            typer.echo(f"the budget of {safe(found.job_key)} is {budget_usd:g} USD now")
        _say_state(ledger, resumed(ledger, found, typer.echo))


def cancel(job: options.JobName, state: options.StateOption = None) -> None:
    """End a job: what is not done becomes dead letters `cancelled`."""
    from penstock_cli.connect import books

    with books(state) as ledger:
        note = "cancelled by `penstock cancel`"
        _say_state(ledger, ledger.operations.cancel(ledger.jobs.get(job), note).job)


def move(
    job: options.JobName,
    lane: Annotated[
        str, typer.Argument(help="The lane that its documents go to from now on.", metavar="LANE")
    ],
    reason: Annotated[
        str, typer.Option(help="The reason, which is shown with the job.")
    ] = "moved by `penstock move`",
    state: options.StateOption = None,
) -> None:
    """Let a running job go on in another lane.

    What is done stays, and what is under way is not lost."""
    from penstock_cli.connect import books
    from penstock_producer.reporting.reasons import no_worker
    from penstock_producer.reporting.text import safe

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        ledger.operations.move(found, lane, reason)
        typer.echo(f"{safe(found.job_key)} goes on in lane {lane}; it was in {found.lane}")
        redis = ledger.redis_if_running()
        missing = None if redis is None else no_worker(redis.workers(), lane)
        if missing is not None:
            typer.echo(on_terminal(missing.said))


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
    from penstock_producer.reporting.text import count, safe

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        ledger.operations.check_purge(found, leave_batches=leave_batches)
        counts = ledger.outcomes.counts(found.job_id)
        question = (
            f"Delete {safe(found.job_key)} with {count(counts.succeeded)} results and "
            f"{count(counts.dead)} dead letters?"
        )
        if not yes and not typer.confirm(question):
            raise typer.Exit(0)
        deleted = ledger.operations.purge(found, leave_batches=leave_batches)
        if ledger.state is not None:
            ledger.figures_path(found).unlink(missing_ok=True)
    typer.echo(f"{safe(found.job_key)} is forgotten: {count(deleted)} outcomes deleted")


def _say_state(ledger: Books, job: Job) -> None:
    from penstock_producer.reporting.text import safe

    typer.echo(f"{safe(job.job_key)} is {job.state}")
    runs = ledger.state is None or ledger.redis_if_running() is not None
    if not runs and job.state in ("running", "cancelling"):
        typer.echo("nothing runs on this state now: repeat its `penstock run` command to go on")
