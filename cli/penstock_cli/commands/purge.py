"""`penstock purge`: forget a job."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock_cli.errors import UsageProblem
from penstock_cli.job import options


def purge(
    job: options.JobName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    state: options.StateOption = None,
) -> None:
    """Delete a finished job: its results and dead letters, in SQL and Redis."""
    from penstock_cli.connect import books
    from penstock_cli.show.text import argument, count, safe
    from penstock_ledger import purge_job

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        if not found.state.final:
            raise UsageProblem(
                f"job {safe(found.job_key)} is {found.state}; cancel it first: penstock cancel {argument(job)}"
            )
        counts = ledger.outcomes.counts(found.job_id)
        question = f"Delete {safe(found.job_key)} with {count(counts.succeeded)} results and {count(counts.dead)} dead letters?"
        if not yes and not typer.confirm(question):
            raise typer.Exit(0)
        rows = purge_job(ledger.database, found.job_id)
        redis = ledger.redis_if_running()
        if redis is not None:
            redis.forget(found.job_id)
        if ledger.state is not None:
            ledger.figures_path(found).unlink(missing_ok=True)
    typer.echo(f"{safe(found.job_key)} is forgotten: {count(rows)} outcomes deleted")
