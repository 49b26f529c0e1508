"""`penstock run`: a job from source to result files on this machine.

Read ``run_local`` from top to bottom. Everything it starts is ended by the ``with`` that started it, in reverse order.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_cli import files
from penstock_cli.all_alike import advice
from penstock_cli.commandline import remember, this_command, this_command_with
from penstock_cli.connect import Books, books
from penstock_cli.disk import free_bytes, is_full, megabytes
from penstock_cli.errors import EXIT_INTERRUPTED, EXIT_OK, Interrupted, JobStopped, UsageProblem
from penstock_cli.figures import MICRO, KeptFigures
from penstock_cli.hook_check import check_hooks
from penstock_cli.interrupts import Interrupts
from penstock_cli.jobspec import in_flags, job_spec, with_own_model, with_provider
from penstock_cli.options import JobFlags, ProviderFlags
from penstock_cli.progress import for_console
from penstock_cli.state import StateFolder
from penstock_cli.terminal import console as make_console
from penstock_cli.text import argument, count, duration, usd

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_cli.progress import Progress
    from penstock_cli.report import Report
    from penstock_ledger.model import Job
    from penstock_producer import Producer
    from penstock_producer.spec import JobSpec
    from penstock_workers.settings import WorkerSettings

LOCAL_LEASE_S = 15.0  # renewed every 5 s by a thread that does nothing else


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What `penstock run` was asked to do."""

    source: str
    out: str
    state: Path
    job_key: str
    job: JobFlags
    provider: ProviderFlags
    workers: int
    concurrency: int | None
    panel: bool
    sample: int | None = None  # documents; None runs all


@dataclass(frozen=True)
class Plan:
    """A request that was checked: nothing has been started yet, and nothing spent."""

    request: RunRequest
    spec: JobSpec
    settings: WorkerSettings
    state: StateFolder
    console: Console
    progress: Progress


def default_state(out: str) -> Path:
    """`.penstock` beside the results. Raises UsageProblem where those are not on this machine."""
    if files.is_remote(out):
        raise UsageProblem(
            f"--out {out} is not on this machine: say with --state where queue and ledger may be kept here"
        )
    return Path(out) / ".penstock"


def run_local(request: RunRequest) -> int:
    """Returns the exit status. Raises CliError and the errors of the producer, the ledger and the workers."""
    console = make_console()
    with Interrupts() as interrupts, ExitStack() as screen:
        title = f"{request.job_key} · {request.job.lane}" + (f" · {request.job.model}" if request.job.model else "")
        try:
            progress = screen.enter_context(for_console(console, title, panel=request.panel))
            progress.note("setting up: settings, flags, the provider's address")
            if request.sample is not None:
                request = _sampled(request, progress)
            plan = _checked(request, console, progress)
            with plan.state.locked(), _ledger(plan) as ledger:
                job = _accepted(plan, ledger)
                if not job.state.final and not (_is_out_of_budget(job) and _still_spent(plan, ledger, job)):
                    job = _worked(plan, ledger, job, interrupts)
                progress.note("writing result files")
                return _concluded(plan, ledger, job, screen)
        except Interrupted:
            screen.close()
            console.print(f"interrupted; resume with:  {this_command()}", soft_wrap=True)
            return EXIT_INTERRUPTED
        except Exception as error:
            screen.close()
            full = _disk_full(request, error)
            if full is None:
                raise
            if not interrupts.asked:
                raise JobStopped(full) from error
            console.print(f"interrupted, and {full}", soft_wrap=True)
            return EXIT_INTERRUPTED


def _disk_full(request: RunRequest, error: BaseException) -> str | None:
    """What to say when an error comes from a full disk; None when it does not."""
    seen: BaseException | None = error
    while seen is not None and not is_full(seen):
        seen = seen.__cause__ or seen.__context__
    if seen is None:
        return None
    room = [
        f"{place} ({megabytes(free)} left)" for place in _places(request) if (free := free_bytes(place)) is not None
    ]
    return (
        f"a disk is full: {', '.join(room)}. What is finished is kept, nothing of it is paid again. "
        f"Free some space, then resume with:  {this_command()}"
    )


