"""`penstock preview`: what a job would send and cost, before anything is spent."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock_cli.job.flags import takes_flags
from penstock_cli.job.given import GivenJob
from penstock_cli.job.options import FromJob, JsonOption, ProviderFlags, StateOption, Where


@takes_flags
def preview(
    given: GivenJob,
    provider: ProviderFlags,
    rows: Annotated[
        int, typer.Option("--rows", "-n", min=1, max=1_000, help="How many requests to show.")
    ] = 3,
    first: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Read the first N rows only, instead of all."),
    ] = None,
    as_json: JsonOption = False,
    from_job: FromJob = None,
    where: Where = None,
    state: StateOption = None,
) -> None:
    """Show the first requests of a job, its problems, tokens, cost and time.

    Reads the whole source, calls nothing, and needs no key, no database and
    no Redis; with --from-job it reads the database that has that job. Tokens
    are estimated from the first 1,000 documents.

    Exit status: 0 the job would be accepted, 2 it would not.
    """
    from penstock_cli.run.preview import look

    given = given.for_api(given.of_run("api", provider.api))
    outcomes = given.outcomes(from_job, where)
    flags = given.provider(provider)
    look(given, flags, outcomes, state=state, shown=rows, most=first, as_json=as_json)
