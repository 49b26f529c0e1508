"""`penstock schedule`: jobs that start themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock_cli import command_help
from penstock_cli.command_help import Boxed
from penstock_cli.errors import UsageProblem
from penstock_cli.job import options
from penstock_cli.job.flags import takes_flags
from penstock_cli.job.given import GivenJob
from penstock_producer.source_formats import BY_VARIABLE

if TYPE_CHECKING:
    from penstock_producer import Firing, JobSpec, OutcomesOf, Schedule, Schedules

FIRINGS_LISTED = 20
LOOKED_AT = 100  # rows of a source that is not read yet, for what is wrong with all of them
REASON_CHARS = 300
NOTICE_READ_BYTES = 2 * 1024 * 1024  # of a notification: more than one may have

app = typer.Typer(
    no_args_is_help=True, help="Jobs that start themselves: add, list, pause, resume, remove."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A schedule's name.")]
Cron = Annotated[
    str,
    typer.Argument(
        metavar="CRON",
        help=(
            'Minute, hour, day of month, month and day of week: "0 1 * * *" is every night at one.'
        ),
    ),
]
ScheduleName = Annotated[
    str | None,
    typer.Option(
        help=(
            "Names the schedule (left out: after the source). Its jobs are named after it and "
            "their time."
        )
    ),
]
Zone = Annotated[
    str,
    typer.Option(metavar="ZONE", help="The time zone of these times: Europe/Berlin, …"),
]
CatchUp = Annotated[
    str,
    typer.Option(
        metavar="POLICY",
        help="What to do about times that passed while no control process ran: skip them, start "
        "the latest once, or start all (at most 24).",
    ),
]
Overlap = Annotated[
    bool,
    typer.Option("--overlap", help="Start a job although an earlier one has not ended."),
]
NewFiles = Annotated[
    bool,
    typer.Option(
        "--new-files",
        help=(
            "SOURCE is a folder, prefix or pattern: each job has its files that no earlier job of "
            "the schedule took."
        ),
    ),
]
Events = Annotated[
    str | None,
    typer.Option(
        metavar="QUEUE",
        help="With --new-files over s3://: new files are named by notifications, from this queue "
        "of SQS (its URL), or with webhook by those that `penstock schedule notify` gets. "
        "Once a day all files are looked at.",
    ),
]
Drift = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="Compare each run with the one before: report what has moved beyond chance (dead "
        "letters, answers withheld or cut, lengths, cost), or pause the schedule then as well.",
    ),
]
DriftField = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="With --drift: a field of answers that are JSON, whose values' shares are compared.",
    ),
]


@app.command(cls=Boxed, epilog=command_help.SCHEDULE_ADD)
@takes_flags
def add(
    cron: Cron,
    given: GivenJob,
    name: ScheduleName = None,
    job: Annotated[str | None, typer.Option(hidden=True)] = None,
    from_job: options.FromJob = None,
    from_schedule: options.FromSchedule = None,
    where: options.Where = None,
    timezone: Zone = "UTC",
    catch_up: CatchUp = "once",
    overlap: Overlap = False,
    new_files: NewFiles = False,
    events: Events = None,
    drift: Drift = None,
    drift_field: DriftField = None,
) -> None:
    """Submit a source again and again, at the times of a cron expression.

    The fleet's control processes read the source: its path or URI must mean
    the same to them. It need not be there yet. With --from-schedule or
    --from-job the documents are the outcomes of another job, each time those
    that this schedule has not had.
    """
    from penstock_cli.job.given import check_hooks
    from penstock_cli.job.jobspec import default_job_key, job_spec
    from penstock_producer import SpecError
    from penstock_producer.reporting.text import safe

    if job is not None:
        raise UsageProblem(
            "--job names one job, and a schedule starts many: name the schedule with --name, and "
            "each job has the key NAME@TIME"
        )
    over = _over(given, from_job, from_schedule, where)
    spec = job_spec(given)
    check_hooks((spec.preprocess, spec.postprocess), workers_elsewhere=True)
    key = given.key(name)
    if over is not None and key is None:
        raise UsageProblem(
            "name the schedule: --name NAME, which a schedule over outcomes has from no source"
        )
    with _schedules() as schedules:
        try:
            added = schedules.add(
                key or default_job_key(given.source, spec.table),
                cron,
                given.source if over is None else over,
                spec,
                timezone=timezone,
                catch_up=catch_up,
                overlap=overlap,
                new_files=new_files,
                events=events,
                drift=drift,
                drift_field=drift_field,
            )
        except SpecError as error:
            raise given.refusal(error) from error
    typer.echo(
        f"{added.name} starts at {_shown(added, added.next_at)}, and then by {added.cron} "
        f"{added.timezone}"
    )
    trouble = _trouble(given.source, spec) if over is None else None
    if trouble is not None:
        typer.echo(
            safe(f"penstock: as it is here now, the source could not be used: {trouble}"), err=True
        )


def _over(
    given: GivenJob, job: str | None, schedule: str | None, where: list[str] | None
) -> OutcomesOf | None:
    """Return whose outcomes are read; None where a source is."""
    from penstock_producer import OutcomesOf

    names = "--from-job JOB or --from-schedule NAME"
    if schedule is None:
        found = given.outcomes(job, where, names)
        return None if found is None else OutcomesOf(found.job, None, found.where)
    if given.source_typed:
        raise UsageProblem(f"give a SOURCE, or {names} with or without --where, and not both")
    return OutcomesOf(job, schedule, where or ())


def _trouble(source: str, spec: JobSpec) -> str | None:
    """Return what the job would fail with if this were its time.

    The source may be another one by then, so nothing is refused."""
    from penstock_ledger.errors import PenstockError
    from penstock_producer.accepting.estimates import TokenMeter
    from penstock_producer.accepting.sampling import preview
    from penstock_producer.reporting.advice import on_terminal
    from penstock_producer.settings import ProducerSettings
    from penstock_producer.sources import open_source

    if "://" in source or source.startswith(BY_VARIABLE):
        return None  # the control processes may have rights and addresses that this machine has not
    try:
        settings = ProducerSettings.load()
        opened = open_source(source, spec, settings)
        found = preview(opened, spec, settings.prices, 1, most=LOOKED_AT, meter=TokenMeter())
    except PenstockError as error:
        return on_terminal(error.text)
    return None if found.requests else on_terminal(found.refused[0].text)


@app.command(name="list", epilog=command_help.SCHEDULE_LIST)
def list_schedules(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Show only this schedule, with what came of its times."
        ),
    ] = None,
    as_json: options.JsonOption = False,
    state: options.StateOption = None,
) -> None:
    """List schedules: when each starts next, what came of the last time, and what it waits for."""
    import orjson

    with _schedules(state) as schedules:
        found = schedules.list() if name is None else [schedules.get(name)]
        number = 1 if name is None else FIRINGS_LISTED
        rows = [(schedule, schedules.firings(schedule.name, number)) for schedule in found]
    if as_json:
        for schedule, firings in rows:
            typer.echo(orjson.dumps(_as_json(schedule, firings)).decode())
    elif not rows:
        typer.echo("no schedules yet: penstock schedule add")
    elif name is None:
        _print_all(rows)
    else:
        _print_one(*rows[0])


@app.command(epilog=command_help.SCHEDULE_PAUSE)
def pause(name: Name) -> None:
    """Start no more jobs until `resume`; those that run go on."""
    with _schedules() as schedules:
        changed = schedules.pause(name)
    typer.echo(f"{name} is paused" if changed else f"{name} was paused already")


@app.command(epilog=command_help.SCHEDULE_RESUME)
def resume(name: Name) -> None:
    """Go on with the next time from now; those that passed meanwhile do not count as missed."""
    with _schedules() as schedules:
        changed = schedules.resume(name)
        found = schedules.get(name)
    typer.echo(
        f"{name} {'starts next' if changed else 'was not paused; it starts'} at "
        f"{_shown(found, found.next_at)}"
    )


@app.command(epilog=command_help.SCHEDULE_REMOVE)
def remove(name: Name) -> None:
    """Forget a schedule; its jobs stay."""
    with _schedules() as schedules:
        schedules.remove(name)
    typer.echo(f"{name} is removed")


@app.command(epilog=command_help.SCHEDULE_NOTIFY)
def notify(
    name: Name,
    body: Annotated[
        typer.FileBinaryRead,
        typer.Argument(
            metavar="[FILE]", help="The notification as it came; - reads it from stdin."
        ),
    ] = "-",  # type: ignore[assignment]  # Typer opens what is named
) -> None:
    """Take a notification of a bucket for a schedule with --events webhook.

    Prints what came of its records: noticed, repeated, elsewhere, deleted,
    other, test, no_room or unreadable. A notification that comes twice
    changes nothing.

    Exit status: 0, 2 it is no notification, 1 send it again later (no_room).
    """
    from penstock_cli.errors import EXIT_FAILED
    from penstock_ledger.errors import EXIT_USAGE

    with _schedules() as schedules:
        counts = schedules.notify(name, body.read(NOTICE_READ_BYTES))
    typer.echo(", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items())))
    if "unreadable" in counts:
        raise typer.Exit(EXIT_USAGE)
    if "no_room" in counts:
        raise typer.Exit(EXIT_FAILED)


@contextlib.contextmanager
def _schedules(state: Path | None = None) -> Iterator[Schedules]:
    from penstock_cli.connect import refuse_without_database
    from penstock_cli.state import StateFolder
    from penstock_producer import Producer
    from penstock_producer.settings import ProducerSettings

    settings = ProducerSettings.load()
    if state is not None:
        url = StateFolder.existing(state).database_url
        settings = settings.model_copy(update={"database_url": url})
    refuse_without_database(settings)
    with Producer(settings) as producer:
        yield producer.schedules


def _print_all(rows: list[tuple[Schedule, list[Firing]]]) -> None:
    from penstock_cli.show.terminal import print_aligned

    print_aligned(["schedule", "when", "next", "last"], [_row(*row) for row in rows])


def _row(schedule: Schedule, firings: list[Firing]) -> list[str]:
    last = _in_words(schedule, firings[0]) if firings else "not started yet"
    return [schedule.name, f"{schedule.cron} {schedule.timezone}", _next(schedule), last]


def _print_one(schedule: Schedule, firings: list[Firing]) -> None:
    from penstock_producer.reporting.text import safe
    from penstock_producer.schedules.timetable import shown_source

    overlap = "may overlap" if schedule.overlap else "no overlap"
    typer.echo(
        f"{schedule.name}  {schedule.cron} {schedule.timezone}  catch-up {schedule.catch_up}, "
        f"{overlap}"
    )
    typer.echo(f"source: {safe(shown_source(schedule))}")
    typer.echo(f"next: {_next(schedule)}")
    for firing in firings:
        typer.echo(_in_words(schedule, firing))


def _next(schedule: Schedule) -> str:
    """Say when the schedule starts next, or why not."""
    from penstock_producer.reporting.text import one_line

    shown = _shown(schedule, schedule.next_at)
    if schedule.paused:
        return "paused"
    if schedule.waits_for:
        return f"{shown} waits: {one_line(schedule.waits_for, REASON_CHARS)}"
    return f"{shown} is being started by {schedule.owner}" if schedule.owner else shown


def _in_words(schedule: Schedule, firing: Firing) -> str:
    from penstock_producer.reporting.text import one_line
    from penstock_producer.reporting.words import moves_in_words

    shown = f"{_shown(schedule, firing.planned_at)} {firing.outcome}"
    if firing.job_id is not None:
        moves = "; ".join(moves_in_words(firing.drift or {}))
        paused = " (paused the schedule)" if (firing.drift or {}).get("paused") else ""
        moved = f"; moved{paused}: {moves}" if moves else ""
        return f"{shown} {firing.job_id} ({firing.job_state or 'purged'}){moved}"
    return f"{shown}: {one_line(firing.reason or '', REASON_CHARS)}"


def _shown(schedule: Schedule, at: float) -> str:
    from penstock_producer.schedules.timetable import Timetable

    return Timetable(schedule.cron, schedule.timezone).shown(at)


def _as_json(schedule: Schedule, firings: list[Firing]) -> dict[str, Any]:
    return {
        "schedule": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "catch_up": schedule.catch_up,
        "overlap": schedule.overlap,
        "paused": schedule.paused,
        "next_at": schedule.next_at,
        "waits_for": schedule.waits_for,
        "drift": None if schedule.drift is None else asdict(schedule.drift),
        "source": schedule.source,
        "spec": schedule.spec,
        "firings": [
            {
                "planned_at": firing.planned_at,
                "outcome": firing.outcome,
                "job_id": firing.job_id,
                "job_state": firing.job_state,
                "reason": firing.reason,
                "drift": firing.drift,
            }
            for firing in firings
        ],
    }