def _places(request: RunRequest) -> list[Path]:
    """The folders of this machine that a run writes to, as far as they exist."""
    folders = [request.state, *([] if files.is_remote(request.out) else [Path(request.out)])]
    return [folder for folder in folders if folder.is_dir()]


def dry_run(request: RunRequest) -> int:
    """Read and check what a run would read and check, and show what it would ask. Nothing is started or written.

    Returns the exit status. Raises CliError, and the errors of source, spec and settings.
    """
    from penstock_cli import dry_run as shown

    with Interrupts():
        spec, settings = _understood(request)
        asks = _asks_a_provider(spec)
        shown.run(make_console(), request.source, spec, settings.provider(spec.provider) if asks else None)
    return EXIT_OK


def _sampled(request: RunRequest, progress: Progress) -> RunRequest:
    """The request for a sample. Raises what checking flags, settings, source and folders raises."""
    from penstock_cli.sample import sampled
    from penstock_producer.settings import ProducerSettings

    assert request.sample is not None
    spec, _ = _understood(request)
    files.probe(request.out, request.source)
    progress.note(f"reading {request.source} to take a sample of {count(request.sample)}")
    with StateFolder.create(request.state).locked():
        small = sampled(request, request.sample, spec, StateFolder(request.state.absolute()), ProducerSettings.load())
    progress.say(f"a sample, with its results in {small.out}; the same command without --sample goes on with the rest")
    return small


def _understood(request: RunRequest) -> tuple[JobSpec, WorkerSettings]:
    """Flags and settings, checked without a look at anything else. Raises UsageProblem and SettingsError."""
    from penstock_producer import SpecError
    from penstock_producer.acceptance import check_acceptable
    from penstock_producer.sources import refuse_unreadable
    from penstock_workers.lanes.make import check_lane, make_lane
    from penstock_workers.settings import WorkerSettings

    spec = job_spec(request.job)
    if not files.is_remote(request.source):
        refuse_unreadable(request.source)  # before anything that takes time, or asks for a key
    check_lane(spec.lane)
    check_hooks((spec.preprocess, spec.postprocess))
    settings = WorkerSettings.load(lane=spec.lane, concurrency=request.concurrency)
    settings = (
        with_provider(settings, spec.provider, request.provider)
        if _asks_a_provider(spec)
        else with_own_model(settings, spec)
    )
    settings = _with_hooks(settings, spec)
    try:
        check_acceptable(spec, settings)
    except SpecError as error:
        raise in_flags(error) from error
    if _asks_a_provider(spec):
        settings.provider(spec.provider).api_key(spec.provider)  # raises MissingApiKey, PlainHttp
    make_lane(settings)  # raises MissingApiKey, ModelMissing here rather than in a worker's log
    return spec, settings


def _asks_a_provider(spec: JobSpec) -> bool:
    from penstock_producer.spec import LANES_WITH_A_MODEL_OF_THEIR_OWN

    return spec.lane not in LANES_WITH_A_MODEL_OF_THEIR_OWN


def _checked(request: RunRequest, console: Console, progress: Progress) -> Plan:
    """Everything that can be found wrong without the queue. Raises UsageProblem and SettingsError."""
    from penstock_cli.reach import knock, name_receiver

    spec, settings = _understood(request)
    settings = _with_short_lease(settings)
    if _asks_a_provider(spec):
        name_receiver(spec.provider, settings.provider(spec.provider))
        knock(settings.provider(spec.provider).base_url)
    files.probe(request.out, request.source)
    files.refuse_other_jobs(request.out, request.job_key)
    return Plan(request, spec, settings, StateFolder.create(request.state), console, progress)


def _with_short_lease(settings: WorkerSettings) -> WorkerSettings:
    """Unless somebody chose another: on one machine no network delays a renewal, so a dead worker is found out sooner."""
    if "visibility_timeout_s" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"visibility_timeout_s": LOCAL_LEASE_S})


