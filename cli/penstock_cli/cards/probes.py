"""The probe files of several workers as those of one process: `penstock-probe` asks the command
that keeps them all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_workers.celery_app.probe import ALIVE, READY, STARTED, ProbeFiles, check, note_of

if TYPE_CHECKING:
    from penstock_cli.processes.worker_process import Worker


class CardProbes:
    """``folder`` is where an orchestrator looks, None where none does.

    Each worker has a folder of its own, by number."""

    def __init__(
        self, folder: Path | None, of_workers: Mapping[int, Path], names: Mapping[int, str]
    ) -> None:
        self._files = ProbeFiles(folder)
        self._folders = {number: str(path) for number, path in of_workers.items()}
        self._names = names
        self._has_started = self._is_ready = False

    def is_up(self, number: int) -> bool:
        """Whether a worker's start is over: its model is loaded."""
        return check(self._folders[number], STARTED) is None

    def stuck(self, number: int) -> str | None:
        """Why a worker that was up does no work; None while it works, or still starts."""
        return check(self._folders[number], ALIVE) if self.is_up(number) else None

    def look(self, workers: list[Worker]) -> None:
        """Started once each worker is up or given up; ready while one of them is; alive as long as
        this is called."""
        running = [worker.number for worker in workers if not worker.over]
        if not self._has_started and all(self.is_up(number) for number in running):
            self._has_started = True
            self._files.started()
        is_ready = any(check(self._folders[number], READY) is None for number in running)
        if is_ready and not self._is_ready:
            self._files.ready()
        elif self._is_ready and not is_ready:
            self._files.unready()
        self._is_ready = is_ready
        if self._has_started:
            self._files.alive()
        notes = {number: note_of(self._folders[number]) for number in running}
        said = [f"{self._names[number]}: {note}" for number, note in notes.items() if note]
        given_up = [
            self._names[worker.number] for worker in workers if worker.over and worker.status
        ]
        self._files.note("; ".join([*said, *(f"{name} is given up" for name in given_up)]) or None)

    def drain(self) -> None:
        self._files.unready()
