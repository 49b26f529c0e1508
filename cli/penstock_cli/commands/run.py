"""`penstock run`: one machine, everything embedded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from penstock_cli.job.flags import takes_flags
from penstock_cli.job.given import GivenJob
from penstock_cli.job.options import ProviderFlags, RunFlags

if TYPE_CHECKING:
    from penstock_cli.run.request import RunRequest


@takes_flags
def run(given: GivenJob, typed: RunFlags, provider: ProviderFlags) -> None:
    """Run a job on this machine: everything embedded, results as files.

    The same command resumes: finished documents are skipped.

    With --from-job the documents are the outcomes of an earlier run: give
    its --state (.penstock in its --out).

    Exit status: 0 all succeeded, 3 finished with dead letters,
    2 bad usage or input, 1 failed, 130 interrupted.
    """
    from penstock_cli.errors import EXIT_DEAD_LETTERS, EXIT_OK, UsageProblem
    from penstock_cli.job.counting import for_a_look
    from penstock_cli.processes.standby import Standby
    from penstock_cli.run.request import request_of, standby_lane

    given = given.for_api(given.of_run("api", provider.api))
    outcomes = given.outcomes(typed.from_job, typed.where)
    if outcomes is not None and typed.sample is not None:
        raise UsageProblem(
            "outcomes have no sample; `penstock preview --from-job JOB --state DIR` shows the "
            "first of them, and what all would cost"
        )
    request = request_of(given, typed, provider, outcomes)
    if typed.dry_run:
        from penstock_cli.run.check import understood
        from penstock_cli.run.preview import look

        understood(replace(request, given=for_a_look(given)[0]))
        look(given, request.provider, outcomes, state=request.state)
        _tell_sample(request)
        return
    lane = standby_lane(given.lanes)
    # first of all: its imports take as long as all of this command's
    done = request.is_completed()
    if done:
        typer.echo(f"job {request.job_key} is completed already: no worker is started")
    with Standby(lane, wanted=not done) as standby:
        from penstock_cli.run.local import Terminal, run_local

        status = run_local(request, standby, Terminal())
    if typed.sample is not None and status in (EXIT_OK, EXIT_DEAD_LETTERS):
        _tell_sample(request)
    raise typer.Exit(status)


def _tell_sample(request: RunRequest) -> None:
    """Print what a sample of this job, if one was run, says about the whole job."""
    from penstock_cli.plan.extrapolated import of_sample
    from penstock_cli.show.terminal import console

    for line in of_sample(request):
        console().print(line, soft_wrap=True, markup=False)