def _with_hooks(settings: WorkerSettings, spec: JobSpec) -> WorkerSettings:
    """The workers of this command may import what its own command line names."""
    named = [path.partition(":")[0] for path in (spec.preprocess, spec.postprocess) if path is not None]
    return settings.model_copy(update={"hook_modules": (*settings.hook_modules, *named)}) if named else settings


@contextlib.contextmanager
def _ledger(plan: Plan) -> Iterator[Books]:
    from penstock_ledger import open_database

    plan.progress.note(f"opening the ledger in {plan.state.root}")
    database = open_database(plan.state.database_url)
    try:
        database.migrate()
    finally:
        database.close()
    with books(plan.state.root) as ledger:
        yield ledger


def _accepted(plan: Plan, ledger: Books) -> Job:
    """Submit the job, or find the one that this command started earlier and say how far it is."""
    from penstock_ledger import JobConflict
    from penstock_producer import Producer, SpecError

    request = plan.request

    def read(rows: int) -> None:
        plan.progress.note(f"reading {request.source}:", f"{count(rows)} rows")

    try:
        with Producer(plan.settings.model_copy(update={"database_url": plan.state.database_url})) as producer:
            changed = _change_limits(plan, ledger, producer)
            plan.progress.note(f"reading {request.source}")
            job_id = producer.submit(request.source, plan.spec, job_key=request.job_key, progress=read).job_id
    except SpecError as error:
        raise in_flags(error) from error
    except JobConflict as error:
        raise UsageProblem(
            f"{plan.state.root} holds a job {request.job_key!r} with another source or other options: "
            f"{'; '.join(error.differences)}. To resume it, repeat its command unchanged; to start anew, give another --out "
            "and --job NAME."
        ) from error
    job = ledger.jobs.get(job_id)
    if changed:
        plan.console.print(changed)
    _take_over_samples(plan, ledger, job)
    _say_where_it_stands(plan.console, ledger, job)
    remember(plan.state, job.job_id)
    return job


def _take_over_samples(plan: Plan, ledger: Books, job: Job) -> None:
    """A job that was just made gets what its samples have answered."""
    from penstock_cli.sample import take_over

    if job.state.final or plan.request.sample is not None or ledger.figures_path(job).exists():
        return
    if ledger.outcomes.counts(job.job_id).succeeded == 0:
        taken = take_over(ledger, job, plan.state, plan.request.source, plan.spec)
        if taken:
            plan.progress.say(f"{count(taken)} documents are taken over from a sample, with what they cost")


def _change_limits(plan: Plan, ledger: Books, producer: Producer) -> str:
    """Budget and deadline of an unfinished job may be given anew; returns what to say about it.

    Everything else in a spec decides what results are, so that a difference there is another job.
    """
    from penstock_ledger import JobNotFound
    from penstock_producer.spec import JobSpec

    try:
        job = ledger.jobs.get(plan.request.job_key)
    except JobNotFound:
        return ""
    now = {"budget_usd": plan.spec.budget_usd, "deadline_s": plan.spec.deadline_s}
    stored = JobSpec.accepted(job.spec)
    if job.state.final or stored == plan.spec or stored.model_copy(update=now) != plan.spec:
        return ""
    producer.limit(job.job_id, budget_usd=plan.spec.budget_usd, deadline_s=plan.spec.deadline_s)
    budget = "none" if plan.spec.budget_usd is None else usd(plan.spec.budget_usd)
    deadline = "none" if plan.spec.deadline_s is None else duration(plan.spec.deadline_s)
    return f"limits of the job are now: budget {budget}, deadline {deadline} from its submit"


def _say_where_it_stands(console: Console, ledger: Books, job: Job) -> None:
    counts = ledger.outcomes.counts(job.job_id)
    finished, total = counts.succeeded + counts.dead, job.total or 0
    if job.state.final:
        message = f"job {job.job_key} is {job.state} already: {count(finished)} of {count(total)} documents finished"
    elif ledger.figures_path(job).exists():
        message = f"resuming: {count(finished)} of {count(total)} already finished"
    else:
        message = f"job {job.job_key}: {count(total)} documents"
        if counts.dead:
            message += f", {count(counts.dead)} of them unusable and dead letters already"
    console.print(message, soft_wrap=True)


