"""The row of the `batch` lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from penstock_producer.job.lanes import BATCH_LANE
from penstock_workers.errors import UnknownLane
from penstock_workers.lanes.batch.check import check
from penstock_workers.lanes.batch.settings import BatchSettings
from penstock_workers.lanes.row import LaneRow, StartBeside
from penstock_workers.settings import WorkerSettings

if TYPE_CHECKING:
    from penstock_workers.item.admission import Admission
    from penstock_workers.item.deliveries import ItemEngine
    from penstock_workers.item.lane import Lane


def _make(_settings: WorkerSettings) -> NoReturn:
    """Raises UnknownLane: no document of this lane is inferred alone."""
    raise UnknownLane(BATCH_LANE, ())


def _admission(settings: WorkerSettings, _lane: Lane) -> Admission:
    return _make(settings)


def _runs(settings: WorkerSettings, beside: StartBeside) -> ItemEngine:
    from penstock_workers.lanes.batch.engine import BatchEngine

    return BatchEngine(settings, beside)


BATCH: LaneRow[Lane] = LaneRow(
    name=BATCH_LANE,
    make=_make,
    admission=_admission,
    runs=_runs,
    settings=BatchSettings,
    modules=("penstock_workers.lanes.batch.engine",),
    check=check,
)
