"""`penstock run` was asked for this, and makes a plan of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_cli.errors import UsageProblem
from penstock_cli.job.given import FromJob, GivenJob
from penstock_cli.job.options import ProviderFlags, RunFlags
from penstock_cli.show.terminal import Repetition
from penstock_cli.state import StateFolder, is_remote
from penstock_producer.job.lanes import AUTO, AUTO_LANES, LANES, has_own_model, packs

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_cli.processes.gpu_workers import Cards
    from penstock_cli.result_forms import Tables
    from penstock_cli.show.progress import Progress
    from penstock_producer.job.spec import JobSpec
    from penstock_workers.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request to `penstock run`."""

    out: str
    state: Path
    job_key: str
    given: GivenJob
    provider: ProviderFlags
    workers: int
    gpus: str | int | None  # a worker for each group of them: then that many
    concurrency: int | None
    panel: bool
    waits: bool = False  # for another run in the same state folder
    sample: int | None = None  # documents; None runs all
    outcomes: FromJob | None = None  # of a job in the same state folder, instead of a source
    again: Repetition = field(default_factory=Repetition)

    @property
    def source(self) -> str:
        """Name what is read, for people and for checks of places.

        Outcomes are no file of this machine."""
        return self.given.source if self.outcomes is None else f"job://{self.outcomes.job}"

    def is_completed(self) -> bool:
        """Return whether all is answered already: no worker and no provider is needed then."""
        folder = StateFolder(self.state.expanduser().absolute())
        return self.sample is None and folder.has_completed(self.job_key)


@dataclass(frozen=True)
class Plan:
    """A request that was checked: nothing has been started yet, and nothing spent."""

    request: RunRequest
    spec: JobSpec  # as it is submitted: this command writes the results itself
    tables: Tables
    settings: WorkerSettings  # of the lane that the job begins with
    cards: Cards | None  # that workers were given
    beside: Sequence[WorkerSettings]  # of the other lanes that it may go to
    state: StateFolder
    console: Console
    progress: Progress


def request_of(
    given: GivenJob, typed: RunFlags, provider: ProviderFlags, outcomes: FromJob | None = None
) -> RunRequest:
    """Merge flags over the job spec file over defaults. Raises UsageProblem."""
    from penstock_cli.job.jobspec import job_spec

    out = given.of_run("out", typed.out)
    if out is None:
        raise UsageProblem(
            "say where the results go: --out DIR, or run: {out: DIR} in a job spec file"
        )
    if given.file is not None:
        job_spec(given)  # a file has any value anywhere; flags have been looked at by now
    state, gpus = given.of_run("state", typed.state), given.of_run("gpus", typed.gpus)
    return RunRequest(
        out=out,
        state=Path(state) if state is not None else default_state(out),
        job_key=job_key_of(given, typed.job, outcomes),
        given=given,
        provider=given.provider(provider),
        workers=workers_asked(given.lanes, given.of_run("workers", typed.workers), gpus),
        gpus=gpus,
        concurrency=given.of_run("concurrency", typed.concurrency),
        panel=not given.of_run("no_progress", typed.no_progress or None),
        waits=bool(given.of_run("wait", typed.wait or None)),
        sample=given.of_run("sample", typed.sample),
        outcomes=outcomes,
    )


def workers_asked(lanes: Sequence[str], workers: int | None, gpus: str | int | None) -> int:
    """Return how many workers the first of these lanes has, before GPUs are counted.

    Raises UsageProblem where both are given.
    """
    from penstock_producer.job.options import DEFAULT_ENGINES, DEFAULT_WORKERS

    if workers is not None and gpus is not None:
        raise UsageProblem(
            f"--workers {workers} and --gpus {gpus}: with --gpus there is one worker for each GPU, "
            "or group of one engine: leave --workers out, or --gpus"
        )
    return workers or (DEFAULT_ENGINES if all(map(runs_alone, lanes)) else DEFAULT_WORKERS)


def cards_of(gpus: str | int | None, of_lanes: Sequence[WorkerSettings]) -> Cards | None:
    """Return the GPUs of each worker of the lane that hosts a model; None where none were asked.

    Raises UsageProblem.
    """
    if gpus is None:
        return None
    from penstock_cli.processes.gpu_workers import cards_asked

    return cards_asked(
        gpus, next((one for one in of_lanes if has_own_model(one.lane)), of_lanes[0])
    )


def runs_alone(lane: str) -> bool:
    """Return whether one worker of this lane is enough for a machine, or takes all of it."""
    return has_own_model(lane) or packs(lane)


def standby_lanes(lanes: Sequence[str]) -> list[str]:
    """Return the lanes whose workers are forked, first the one with the most."""
    return sorted(lanes, key=runs_alone)


def lanes_of(lane: str) -> Sequence[str]:
    """Return the lanes that need workers. Raises UsageProblem."""
    if lane == AUTO:
        return [one for one in AUTO_LANES if not packs(one)] + [
            one for one in AUTO_LANES if packs(one)
        ]
    if lane not in LANES:
        raise UsageProblem(f"--lane {lane!r} is refused: the lanes are {', '.join([*LANES, AUTO])}")
    return [lane]


def job_key_of(given: GivenJob, typed: str | None, outcomes: FromJob | None) -> str:
    """Return the key that was given, or one of the file or table that is read.

    So the same command resumes. A second pass is named after the first."""
    from penstock_cli.job.jobspec import default_job_key

    if named := given.key(typed):
        return named
    if outcomes is not None and given.file is None:
        return f"{default_job_key(outcomes.job)}-again"
    return default_job_key(
        given.source if given.file is None else given.file.path, given.flags["table"]
    )


def default_state(out: str) -> Path:
    """Return `.penstock` beside the results.

    Raises UsageProblem where those are not on this machine.
    """
    if is_remote(out):
        raise UsageProblem(
            f"--out {out} is not on this machine: say with --state where queue and ledger may be "
            "kept here"
        )
    return Path(out) / ".penstock"


def places_of(request: RunRequest) -> list[Path]:
    """Return the folders of this machine that a run writes to, as far as they exist."""
    folders = [request.state, *([] if is_remote(request.out) else [Path(request.out)])]
    return [folder for folder in folders if folder.is_dir()]
