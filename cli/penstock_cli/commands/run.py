"""`penstock run`: one machine, everything embedded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock_cli import options
from penstock_cli.options import JobFlags, ProviderFlags

DEFAULT_WORKERS = 2  # one goes on while the other restarts; a single one already keeps up with most providers
DEFAULT_ENGINES = 1  # of lanes with a model of their own: each worker loads it and takes the whole machine


def run(
    source: options.Source,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder or s3://bucket/prefix for the result files.")],
    lane: options.Lane = "api",
    model: options.Model = None,
    endpoint: options.Endpoint = None,
    prompt: options.Prompt = None,
    system: options.System = None,
    id_field: options.IdField = "id",
    param: options.Param = None,
    max_attempts: options.MaxAttempts = 4,
    timeout: options.Timeout = "120s",
    deadline: options.Deadline = None,
    budget_usd: options.BudgetUsd = None,
    max_bad_rows: options.MaxBadRows = "1%",
    priority: options.Priority = "normal",
    weight: options.Weight = 1.0,
    tenant: options.Tenant = None,
    preprocess: options.Preprocess = None,
    postprocess: options.Postprocess = None,
    on_overflow: options.OnOverflow = "fail",
    prefix_order: options.PrefixOrder = None,
    response_schema: options.ResponseSchema = None,
    job: options.Job = None,
    provider: options.Provider = "default",
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
    from penstock_cli import local
    from penstock_cli.jobspec import default_job_key
    from penstock_cli.local import RunRequest, default_state, run_local
    from penstock_producer.spec import LANES_WITH_A_MODEL_OF_THEIR_OWN

    request = RunRequest(
        source=source,
        out=out,
        state=state if state is not None else default_state(out),
        job_key=job if job is not None else default_job_key(source),
        job=JobFlags(
            lane=lane,
            model=model,
            endpoint=endpoint,
            prompt=prompt,
            system=system,
            id_field=id_field,
            params=param or [],
            max_attempts=max_attempts,
            timeout=timeout,
            deadline=deadline,
            budget_usd=budget_usd,
            max_bad_rows=max_bad_rows,
            priority=priority,
            weight=weight,
            tenant=tenant,
            preprocess=preprocess,
            postprocess=postprocess,
            on_overflow=on_overflow,
            prefix_order=prefix_order,
            response_schema=response_schema,
            provider=provider,
        ),
        provider=ProviderFlags(base_url, api_key_env, profile, rpm, tpm, itpm, otpm, usd_per_mtok_in, usd_per_mtok_out),
        workers=workers or (DEFAULT_ENGINES if lane in LANES_WITH_A_MODEL_OF_THEIR_OWN else DEFAULT_WORKERS),
        concurrency=concurrency,
        panel=not no_progress,
        sample=sample,
    )
    raise typer.Exit(local.dry_run(request) if dry_run else run_local(request))