def _worked(plan: Plan, ledger: Books, job: Job, interrupts: Interrupts) -> Job:
    """Start everything, show it working until the job ends, end everything. Returns the job in its last state."""
    from penstock_cli.fleet import Fleet

    kept = KeptFigures.load(ledger.figures_path(job))
    interrupts.defer()
    with Fleet(
        plan.settings,
        plan.state,
        plan.request.workers,
        places=_places(plan.request),
        hurry=interrupts.hurry,
        progress=plan.progress,
    ) as fleet:
        job = fleet.work(job, kept, asked_to_stop=lambda: interrupts.asked)
    interrupts.defer(False)
    if interrupts.asked and not job.state.final:
        _keep_report(plan, ledger, job)
        counts = ledger.outcomes.counts(job.job_id)
        plan.console.print(
            f"{count(counts.succeeded + counts.dead)} of {count(job.total or 0)} documents are finished and kept"
        )
        raise Interrupted("interrupted")
    return job


def _concluded(plan: Plan, ledger: Books, job: Job, screen: ExitStack) -> int:
    """Write the files, print the report. Raises JobStopped for a job that is paused."""
    from penstock_cli import report as reports

    report, place = _keep_report(plan, ledger, job)
    if not job.state.final:
        raise JobStopped(_why_stopped(plan, job, report))
    places = files.write_outputs(ledger, job, plan.request.out)
    screen.close()
    command = f"penstock dlq list {argument(job.job_key)}{ledger.option()}"
    asks = _asks_a_provider(plan.spec)
    url = plan.settings.provider(plan.spec.provider).shown_url if asks else None
    told = advice(ledger, job, report, url=url, again=this_command())
    reports.show(report, plan.console, dlq_command=command, advice=told, files={**places, "report": place})
    return report.exit_status


def _why_stopped(plan: Plan, job: Job, report: Report) -> str:
    """With the command that goes on: a budget that is spent would only pause the job again."""
    message = (
        f"job {job.job_key} is {job.state}: {job.reason or 'no reason was recorded'}. {count(report.finished)} of "
        f"{count(report.total)} documents are finished and kept."
    )
    if not _is_out_of_budget(job):
        return f"{message} Once that is put right, resume with:  {this_command()}"
    all_of_it = _for_all(report)
    return (
        f"{message} Raise --budget-usd above {report.cost_usd:.4f}; all documents cost about {all_of_it} in the end. "
        f"Resume for example with:  {this_command_with('--budget-usd', all_of_it)}"
    )


def _still_spent(plan: Plan, ledger: Books, job: Job) -> bool:
    """Whether a repeated command brings a budget that pays for no further document: nothing needs to start for that."""
    budget, counts = plan.spec.budget_usd, ledger.outcomes.counts(job.job_id)
    spent = counts.cost_microusd / MICRO
    return budget is not None and budget - spent < spent / max(1, counts.succeeded)


def _is_out_of_budget(job: Job) -> bool:
    return job.state == "paused" and (job.reason or "").startswith("budget_exhausted")


def _for_all(report: Report) -> str:
    """A budget in USD for all documents at the mean cost so far, a tenth on top, in two significant digits upwards."""
    mean = report.cost_usd / max(1, report.succeeded)
    wanted = max(report.cost_usd, report.cost_usd + mean * (report.total - report.finished)) * 1.1
    step = 10.0 ** (math.floor(math.log10(wanted)) - 1) if wanted > 0 else 0.01
    return f"{math.ceil(wanted / step) * step:.10f}".rstrip("0").rstrip(".")


def _keep_report(plan: Plan, ledger: Books, job: Job) -> tuple[Report, str]:
    """Write `report.json` as of now; returns the report and its place."""
    from penstock_cli import report as reports

    counts = ledger.outcomes.counts(job.job_id)
    kept = KeptFigures.load(ledger.figures_path(job))
    report = reports.build(job, counts, stats=kept.stats, seconds=kept.seconds)
    return report, files.write_report(report, plan.request.out)
