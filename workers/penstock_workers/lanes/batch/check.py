"""What `penstock doctor` says of the `batch` lane: whether there is room for packed files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock_workers.lanes.batch.settings import BatchSettings
from penstock_workers.lanes.row import LaneFinding
from penstock_workers.settings import WorkerSettings

BYTES_OF_ONE: Final = (
    512 * 1024**2
)  # the largest batch of a provider, as a file to send and as request bodies


def check(settings: WorkerSettings, *, knock: bool) -> Iterator[LaneFinding]:
    """Nothing where its settings are as they come."""
    own = settings.batch
    if own == BatchSettings():
        return
    wanted = BYTES_OF_ONE * own.packed_ahead
    place = _nearest(own.place)
    free = shutil.disk_usage(place).free
    if free < wanted:
        seen = (
            f"batch.folder {own.place} has {free} bytes free; {own.packed_ahead} packed batches "
            f"may need {wanted}"
        )
        yield LaneFinding(
            False, seen, "free some space, name another folder, or lower batch.packed_ahead"
        )


def _nearest(folder: Path) -> Path:
    """The folder itself, or the one above it that is there."""
    return next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
