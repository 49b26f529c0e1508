"""`penstock submit`: hand a job to the configured fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from penstock_cli.job import options
from penstock_cli.job.flags import takes_flags
from penstock_cli.job.given import GivenJob

if TYPE_CHECKING:
    from penstock_ledger.model import Job


@takes_flags
def submit(
    given: GivenJob,
    job: options.Job = None,
    api: options.Api = None,
    from_job: options.FromJob = None,
    where: options.Where = None,
    dry_run: options.DryRun = False,
) -> None:
    """Submit a job to the configured fleet and print its id.

    With --from-job its documents are the outcomes of another job: those that
    died, to try them with another model, or the answers, to ask about them.

    How the provider is reached (URL, key, limits, prices) is the workers'
    setting, not the job's: name one of theirs with --provider.
    """
    from penstock_cli.connect import refuse_without_database
    from penstock_cli.job import serving
    from penstock_cli.job.hooks import check_hooks
    from penstock_cli.job.jobspec import job_spec
    from penstock_producer import Producer, SpecError
    from penstock_producer.reporting.text import safe
    from penstock_producer.settings import ProducerSettings

    given = given.for_api(given.of_run("api", api))
    outcomes = given.outcomes(from_job, where)
    if dry_run:
        from penstock_cli.run.preview import look

        look(given, options.ProviderFlags(api=api), outcomes)
        return
    spec = job_spec(given)
    check_hooks((spec.preprocess, spec.postprocess), workers_elsewhere=True)
    settings = ProducerSettings.load()
    refuse_without_database(settings)
    served = serving.look(settings, spec)
    serving.refuse_chance(served, spec)
    with Producer(settings) as producer:
        try:
            if outcomes is not None:
                accepted = producer.submit_from(
                    outcomes.job, spec, where=outcomes.where, job_key=given.key(job)
                )
            else:
                accepted = producer.submit(given.source, spec, job_key=given.key(job))
        except SpecError as error:
            raise given.refusal(error) from error
    for warning in (serving.warning(served, spec), _late(accepted)):
        if warning is not None:
            typer.echo(safe(warning), err=True)
    typer.echo(accepted.job_id)


def _late(job: Job) -> str | None:
    """Return a warning that the job is not expected to meet its deadline, where it has one."""
    if job.spec.get("deadline_s") is None:
        return None
    from penstock_cli.connect import books
    from penstock_cli.run.lane_choice import late_warning

    with books(None) as ledger:
        return late_warning(ledger, job)
