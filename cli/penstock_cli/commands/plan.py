"""`penstock plan`: what a fleet needs for a job to end in time."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock_cli.job import options
from penstock_cli.job.flags import takes_job_flags
from penstock_cli.job.given import GivenJob
from penstock_cli.job.options import JsonOption, ProviderFlags

PLAN = "The plan"

Documents = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="How many: 20000, 1.5k, 100M; left out, those of the source.",
        rich_help_panel=PLAN,
    ),
]
Within = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="When all must be done, e.g. 24h.", rich_help_panel=PLAN),
]
FromJob = Annotated[
    str | None,
    typer.Option(
        metavar="JOB", help="A job, or a sample, whose figures are taken.", rich_help_panel=PLAN
    ),
]
JobWorkers = Annotated[
    int,
    typer.Option(
        min=1, help="Workers that this job had, where they host a model.", rich_help_panel=PLAN
    ),
]
TokensIn = Annotated[
    float | None, typer.Option(min=0, help="Prompt tokens of a document.", rich_help_panel=PLAN)
]
TokensOut = Annotated[
    float | None, typer.Option(min=0, help="Answer tokens of a document.", rich_help_panel=PLAN)
]
Latency = Annotated[
    str | None, typer.Option(metavar="TIME", help="Of one call, e.g. 2.5s.", rich_help_panel=PLAN)
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=100_000,
        help="Worker processes; left out, as many as it takes.",
        rich_help_panel=PLAN,
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=10_000,
        help="Calls in flight in each; left out, the lane's.",
        rich_help_panel=PLAN,
    ),
]
Seed = Annotated[int, typer.Option(help="Of the simulation.", rich_help_panel=PLAN)]


@takes_job_flags
def plan(
    given: GivenJob,
    documents: Documents = None,
    within: Within = None,
    from_job: FromJob = None,
    job_workers: JobWorkers = 1,
    tokens_in: TokensIn = None,
    tokens_out: TokensOut = None,
    latency: Latency = None,
    workers: Workers = None,
    concurrency: Concurrency = None,
    seed: Seed = 0,
    state: options.StateOption = None,
    api: options.Api = None,
    base_url: options.BaseUrl = None,
    profile: options.Metering = None,
    rpm: options.Rpm = None,
    tpm: options.Tpm = None,
    itpm: options.Itpm = None,
    otpm: options.Otpm = None,
    usd_per_mtok_in: options.UsdIn = None,
    usd_per_mtok_out: options.UsdOut = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a fleet needs for a job, on each lane.

    Workers, quota, feeders, Redis, database, time and cost, from the source,
    an earlier job and measured figures, by a simulation. Nothing is called.

    Exit status: 0, or 2 where an option, the source or the job is not usable.
    """
    from penstock_cli.job.jobspec import parse_duration, with_provider
    from penstock_cli.plan.lanes import lane_plans
    from penstock_cli.plan.picture import Asked, documents_of, picture_of, tokens_of
    from penstock_cli.plan.show import show, show_json
    from penstock_producer import SpecError
    from penstock_workers.settings import WorkerSettings

    given = given.for_api(given.of_run("api", api))
    asked = Asked(
        None if documents is None else documents_of(documents),
        None if within is None else parse_duration("--within", within),
        tokens_of("--tokens-in", tokens_in),
        tokens_of("--tokens-out", tokens_out),
        None if latency is None else parse_duration("--latency", latency),
        workers,
        concurrency,
        from_job,
        job_workers,
        state,
        seed,
    )
    flags = ProviderFlags(
        base_url, None, profile, rpm, tpm, itpm, otpm, usd_per_mtok_in, usd_per_mtok_out, api
    )
    try:
        picture = picture_of(given, asked)
    except SpecError as error:
        raise given.refusal(error) from error
    spec = picture.spec
    settings = with_provider(
        WorkerSettings.load(lane=spec.first_lane),
        spec.provider,
        given.provider(flags),
        needs_key=False,
    )
    only = given.lanes if given.typed & {"lane", "lanes"} else ()
    plans = lane_plans(picture, settings, asked, only)
    (show_json if as_json else show)(picture, plans, asked)
