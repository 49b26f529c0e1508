"""The routes of this room."""

from __future__ import annotations

from penstock_gateway.jobs import (
    control,
    dead_letters,
    events,
    listing,
    reports,
    results,
    samples,
    schedules,
    submitting,
)
from penstock_gateway.routing import Router

__all__ = ["router"]

router = Router()

for _one in (submitting, listing, reports, samples, control, results, dead_letters, events):
    router.include_router(_one.router, prefix="/v1/jobs", tags=["jobs"])
router.include_router(schedules.router, tags=["schedules"])
