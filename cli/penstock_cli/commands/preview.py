"""`penstock preview`: the first requests of a job, as they would be sent."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock_cli.job.flags import takes_flags
from penstock_cli.job.given import GivenJob
from penstock_cli.job.options import Api, FromJob, JsonOption, StateOption, Where


@takes_flags
def preview(
    given: GivenJob,
    rows: Annotated[
        int, typer.Option("--rows", "-n", min=1, max=1_000, help="How many requests to show.")
    ] = 3,
    api: Api = None,
    as_json: JsonOption = False,
    from_job: FromJob = None,
    where: Where = None,
    state: StateOption = None,
) -> None:
    """Show the first requests of a job, their tokens and every problem.

    Looks at the first 100 rows (or as many as are shown), calls nothing,
    and needs no key, no database and no Redis; with --from-job it reads
    the database that has that job.

    Exit status: 0 all rows are usable, 2 a row, an option or the source is not.
    """
    from penstock_cli.errors import EXIT_OK
    from penstock_cli.job.counting import for_a_look, meter
    from penstock_cli.job.jobspec import job_spec
    from penstock_cli.run.preview import looked_at, outcomes_looked_at, show, show_json
    from penstock_ledger.errors import EXIT_USAGE
    from penstock_producer import SpecError

    given = given.for_api(given.of_run("api", api))
    outcomes = given.outcomes(from_job, where)
    looked, tokenizer = for_a_look(given)
    spec = job_spec(looked)
    counts = meter(spec, tokenizer)
    try:
        found = (
            looked_at(given.source, spec, rows, counts)
            if outcomes is None
            else outcomes_looked_at(outcomes, spec, rows, state, counts)
        )
    except SpecError as error:
        raise given.refusal(error) from error
    (show_json if as_json else show)(found, spec, rows)
    raise typer.Exit(EXIT_USAGE if found.problems else EXIT_OK)
