"""Schedules: when each starts its next job, what came of its times, and whether it is paused.

They are found, and changed, as the HTTP API finds and changes them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock_gateway.dashboard.job_view import options_told
from penstock_gateway.dashboard.viewer import Viewer, check_form, page, read_form, viewer_with
from penstock_gateway.jobs.schedules import (
    FIRINGS_SHOWN,
    find_schedule,
    schedules_of,
    shown_name,
)
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_ledger import ScheduleStore
from penstock_ledger.schedules.model import Firing, Schedule
from penstock_producer.reporting.text import duration, one_line
from penstock_producer.reporting.words import moment
from penstock_producer.schedules.timetable import shown_source

__all__ = ["router"]


router = Router(include_in_schema=False)

FORM_MAX: Final = 4 * 1024  # bytes: a token, and where to go back to
TEXT_CHARS: Final = 800
_DONE: Final[Mapping[str, str]] = {
    "pause": "The schedule is paused: jobs that run go on, and no more are started.",
    "resume": "The schedule goes on with its next time.",
}

Reader = Annotated[Viewer, Depends(viewer_with("read"))]
Writer = Annotated[Viewer, Depends(viewer_with("write"))]


class ScheduleRow(NamedTuple):
    schedule_id: str
    name: str
    tenant: str
    state: str
    kind: str  # of the badge
    when: str
    source: str
    next: str
    waits_for: str
    paused: bool


class FiringRow(NamedTuple):
    planned: str
    outcome: str
    job_id: str
    job_state: str
    reason: str


@router.get("/ui/schedules")
async def schedules(request: Request, viewer: Reader) -> Response:
    found = await viewer.backend.run(schedules_of, viewer.backend, viewer.caller)
    now = time.time()
    return page(
        "schedules.html.jinja",
        viewer,
        request,
        rows=[_row(one, now) for one in found],
        done=_DONE.get(request.query_params.get("done", ""), ""),
    )


@router.get("/ui/schedules/{schedule_id}")
async def schedule(request: Request, viewer: Reader, schedule_id: str) -> Response:
    def read() -> tuple[Schedule, Sequence[Firing]]:
        found = find_schedule(viewer.backend, viewer.caller, schedule_id)
        store = ScheduleStore(viewer.backend.database)
        return found, store.firings(found.schedule_id, FIRINGS_SHOWN)

    found, firings = await viewer.backend.run(read)
    return page(
        "schedule.html.jinja",
        viewer,
        request,
        row=_row(found, time.time()),
        missed=str(found.catch_up),
        overlap=found.overlap,
        firings=list(map(_firing, firings)),
        options=options_told(found.spec),
        done=_DONE.get(request.query_params.get("done", ""), ""),
    )


@router.post("/ui/schedules/{schedule_id}/{action}")
async def change(request: Request, viewer: Writer, schedule_id: str, action: str) -> Response:
    form = await read_form(request, FORM_MAX)
    check_form(request, viewer, form)
    if action not in _DONE:
        raise Refused(404, "There is no such page.", code="not_found")

    def act() -> None:
        found = find_schedule(viewer.backend, viewer.caller, schedule_id)
        every = viewer.backend.producer.schedules
        (every.pause if action == "pause" else every.resume)(found.name)

    await viewer.backend.run(act)
    back = f"/ui/schedules/{schedule_id}" if form.get("from") == "one" else "/ui/schedules"
    return RedirectResponse(f"{back}?done={action}", 303)


def _row(one: Schedule, now: float) -> ScheduleRow:
    state, kind = ("paused", "warn") if one.paused else ("on", "alive")
    left = one.next_at - now
    until = f"{moment(one.next_at)}, in {duration(left)}" if left > 0 else "due now"
    return ScheduleRow(
        one.schedule_id,
        one_line(shown_name(one)),
        one_line(str(one.spec.get("tenant") or "")),
        state,
        kind,
        one_line(f"{one.cron} ({one.timezone})", TEXT_CHARS),
        one_line(shown_source(one), TEXT_CHARS),
        "not while it is paused" if one.paused else until,
        one_line(one.waits_for or "", TEXT_CHARS),
        one.paused,
    )


def _firing(one: Firing) -> FiringRow:
    return FiringRow(
        moment(one.planned_at),
        str(one.outcome).replace("_", " "),
        one.job_id or "",
        "" if one.job_state is None else str(one.job_state),
        one_line(one.reason or "", TEXT_CHARS),
    )
