"""`penstock submit`: hand a job to the configured fleet."""

from __future__ import annotations

import typer

from penstock_cli.job import options
from penstock_cli.job.options import JobFlags


def submit(
    source: options.Source,
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
) -> None:
    """Submit a job to the configured fleet and print its id.

    How the provider is reached (URL, key, limits, prices) is the workers'
    setting, not the job's: name one of theirs with --provider.
    """
    from penstock_cli.connect import refuse_without_database
    from penstock_cli.job.hooks import check_hooks
    from penstock_cli.job.jobspec import in_flags, job_spec
    from penstock_producer import Producer, SpecError
    from penstock_producer.settings import ProducerSettings

    spec = job_spec(
        JobFlags(
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
        )
    )
    check_hooks((spec.preprocess, spec.postprocess), workers_elsewhere=True)
    settings = ProducerSettings.load()
    refuse_without_database(settings)
    with Producer(settings) as producer:
        try:
            accepted = producer.submit(source, spec, job_key=job)
        except SpecError as error:
            raise in_flags(error) from error
    typer.echo(accepted.job_id)
