"""`penstock run` and `serve`, one machine with everything embedded; `submit`; and `preview`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli.errors import UsageProblem
from penstock_cli.job import options
from penstock_cli.job.flags import takes_flags
from penstock_cli.job.given import GivenJob
from penstock_cli.job.options import (
    FromJob,
    JsonOption,
    ProviderFlags,
    RunFlags,
    StateOption,
    Where,
)
from penstock_producer.job.lanes import AUTO, DEFAULT_LANE, has_own_model

if TYPE_CHECKING:
    from penstock_cli.run.request import RunRequest
    from penstock_ledger.model import Job
    from penstock_producer.feed.queues import Serving
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.settings import ProducerSettings


@takes_flags
def run(given: GivenJob, typed: RunFlags, provider: ProviderFlags) -> None:
    """Run a job on this machine: everything embedded, results as files.

    The same command resumes: finished documents are skipped.

    With --from-job the documents are the outcomes of an earlier run: give
    its --state (.penstock in its --out).

    Exit status: 0 all succeeded, 3 finished with dead letters,
    2 bad usage or input, 1 failed, 130 interrupted.
    """
    from penstock_cli.errors import EXIT_DEAD_LETTERS, EXIT_OK, UsageProblem
    from penstock_cli.job.given import for_a_look
    from penstock_cli.processes.standby import Standby
    from penstock_cli.run.request import request_of, standby_lanes

    given = given.for_api(given.of_run("api", provider.api))
    outcomes = given.outcomes(typed.from_job, typed.where)
    if outcomes is not None and typed.sample is not None:
        raise UsageProblem(
            "outcomes have no sample; `penstock preview --from-job JOB --state DIR` shows the "
            "first of them, and what all would cost"
        )
    request = request_of(given, typed, provider, outcomes)
    if typed.dry_run:
        from penstock_cli.run.check import understood
        from penstock_cli.run.preview import look

        understood(replace(request, given=for_a_look(given)[0]))
        look(given, request.provider, outcomes, state=request.state, job_key=request.job_key)
        _tell_sample(request)
        return
    # first of all: its imports take as long as all of this command's
    done = request.is_completed()
    if done:
        typer.echo(f"job {request.job_key} is completed already: no worker is started")
    with Standby(*standby_lanes(given.lanes), wanted=not done) as standby:
        from penstock_cli.run.local import Terminal, run_local

        status = run_local(request, standby, Terminal())
    if typed.sample is not None and status in (EXIT_OK, EXIT_DEAD_LETTERS):
        _tell_sample(request)
    raise typer.Exit(status)


def _tell_sample(request: RunRequest) -> None:
    """Print what a sample of this job, if one was run, says about the whole job."""
    from penstock_cli.run.extrapolated import of_sample
    from penstock_cli.show.terminal import console

    for line in of_sample(request):
        console().print(line, soft_wrap=True, markup=False)


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
    from penstock_cli.job.given import check_hooks
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
    served = _served(settings, spec)
    _refuse_chance(served, spec)
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
    for warning in (_wait_for_model(served, spec), _late(accepted)):
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


LOOK_TIMEOUT_S = 2.0  # a submit is not held up by a Redis that does not answer


def _served(settings: ProducerSettings, spec: JobSpec) -> Serving | None:
    """Return what the lane's workers serve.

    None for lanes without models of their own, and where Redis does not answer.
    """
    if not has_own_model(spec.lane):
        return None
    import redis

    from penstock_ledger import RedisAddress, RedisLedger
    from penstock_producer.feed.queues import serving_of

    options = {"socket_timeout": LOOK_TIMEOUT_S, "socket_connect_timeout": LOOK_TIMEOUT_S}
    try:
        with RedisAddress.parse(settings.redis_url).connect(**options) as client:
            return serving_of(RedisLedger(client, "").workers(), spec.lane)
    except (redis.RedisError, OSError, ValueError):
        return None


def _refuse_chance(serving: Serving | None, spec: JobSpec) -> None:
    """Raise UsageProblem for a prompt without a model where workers serve several.

    Chance must not decide which model answers.
    """
    if (
        serving is None
        or not spec.takes_records
        or spec.model is not None
        or len(serving.models()) < 2
    ):
        return
    raise UsageProblem(
        f"workers of lane {spec.lane} serve several models, {serving.in_words()}: name one with "
        "--model"
    )


def _wait_for_model(serving: Serving | None, spec: JobSpec) -> str | None:
    """Return what the person who submits should know before the job starts.

    The job, or what goes on to another model, may have to wait for a worker.
    """
    from penstock_producer.feed.queues import missing_model
    from penstock_producer.reporting.reasons import wait_for_model

    if serving is None:
        return None
    waits = "The job waits"
    for model in (spec.model, *(spec.fallback or ())):
        missing = missing_model(serving, model)
        if missing is not None:
            start = f"one: penstock worker --lane {spec.lane} --model …"
            said = wait_for_model(missing).said
            return f"{said}. {waits} for {'it' if missing.loads else start}"
        waits = "Documents that go on to it wait"
    return None


@takes_flags
def preview(
    given: GivenJob,
    provider: ProviderFlags,
    rows: Annotated[
        int, typer.Option("--rows", "-n", min=1, max=1_000, help="How many requests to show.")
    ] = 3,
    first: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Read the first N rows only, instead of all."),
    ] = None,
    as_json: JsonOption = False,
    from_job: FromJob = None,
    where: Where = None,
    state: StateOption = None,
) -> None:
    """Show the first requests of a job, its problems, tokens, cost and time.

    Reads the whole source, calls nothing, and needs no key, no database and
    no Redis; with --from-job it reads the database that has that job. Tokens
    are estimated from the first 1,000 documents.

    Exit status: 0 the job would be accepted, 2 it would not.
    """
    from penstock_cli.run.preview import look
    from penstock_cli.run.request import job_key_of

    given = given.for_api(given.of_run("api", provider.api))
    outcomes = given.outcomes(from_job, where)
    flags, key = given.provider(provider), job_key_of(given, None, outcomes)
    look(given, flags, outcomes, state=state, job_key=key, shown=rows, most=first, as_json=as_json)


DEFAULT_STATE = Path("penstock-state")


@dataclass(frozen=True, slots=True)
class ServeFlags:
    """The options of `penstock serve` itself."""

    port: Annotated[
        int,
        typer.Option(
            "-p", "--port", min=0, max=65_535, help="0 takes a free port, which is shown."
        ),
    ] = 8080
    state: Annotated[
        Path,
        typer.Option(
            help=(
                "Folder of the queue, the ledger and the files. The same folder goes on with its "
                "jobs."
            )
        ),
    ] = DEFAULT_STATE
    host: Annotated[
        str,
        typer.Option(
            help="Any other address needs an API key: penstock keys create NAME --state DIR."
        ),
    ] = "127.0.0.1"
    lane: Annotated[
        str,
        typer.Option(
            help=(
                f"What answers: api, gpu or embed; batch: provider batches alone; {AUTO}: batches "
                "where there is time, else api."
            )
        ),
    ] = DEFAULT_LANE
    model: Annotated[
        str | None,
        typer.Option(help="gpu, embed: the model that the workers host, a folder or a name."),
    ] = None
    workers: options.Workers = None
    gpus: options.Gpus = None
    concurrency: options.Concurrency = None
    no_progress: options.NoProgress = False


@takes_flags
def serve(typed: ServeFlags, provider: ProviderFlags) -> None:
    """Serve APIs, workers and a dashboard on this machine, with nothing else to start.

    It serves OpenAI's Files and Batches, Anthropic's Message Batches, calls that wait for their
    answer, and jobs. Ctrl-C lets the requests in flight finish, then ends; the same command goes on
    with the jobs.

    Exit status: 0 ended by Ctrl-C or SIGTERM, 2 bad usage, 1 failed.
    """
    from penstock_cli.processes.standby import DOOR, Standby
    from penstock_cli.run.request import lanes_of

    # first of all: its imports take the longest
    with Standby(DOOR, *lanes_of(typed.lane)) as standby:
        from penstock_cli.run.serve import ServeRequest, serve_local

        request = ServeRequest(
            typed.host,
            typed.port,
            typed.state,
            typed.lane,
            typed.model,
            provider,
            typed.workers,
            typed.gpus,
            typed.concurrency,
            panel=not typed.no_progress,
        )
        raise typer.Exit(serve_local(request, standby))
