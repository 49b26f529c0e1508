"""`penstock run`: one machine, everything embedded."""

from __future__ import annotations

from pathlib import Path

import typer

from penstock_cli.job import options
from penstock_cli.job.flags import takes_job_flags
from penstock_cli.job.given import GivenJob
from penstock_cli.job.options import ProviderFlags


@takes_job_flags
def run(
    given: GivenJob,
    out: options.Out = None,
    job: options.Job = None,
    base_url: options.BaseUrl = None,
    api_key_env: options.ApiKeyEnv = None,
    profile: options.Metering = None,
    rpm: options.Rpm = None,
    tpm: options.Tpm = None,
    itpm: options.Itpm = None,
    otpm: options.Otpm = None,
    usd_per_mtok_in: options.UsdIn = None,
    usd_per_mtok_out: options.UsdOut = None,
    workers: options.Workers = None,
    concurrency: options.Concurrency = None,
    state: options.LocalState = None,
    dry_run: options.DryRun = False,
    sample: options.Sample = None,
    no_progress: options.NoProgress = False,
    from_job: options.FromJob = None,
    where: options.Where = None,
) -> None:
    """Run a job on this machine: everything embedded, results as files.

    The same command resumes: finished documents are skipped.

    With --from-job the documents are the outcomes of an earlier run: give
    its --state (.penstock in its --out).

    Exit status: 0 all succeeded, 3 finished with dead letters,
    2 bad usage or input, 1 failed, 130 interrupted.
    """
    from penstock_cli.errors import UsageProblem
    from penstock_cli.job.jobspec import job_spec
    from penstock_cli.processes.standby import Standby
    from penstock_cli.run.request import RunRequest, default_state
    from penstock_producer.job.lanes import has_own_model
    from penstock_producer.job.run_options import DEFAULT_ENGINES, DEFAULT_WORKERS

    out = given.of_run("out", out)
    if out is None:
        raise UsageProblem("say where the results go: --out DIR, or run: {out: DIR} in a job spec file")
    outcomes = given.outcomes(from_job, where)
    if outcomes is not None and (sample is not None or dry_run):
        raise UsageProblem("a sample or a dry run of outcomes is `penstock preview --from-job JOB --state DIR`")
    if given.file is not None:
        job_spec(given)  # a file has any value anywhere; flags have been looked at by now
    state = given.of_run("state", state)
    lane = given.flags["lane"]
    provider = ProviderFlags(base_url, api_key_env, profile, rpm, tpm, itpm, otpm, usd_per_mtok_in, usd_per_mtok_out)
    request = RunRequest(
        out=out,
        state=Path(state) if state is not None else default_state(out),
        job_key=given.key(job) or _default_key(given, from_job),
        given=given,
        provider=given.provider(provider),
        workers=given.of_run("workers", workers) or (DEFAULT_ENGINES if has_own_model(lane) else DEFAULT_WORKERS),
        concurrency=given.of_run("concurrency", concurrency),
        panel=not given.of_run("no_progress", no_progress or None),
        sample=given.of_run("sample", sample),
        outcomes=outcomes,
    )
    if dry_run:
        from penstock_cli.run.local import dry_run as show

        raise typer.Exit(show(request))
    with Standby(lane) as standby:  # first of all: its imports take as long as all of this command's
        from penstock_cli.run.local import run_local

        raise typer.Exit(run_local(request, standby))


def _default_key(given: GivenJob, from_job: str | None) -> str:
    """Of the file or table that is read, so that the same command resumes; a second pass is named after the first."""
    from penstock_cli.job.jobspec import default_job_key

    if from_job is not None and given.file is None:
        return f"{default_job_key(from_job)}-again"
    return default_job_key(given.source if given.file is None else given.file.path, given.flags["table"])
