"""`penstock run`: one machine, everything embedded."""

from __future__ import annotations

import typer

from penstock_cli.job import options
from penstock_cli.job.flags import JobFlags, takes_job_flags
from penstock_cli.job.options import ProviderFlags


@takes_job_flags
def run(
    source: options.Source,
    out: options.Out,
    flags: JobFlags,
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
    output_format: options.OutputFormat = None,
    escape_formulas: options.EscapeFormulas = False,
    into: options.Into = None,
    into_table: options.IntoTable = None,
    state: options.LocalState = None,
    dry_run: options.DryRun = False,
    sample: options.Sample = None,
    no_progress: options.NoProgress = False,
) -> None:
    """Run a job on this machine: everything embedded, results as files.

    The same command resumes: finished documents are skipped.

    Exit status: 0 all succeeded, 3 finished with dead letters,
    2 bad usage or input, 1 failed, 130 interrupted.
    """
    from penstock_cli.job.jobspec import default_job_key
    from penstock_cli.processes.standby import Standby
    from penstock_cli.run.request import RunRequest, default_state
    from penstock_cli.run.tables import TableFlags
    from penstock_producer.job.lanes import has_own_model

    request = RunRequest(
        source=source,
        out=out,
        state=state if state is not None else default_state(out),
        job_key=job if job is not None else default_job_key(source),
        job=flags,
        provider=ProviderFlags(base_url, api_key_env, profile, rpm, tpm, itpm, otpm, usd_per_mtok_in, usd_per_mtok_out),
        workers=workers or (options.DEFAULT_ENGINES if has_own_model(flags["lane"]) else options.DEFAULT_WORKERS),
        concurrency=concurrency,
        panel=not no_progress,
        sample=sample,
        tables=TableFlags(output_format, escape_formulas, into, into_table),
    )
    if dry_run:
        from penstock_cli.run.local import dry_run as show

        raise typer.Exit(show(request))
    with Standby(flags["lane"]) as standby:  # first of all: its imports take as long as all of this command's
        from penstock_cli.run.local import run_local

        raise typer.Exit(run_local(request, standby))
