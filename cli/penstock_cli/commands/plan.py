"""`penstock plan`: what a fleet needs for a job to end in time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock_cli.job import options
from penstock_cli.job.flags import takes_flags
from penstock_cli.job.given import GivenJob
from penstock_cli.job.options import JsonOption, ProviderFlags
from penstock_producer.job.lanes import packs
from penstock_producer.planning.flow import Figure
from penstock_producer.reporting.text import count, counted, duration, safe, usd

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_cli.job.lane_needs import LanePlan
    from penstock_cli.job.picture import Asked, Picture
    from penstock_producer.planning.sizing import Planned


Documents = Annotated[
    str | None,
    typer.Option(
        metavar="N", help="How many documents: 20000, 1.5k, 100M; by default those of the source."
    ),
]
Within = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="The time in which all must be done, e.g. 24h."),
]
FromJob = Annotated[
    str | None,
    typer.Option(metavar="JOB", help="Take the figures of this job or sample."),
]
JobWorkers = Annotated[
    int,
    typer.Option(min=1, help="How many workers that job had, where they host a model."),
]
TokensIn = Annotated[float | None, typer.Option(min=0, help="Prompt tokens of one document.")]
TokensOut = Annotated[float | None, typer.Option(min=0, help="Answer tokens of one document.")]
Latency = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="How long one call takes, e.g. 2.5s."),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, max=100_000, help="Worker processes; by default as many as it takes."),
]
Concurrency = Annotated[
    int | None,
    typer.Option(min=1, max=10_000, help="Calls in flight in each worker; by default the lane's."),
]
Seed = Annotated[int, typer.Option(help="Seed of the simulation.")]


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """The options of `penstock plan` itself."""

    documents: Documents = None
    within: Within = None
    from_job: FromJob = None
    job_workers: JobWorkers = 1
    tokens_in: TokensIn = None
    tokens_out: TokensOut = None
    latency: Latency = None
    workers: Workers = None
    concurrency: Concurrency = None
    seed: Seed = 0
    state: options.StateOption = None


@takes_flags
def plan(
    given: GivenJob,
    typed: PlanFlags,
    provider: ProviderFlags,
    as_json: JsonOption = False,
) -> None:
    """Show what a fleet needs for a job, on each lane.

    Workers, quota, feeders, Redis, database, time and cost, from the source,
    an earlier job and measured figures, by a simulation. Nothing is called.

    Exit status: 0, or 2 where an option, the source or the job is not usable.
    """
    from penstock_cli.job.jobspec import parse_duration, with_provider
    from penstock_cli.job.lane_needs import lane_plans
    from penstock_cli.job.picture import Asked, documents_of, picture_of, tokens_of
    from penstock_producer import SpecError
    from penstock_workers.settings import WorkerSettings

    given = given.for_api(given.of_run("api", provider.api))
    asked = Asked(
        None if typed.documents is None else documents_of(typed.documents),
        None if typed.within is None else parse_duration("--within", typed.within),
        tokens_of("--tokens-in", typed.tokens_in),
        tokens_of("--tokens-out", typed.tokens_out),
        None if typed.latency is None else parse_duration("--latency", typed.latency),
        typed.workers,
        typed.concurrency,
        typed.from_job,
        typed.job_workers,
        typed.state,
        typed.seed,
    )
    try:
        picture = picture_of(given, asked)
    except SpecError as error:
        raise given.refusal(error) from error
    spec = picture.spec
    settings = with_provider(
        WorkerSettings.load(lane=spec.first_lane),
        spec.provider,
        given.provider(provider),
        needs_key=False,
    )
    only = given.lanes if given.typed & {"lane", "lanes"} else ()
    plans = lane_plans(picture, settings, asked, only)
    (show_json if as_json else show)(picture, plans, asked)


UNKNOWN: Final = "unknown"
_GB: Final = 10**9


def show(picture: Picture, plans: Sequence[LanePlan], asked: Asked) -> None:

    from penstock_cli.show.terminal import console as make_console
    from penstock_cli.show.terminal import plain_table

    console = make_console()
    within = "" if asked.within_s is None else f" within {duration(asked.within_s)}"
    console.print(f"{counted(picture.documents, 'document')}{within}", soft_wrap=True)
    table = plain_table("lane", "time", "cost", "workers", "bounded by")
    for plan in plans:
        table.add_row(plan.lane, _time(plan.planned), _cost(plan), _workers(plan), _bound(plan))
    console.print(table)
    for plan in plans:
        if plan.planned is not None:
            _needs(console, plan, plan.planned)
    console.print("assumed:", style="dim")
    for line in _assumptions(picture, plans):
        console.print(f"  {safe(line)}", style="dim", soft_wrap=True)
    console.print("nothing was started, and no call was made", style="dim")


def show_json(picture: Picture, plans: Sequence[LanePlan], asked: Asked) -> None:
    """Print for programs; null is unknown."""
    shown = {
        "documents": picture.documents,
        "within_s": asked.within_s,
        "tokens_in": picture.tokens_in,
        "tokens_out": picture.tokens_out,
        "seed": asked.seed,
        "assumptions": [one._asdict() for one in picture.assumptions],
        "lanes": [plan.to_json() for plan in plans],
    }
    typer.echo(json.dumps(shown))


def _time(planned: Planned | None) -> str:
    if planned is None:
        return UNKNOWN
    late = " (too late)" if planned.in_time is False else ""
    return f"{duration(planned.seconds)}{late}"


def _cost(plan: LanePlan) -> str:
    return UNKNOWN if plan.cost_usd is None else f"about {usd(plan.cost_usd)}"


def _workers(plan: LanePlan) -> str:
    if plan.planned is None:
        return UNKNOWN
    if packs(plan.lane):
        return f"{count(plan.planned.workers)}, batches: {count(plan.planned.batches)}"
    return f"{count(plan.planned.workers)} with {count(plan.planned.concurrency)} slots"


def _bound(plan: LanePlan) -> str:
    return safe(plan.why) if plan.planned is None else plan.planned.binding


def _needs(console: Console, plan: LanePlan, planned: Planned) -> None:
    quota = ", ".join(
        f"{number:,.0f} {unit}{_per(unit)}" for unit, number in planned.quota_needed.items()
    )
    parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in planned.phases.items())
    lines = [
        f"{planned.per_second:,.1f} documents a second; {parts}",
        *([f"quota: {quota}"] if quota else []),
        *([] if packs(plan.lane) else [f"feeders: {planned.feeders}"]),
        f"Redis {_size(plan.redis_bytes)}; database {_size(plan.postgres_bytes)} in PostgreSQL, "
        f"{_size(plan.sqlite_bytes)} in SQLite",
        f"to go faster: {planned.relief}",
    ]
    console.print(f"{plan.lane}:", soft_wrap=True)
    for line in lines:
        console.print(f"  {safe(line)}", soft_wrap=True)


def _per(unit: str) -> str:
    return " at once" if unit.startswith("enqueued") else " a minute"


def _size(size: int | None) -> str:
    if size is None:
        return UNKNOWN
    return f"{size / _GB:,.1f} GB" if size >= _GB else f"{size / 10**6:,.0f} MB"


def _assumptions(picture: Picture, plans: Sequence[LanePlan]) -> list[str]:
    """Return the assumptions, those of the job first; what several lanes assume is said once."""
    lines = [_line(one, "") for one in picture.assumptions]
    known = [set(plan.assumptions) for plan in plans if plan.planned is not None]
    shared: set[Figure] = set.intersection(*known) if known else set()
    for plan in plans:
        lines += [_line(one, f"{plan.lane}, ") for one in plan.assumptions if one not in shared]
    first = next((plan for plan in plans if plan.planned is not None), None)
    if first is not None:
        lines += [_line(one, "") for one in first.assumptions if one in shared]
    return lines


def _line(one: Figure, lane: str) -> str:
    value = (
        f"{one.value:,.0f}"
        if one.value >= 100 or one.value == round(one.value)
        else f"{one.value:,.3g}"
    )
    unit = f" {one.unit}" if one.unit else ""
    return f"{lane}{one.name}: {value}{unit} ({one.source})"
