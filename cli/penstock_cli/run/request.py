"""What `penstock run` was asked to do, and the plan made of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_cli import files
from penstock_cli.errors import UsageProblem
from penstock_cli.job.given import FromJob, GivenJob
from penstock_cli.job.options import ProviderFlags
from penstock_cli.run.tables import Tables
from penstock_cli.state import StateFolder

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_cli.show.progress import Progress
    from penstock_producer.job.spec import JobSpec
    from penstock_workers.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What `penstock run` was asked to do."""

    out: str
    state: Path
    job_key: str
    given: GivenJob
    provider: ProviderFlags
    workers: int
    concurrency: int | None
    panel: bool
    sample: int | None = None  # documents; None runs all
    outcomes: FromJob | None = None  # of a job in the same state folder, instead of a source

    @property
    def source(self) -> str:
        """What is read, for people and for checks of places: outcomes are no file of this machine."""
        return self.given.source if self.outcomes is None else f"job://{self.outcomes.job}"


@dataclass(frozen=True)
class Plan:
    """A request that was checked: nothing has been started yet, and nothing spent."""

    request: RunRequest
    spec: JobSpec  # as it is submitted: this command writes the results itself
    tables: Tables
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


def places_of(request: RunRequest) -> list[Path]:
    """The folders of this machine that a run writes to, as far as they exist."""
    folders = [request.state, *([] if files.is_remote(request.out) else [Path(request.out)])]
    return [folder for folder in folders if folder.is_dir()]
