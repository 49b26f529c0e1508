"""`penstock run`: a job from source to result files on this machine.

Read ``run_local`` from top to bottom. Everything it starts is ended by the ``with`` that started
it, in reverse order.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock_cli.connect import Books
from penstock_cli.disk import is_full, is_read_only, megabytes
from penstock_cli.errors import EXIT_INTERRUPTED, Interrupted, JobStopped, StateBusy
from penstock_cli.files import exit_status
from penstock_cli.processes.signals import Interrupts
from penstock_cli.processes.standby import Standby
from penstock_cli.run.accept import accepted, opened_ledger
from penstock_cli.run.check import checked, sampled_request
from penstock_cli.run.conclude import (
    Conclusion,
    concluded,
    has_batch_workers,
    is_out_of_budget,
    keep_report,
    print_conclusion,
    still_at_provider,
    still_spent,
)
from penstock_cli.run.request import Plan, RunRequest, places_of
from penstock_cli.show.figures import KeptFigures
from penstock_cli.show.progress import for_console
from penstock_cli.show.terminal import console as make_console
from penstock_cli.state import is_remote
from penstock_producer.reporting.text import count
from penstock_producer.storage import free_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_cli.show.progress import Progress
    from penstock_ledger.model import Job


class Terminal:
    """The follower of `penstock run`: a person at a terminal, or a log."""

    def __init__(self) -> None:
        self.console: Console = make_console()

    def progress(self, request: RunRequest) -> Progress:
        title = f"{request.job_key} · {request.given.flags['lane']}" + (
            f" · {model}" if (model := request.given.flags["model"]) else ""
        )
        return for_console(self.console, title, panel=request.panel)

    def sampled(self, request: RunRequest) -> None:
        """Do nothing, since the progress has said it."""

    def concluded(self, ended: Conclusion) -> None:
        print_conclusion(self.console, ended)


class Follower(Protocol):
    """A follower of a run: it gets what the run does, and what it ended with."""

    console: Console

    def progress(self, request: RunRequest) -> Progress: ...

    def sampled(self, request: RunRequest) -> None: ...

    def concluded(self, ended: Conclusion) -> None: ...


def run_local(request: RunRequest, standby: Standby, follower: Follower) -> int:
    """Run the job and return the exit status; ``standby`` forks the workers.

    Raises CliError and the errors of the producer, the ledger and the workers.
    """
    console = follower.console
    with Interrupts() as interrupts, ExitStack() as screen, no_trace(request) as accepted_one:
        try:
            progress = screen.enter_context(follower.progress(request))
            progress.note("setting up: settings, flags, the provider's address")
            if request.sample is not None:
                request = sampled_request(request, progress)
                follower.sampled(request)
            plan = checked(request, console, progress)
            wait = progress.note if request.waits else None
            with plan.state.locked(wait), opened_ledger(plan) as ledger:
                job = accepted(plan, ledger)
                accepted_one()
                ended = (
                    _worked(plan, ledger, job, interrupts, standby)
                    if _has_work(plan, ledger, job)
                    else _written(plan, ledger, job)
                )
                screen.close()
                follower.concluded(ended)
                return exit_status(ended.report)
        except Interrupted:
            screen.close()
            console.print(f"interrupted; resume with:  {request.again.unchanged()}", soft_wrap=True)
            return EXIT_INTERRUPTED
        except Exception as error:
            screen.close()
            full = _disk_trouble(request, error)
            if full is None:
                raise
            if not interrupts.asked:
                raise JobStopped(full) from error
            console.print(f"interrupted, and {full}", soft_wrap=True)
            return EXIT_INTERRUPTED


def _has_work(plan: Plan, ledger: Books, job: Job) -> bool:
    """Return whether anything has to be started for the job.

    For one that is over only where batches of it are still at a provider."""
    if job.state.final:
        return has_batch_workers(plan) and still_at_provider(ledger, job) > 0
    return not (is_out_of_budget(job) and still_spent(plan, ledger, job))


def _written(plan: Plan, ledger: Books, job: Job) -> Conclusion:
    plan.progress.note("writing result files")
    return concluded(plan, ledger, job)


def _worked(
    plan: Plan, ledger: Books, job: Job, interrupts: Interrupts, standby: Standby
) -> Conclusion:
    """Start everything, show it working until the job ends, end everything.

    The files of a job that is over are written while the workers end."""
    from penstock_cli.run.fleet import Fleet

    kept, ended = KeptFigures.load(ledger.figures_path(job)), None
    interrupts.defer()
    with Fleet(
        (plan.settings, *plan.beside),
        plan.state,
        plan.request.workers,
        cards=plan.cards,
        places=places_of(plan.request),
        hurry=interrupts.hurry,
        progress=plan.progress,
        standby=standby,
    ) as fleet:
        job = fleet.work(job, kept, asked_to_stop=lambda: interrupts.asked)
        if job.state.final:
            fleet.let_workers_end()
            with interrupts.undeferred():
                ended = _written(plan, ledger, job)
    interrupts.defer(False)
    if ended is not None:
        return ended
    if interrupts.asked:
        keep_report(plan, ledger, job)
        counts = ledger.outcomes.counts(job.job_id)
        plan.console.print(
            f"{count(counts.succeeded + counts.dead)} of {count(job.total or 0)} documents are "
            "finished and kept"
        )
        if fleet.failing is not None:
            plan.console.print(
                f"calls were failing: {fleet.failing}. Where --base-url was wrong, correct it in "
                "the command that follows",
                soft_wrap=True,
            )
        raise Interrupted("interrupted")
    return _written(plan, ledger, job)


def _disk_trouble(request: RunRequest, error: BaseException) -> str | None:
    """Return what to say when an error comes from a disk that is full or read-only.

    It is None when it does not."""
    seen: BaseException | None = error
    while seen is not None and not is_full(seen) and not is_read_only(seen):
        seen = seen.__cause__ or seen.__context__
    if seen is None:
        return None
    if is_read_only(seen):
        places = ", ".join(map(str, places_of(request)))
        return (
            f"the file system has become read-only, of one of these: {places}. What is finished is "
            "kept, nothing of it is paid again. Make it writable (the system's log says why it is "
            f"not), then resume with:  {request.again.unchanged()}"
        )
    room = [
        f"{place} ({megabytes(free)} left)"
        for place in places_of(request)
        if (free := free_bytes(place)) is not None
    ]
    return (
        f"a disk is full: {', '.join(room)}. What is finished is kept, nothing of it is paid "
        f"again. Free some space, then resume with:  {request.again.unchanged()}"
    )


@contextlib.contextmanager
def no_trace(request: RunRequest) -> Iterator[Callable[[], None]]:
    """Remove the folders that were made meanwhile, where an error comes before the job is accepted.

    Call what it gives when the job is there: from then on everything is kept. What was there before
    stays, and so does what another run makes use of.
    """
    state = request.state.expanduser().absolute()
    outs = [] if is_remote(request.out) else [Path(request.out).absolute()]
    is_new = not state.exists()
    missing = [
        path for place in (state, *outs) for path in (place, *place.parents) if not path.exists()
    ]
    kept = False

    def keep() -> None:
        nonlocal kept
        kept = True

    try:
        yield keep
    except (Interrupted, StateBusy):
        raise
    except Exception:
        if not kept:
            if is_new:
                shutil.rmtree(state, ignore_errors=True)
            for path in sorted(missing, key=lambda path: -len(path.parts)):
                with contextlib.suppress(OSError):  # others have put something there
                    path.rmdir()
        raise
