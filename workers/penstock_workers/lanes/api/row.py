"""The row of the `api` lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_workers.lanes.api.check import check
from penstock_workers.lanes.row import LaneRow
from penstock_workers.settings import WorkerSettings

if TYPE_CHECKING:
    from penstock_workers.item.admission import Admission
    from penstock_workers.lanes.api.api_lane import ApiLane


def _make(settings: WorkerSettings) -> ApiLane:
    from penstock_workers.lanes.api.api_lane import ApiLane

    return ApiLane(
        settings.providers,
        settings.max_answer_bytes,
        settings.answer_memory_bytes,
        settings.http_client,
    )


def _admission(settings: WorkerSettings, _lane: ApiLane) -> Admission:
    from penstock_workers.lanes.api.admission import QuotaAdmission

    return QuotaAdmission.open(settings)


API: LaneRow[ApiLane] = LaneRow(
    name="api",
    make=_make,
    admission=_admission,
    modules=("penstock_workers.lanes.api.api_lane", "penstock_workers.lanes.api.admission"),
    waits_for="quota",
    check=check,
)
