"""The row of the `batch` lane, and what `penstock doctor` says of it.

What `penstock doctor` says of the `batch` lane: whether there is room for packed files.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from penstock_producer.job.lanes import BATCH_LANE
from penstock_workers.errors import UnknownLane
from penstock_workers.lanes.batch.settings import BatchSettings
from penstock_workers.lanes.row import LaneFinding, LaneRow, StartBeside
from penstock_workers.settings import ProviderSettings, WorkerSettings

if TYPE_CHECKING:
    from penstock_workers.item.deliveries import ItemEngine
    from penstock_workers.item.lane import Admission, Lane


# the largest batch of a provider, as a file to send and as request bodies
BYTES_OF_ONE: Final = 512 * 1024**2


def check(settings: WorkerSettings, *, knock: bool) -> Iterator[LaneFinding]:
    """Check the disk for packed batches; yield nothing where the settings are as they come."""
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
    """Return the folder itself, or the one above it that is there."""
    return next(place for place in (folder, *folder.absolute().parents) if place.is_dir())


def _make(_settings: WorkerSettings) -> NoReturn:
    """Raise UnknownLane: no document of this lane is inferred alone."""
    raise UnknownLane(BATCH_LANE, ())


def _admission(settings: WorkerSettings, _lane: Lane) -> Admission:
    return _make(settings)


def _runs(settings: WorkerSettings, beside: StartBeside) -> ItemEngine:
    from penstock_workers.lanes.batch.engine import BatchEngine

    return BatchEngine(settings, beside)


def _takes(name: str, provider: ProviderSettings) -> object:
    from penstock_workers.lanes.batch.apis import open_batches

    return open_batches(name, provider)


BATCH: LaneRow[Lane] = LaneRow(
    name=BATCH_LANE,
    make=_make,
    admission=_admission,
    runs=_runs,
    settings=BatchSettings,
    takes=_takes,
    modules=("penstock_workers.lanes.batch.engine",),
    check=check,
)
