"""`penstock status` and `jobs`, and what is done to a job: `pause`, `resume`, `cancel` and more."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock_cli.errors import EXIT_INTERRUPTED, Interrupted
from penstock_cli.job import options
from penstock_ledger.job_state import JobState

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_cli.connect import Books
    from penstock_cli.show.figures import JobFigures
    from penstock_ledger import WorkerSeen
    from penstock_ledger.model import Counts, Job
from typing import TYPE_CHECKING

from penstock_producer.reporting.advice import on_terminal

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job


WATCH_EVERY_S = 1.0
WATCH_HINT = "Ctrl-C ends the watching; the job goes on"
MAX_JOBS_LISTED = 1000
MAX_KEY_CHARS = 200  # keys and ids are shown whole, to be copied into the next command
REASON_CHARS = 800  # of what a provider said, or of a budget with the command that helps


def status(
    job: options.JobName,
    watch: Annotated[bool, typer.Option("--watch", help="Follow until the job ends.")] = False,
    as_json: options.JsonOption = False,
    state: options.StateOption = None,
) -> None:
    """Show how far a job is."""
    from penstock_cli.connect import books
    from penstock_cli.run.watch import Watch
    from penstock_cli.show.progress import for_console
    from penstock_cli.show.terminal import console as make_console

    with books(state) as ledger:
        watched = Watch(ledger, ledger.jobs.get(job))
        if as_json:
            typer.echo(_as_json(ledger, watched.job, watched.look()))
            return
        console = make_console()
        if not watch:
            _print_status(console, watched.job, watched.look(), ledger)
            return
        try:
            with for_console(console, watched.job.job_key, panel=True, hint=WATCH_HINT) as progress:
                while not watched.job.state.final and watched.job.state != "paused":
                    progress.show(watched.look())
                    time.sleep(WATCH_EVERY_S)
                    watched.refresh()
        except Interrupted:
            raise typer.Exit(EXIT_INTERRUPTED) from None  # the hint has said what it means
        finally:
            _print_status(console, watched.job, watched.look(), ledger)


def _print_status(console: Console, job: Job, figures: JobFigures, ledger: Books) -> None:
    from rich.text import Text

    from penstock_cli.show.progress import final_line, line, reason_lines
    from penstock_producer.reporting.account import lane_line, rules_of
    from penstock_producer.reporting.advice import on_terminal
    from penstock_producer.reporting.by_rules import rule_lines
    from penstock_producer.reporting.engines import engines_line
    from penstock_producer.reporting.pauses import pause_lines
    from penstock_producer.reporting.reasons import INTERRUPTED, interrupted_line
    from penstock_producer.reporting.text import argument, one_line, safe
    from penstock_producer.reporting.words import feeders_line, from_job_line, started_by_line

    reason = f" ({one_line(job.reason, REASON_CHARS)})" if job.reason else ""
    is_left = bool(_interrupted(ledger, [job]))
    console.print(
        Text(
            f"{safe(job.job_key)}  {INTERRUPTED if is_left else job.state}{reason}  generation "
            f"{job.generation}  id {job.job_id}"
        ),
        soft_wrap=True,
    )
    if is_left:
        said = interrupted_line(job, one_machine=ledger.database.is_sqlite)
        console.print(Text(said), soft_wrap=True)
        results = f"penstock results {argument(job.job_key)}{ledger.option()}"
        console.print(Text(f"its results so far:  {results}"), soft_wrap=True)
    feeders = feeders_line(
        job, ledger.jobs.shards(job.job_id), one_machine=ledger.database.is_sqlite
    )
    for told in filter(
        None, (started_by_line(job), from_job_line(job), feeders, lane_line(ledger.moves(job)))
    ):
        console.print(Text(told), soft_wrap=True)
    if (rules := rules_of(ledger.database, job)) is not None:
        for sentence in rule_lines(*rules):
            console.print(Text(safe(on_terminal(sentence))), soft_wrap=True)
    for sentence in pause_lines(job, ledger.option()):
        console.print(Text(sentence), soft_wrap=True)
    console.print(Text(final_line(figures) if job.state.final else line(figures)), soft_wrap=True)
    for sentence in reason_lines(figures):
        console.print(Text(sentence), soft_wrap=True)
    if figures.engines is not None and not job.state.final:
        console.print(Text(engines_line(figures.engines)), soft_wrap=True)
    if job.state.final and figures.dead:
        for sentence in _what_died(job, ledger):
            console.print(Text(sentence), soft_wrap=True)


def _interrupted(ledger: Books, jobs: Sequence[Job]) -> set[str]:
    from penstock_producer.reporting.reasons import interrupted

    def workers() -> Sequence[WorkerSeen] | None:
        redis = ledger.redis_if_running()
        return None if redis is None else redis.workers()

    return interrupted(ledger.database, jobs, workers)


def _what_died(job: Job, ledger: Books) -> list[str]:
    from penstock_cli.run.all_alike import advice
    from penstock_producer.reporting.account import build
    from penstock_producer.reporting.text import argument

    alike = advice(ledger, job, build(job, ledger.outcomes.counts(job.job_id), stats={}))
    return [*alike, f"list them:  penstock dlq list {argument(job.job_key)}{ledger.option()}"]


def _as_json(ledger: Books, job: Job, figures: JobFigures) -> str:
    import orjson

    from penstock_cli.files import report_of
    from penstock_cli.run.all_alike import with_advice
    from penstock_producer.job.lanes import packs
    from penstock_producer.reporting.advice import on_terminal
    from penstock_producer.reporting.batches import batches_of
    from penstock_producer.reporting.engines import engines_of
    from penstock_producer.reporting.pauses import serialize_pause
    from penstock_producer.reporting.words import feeders_of

    redis = ledger.redis_if_running()
    engines = engines_of(redis.workers(), job.lane) if redis is not None else None
    report = report_of(ledger, job)
    if job.state.final:
        report = with_advice(ledger, job, report)
    extra: dict[str, Any] = {
        "job_id": job.job_id,
        "reason": job.reason,
        "pause": None if job.pause is None else serialize_pause(job.pause, on_terminal),
        "resume_at": job.resume_at,
        "generation": job.generation,
        "started_by": job.source.get("started_by"),
        "from_job": _from_job(job),
        "feeders": feeders_of(ledger.jobs.shards(job.job_id)),
        "reasons": figures.reasons,
        "last_failure": figures.cause,
    }
    if packs(job.lane):
        extra["provider_batches"] = batches_of(ledger.provider_batches(job))
    if engines is not None:
        extra["engines"] = engines.to_json()
    return orjson.dumps(report.to_json() | extra).decode()


def _from_job(job: Job) -> dict[str, Any] | None:
    if job.source.get("kind") != "job":
        return None
    return {name: job.source[name] for name in ("job_id", "generation", "where")}


def list_jobs(
    limit: Annotated[
        int, typer.Option(min=1, max=MAX_JOBS_LISTED, help="At most this many, newest first.")
    ] = 50,
    status: Annotated[
        list[JobState] | None, typer.Option(help="Only jobs in this state. Repeatable.")
    ] = None,
    search: Annotated[
        str, typer.Option(metavar="TEXT", help="Only jobs with this in their key or id.")
    ] = "",
    as_json: options.JsonOption = False,
    state: options.StateOption = None,
) -> None:
    """List jobs, newest first."""
    import orjson

    from penstock_cli.connect import books
    from penstock_cli.show.terminal import print_aligned
    from penstock_ledger import JobPages

    with books(state) as ledger:
        rows = (
            JobPages(ledger.database).page(states=status or None, search=search, limit=limit).jobs
        )
        left = set[str]() if as_json else _interrupted(ledger, [job for job, _ in rows])
    if as_json:
        for job, counts in rows:
            typer.echo(
                orjson.dumps(
                    {
                        "job": job.job_key,
                        "job_id": job.job_id,
                        "state": job.state,
                        "total": job.total,
                        "succeeded": counts.succeeded,
                        "dead": counts.dead,
                        "created_at": job.created_at,
                    }
                ).decode()
            )
        return
    if not rows:
        typer.echo("no such jobs" if status or search else "no jobs yet")
        return
    print_aligned(
        ["id", "job", "state", "finished", "of", "dead", "submitted"],
        [_row(job, counts, left) for job, counts in rows],
    )


def _row(job: Job, counts: Counts, left: Set[str]) -> list[str]:
    from penstock_producer.reporting.reasons import INTERRUPTED
    from penstock_producer.reporting.text import count, one_line, percent

    finished = counts.succeeded + counts.dead
    state = INTERRUPTED if job.job_id in left else str(job.state)
    return [
        job.job_id,
        one_line(job.job_key, MAX_KEY_CHARS),
        f"{state}: {one_line(job.reason, 40)}" if job.reason else state,
        percent(finished, job.total) if job.total is not None else count(finished),
        count(job.total) if job.total is not None else "open",
        count(counts.dead),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(job.created_at)),
    ]


def pause(
    job: options.JobName,
    reason: Annotated[
        str, typer.Option(help="The reason that `penstock status` shows.")
    ] = "paused by `penstock pause`",
    state: options.StateOption = None,
) -> None:
    """Stop dispatching a job; what is in flight finishes."""
    from penstock_cli.connect import books

    with books(state) as ledger:
        _say_state(ledger, ledger.operations.pause(ledger.jobs.get(job), reason).job)


def resume(
    job: options.JobName,
    budget_usd: Annotated[
        float | None,
        typer.Option(
            "--budget-usd",
            min=0,
            help="The budget of the whole job from now on; what is spent already counts.",
        ),
    ] = None,
    state: options.StateOption = None,
) -> None:
    """Let a paused job go on; a pause or a hold of its provider ends, too."""
    from penstock_cli.connect import books
    from penstock_cli.run.watch import resumed
    from penstock_producer.reporting.text import safe

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        if budget_usd is not None:
            found = ledger.operations.limit(found, {"budget_usd": budget_usd}).job
            typer.echo(f"the budget of {safe(found.job_key)} is {budget_usd:g} USD now")
        _say_state(ledger, resumed(ledger, found, typer.echo))


def cancel(job: options.JobName, state: options.StateOption = None) -> None:
    """End a job: what is not done becomes dead letters `cancelled`."""
    from penstock_cli.connect import books

    with books(state) as ledger:
        note = "cancelled by `penstock cancel`"
        _say_state(ledger, ledger.operations.cancel(ledger.jobs.get(job), note).job)


def move(
    job: options.JobName,
    lane: Annotated[
        str, typer.Argument(help="The lane that its documents go to from now on.", metavar="LANE")
    ],
    reason: Annotated[
        str, typer.Option(help="The reason, which is shown with the job.")
    ] = "moved by `penstock move`",
    state: options.StateOption = None,
) -> None:
    """Let a running job go on in another lane.

    What is done stays, and what is under way is not lost."""
    from penstock_cli.connect import books
    from penstock_producer.reporting.reasons import no_worker
    from penstock_producer.reporting.text import safe

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        ledger.operations.move(found, lane, reason)
        typer.echo(f"{safe(found.job_key)} goes on in lane {lane}; it was in {found.lane}")
        redis = ledger.redis_if_running()
        missing = None if redis is None else no_worker(redis.workers(), lane)
        if missing is not None:
            typer.echo(on_terminal(missing.said))


def purge(
    job: options.JobName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    leave_batches: Annotated[
        bool,
        typer.Option(
            "--leave-batches",
            help="Forget batches that still run at a provider, which charges for them.",
        ),
    ] = False,
    state: options.StateOption = None,
) -> None:
    """Delete a finished job: its results and dead letters, in SQL and Redis."""
    from penstock_cli.connect import books
    from penstock_producer.reporting.text import count, safe

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        ledger.operations.check_purge(found, leave_batches=leave_batches)
        counts = ledger.outcomes.counts(found.job_id)
        question = (
            f"Delete {safe(found.job_key)} with {count(counts.succeeded)} results and "
            f"{count(counts.dead)} dead letters?"
        )
        if not yes and not typer.confirm(question):
            raise typer.Exit(0)
        deleted = ledger.operations.purge(found, leave_batches=leave_batches)
        if ledger.state is not None:
            ledger.figures_path(found).unlink(missing_ok=True)
    typer.echo(f"{safe(found.job_key)} is forgotten: {count(deleted)} outcomes deleted")


def _say_state(ledger: Books, job: Job) -> None:
    from penstock_producer.reporting.text import safe

    typer.echo(f"{safe(job.job_key)} is {job.state}")
    runs = ledger.state is None or ledger.redis_if_running() is not None
    if not runs and job.state in ("running", "cancelling"):
        typer.echo("nothing runs on this state now: repeat its `penstock run` command to go on")
