"""The routes of this room."""

from __future__ import annotations

from fastapi import APIRouter

from penstock_gateway.jobs import control, events, items, letters, limits, listing, notifications, results, submitting

__all__ = ["router"]

router = APIRouter()

for _one in (submitting, listing, control, results, letters, items, events):
    router.include_router(_one.router, prefix="/v1/jobs", tags=["jobs"])
router.include_router(limits.router, tags=["jobs"])
router.include_router(notifications.router, tags=["schedules"])
