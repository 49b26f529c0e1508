"""`penstock run`: one machine, everything embedded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock_cli.job import options
from penstock_cli.job.flags import JobFlags, takes_job_flags
from penstock_cli.job.options import ProviderFlags

DEFAULT_WORKERS = 2  # one goes on while the other restarts; a single one already keeps up with most providers
DEFAULT_ENGINES = 1  # of lanes with a model of their own: each worker loads it and takes the whole machine


@takes_job_flags
def run(
    source: options.Source,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder or s3://bucket/prefix for the result files.")],
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
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help=f"Worker processes (default: {DEFAULT_WORKERS}; with a model in them: {DEFAULT_ENGINES}).",
            rich_help_panel=options.MACHINE,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Requests in flight per worker process.", rich_help_panel=options.MACHINE),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the queue and the ledger (default: OUT/.penstock).", rich_help_panel=options.MACHINE
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check source and options, show the first requests and an estimate; nothing is called.",
            rich_help_panel=options.MACHINE,
        ),
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Only so many documents, spread over the source, as a job of its own in OUT/sample-…; "
            "the run of all takes its results over.",
            rich_help_panel=options.MACHINE,
        ),
    ] = None,
    no_progress: Annotated[
        bool, typer.Option("--no-progress", help="Lines instead of a live panel.", rich_help_panel=options.MACHINE)
    ] = False,
) -> None:
    """Run a job on this machine: everything embedded, results as files.

    The same command resumes: finished documents are skipped.

    Exit status: 0 all succeeded, 3 finished with dead letters,
    2 bad usage or input, 1 failed, 130 interrupted.
    """
    from penstock_cli.job.jobspec import default_job_key
    from penstock_cli.run.request import RunRequest, default_state
    from penstock_cli.run.standby import Standby
    from penstock_producer.lanes import has_own_model

    request = RunRequest(
        source=source,
        out=out,
        state=state if state is not None else default_state(out),
        job_key=job if job is not None else default_job_key(source),
        job=flags,
        provider=ProviderFlags(base_url, api_key_env, profile, rpm, tpm, itpm, otpm, usd_per_mtok_in, usd_per_mtok_out),
        workers=workers or (DEFAULT_ENGINES if has_own_model(flags["lane"]) else DEFAULT_WORKERS),
        concurrency=concurrency,
        panel=not no_progress,
        sample=sample,
    )
    if dry_run:
        from penstock_cli.run.local import dry_run as show

        raise typer.Exit(show(request))
    with Standby(flags["lane"], request.workers) as standby:  # first of all: their imports take as long as all of this command's
        from penstock_cli.run.local import run_local

        raise typer.Exit(run_local(request, standby))
