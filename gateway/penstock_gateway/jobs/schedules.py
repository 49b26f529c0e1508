"""Schedules, and notifications of buckets for those that take them over HTTP (docs/schedules.md).

A schedule of a tenant is kept with the tenant before its name, as the keys of its jobs are, so that
those of two tenants never meet. One that was added by the command line may be a tenant's by its job
option alone, and is found by its plain name.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller
from penstock_gateway.jobs.names import Reader, Writer, find_job, stored_key, with_lane, with_tenant
from penstock_gateway.jobs.schedule_schemas import (
    FiringResponse,
    NewSchedule,
    Noticed,
    Removed,
    ScheduleDetails,
    ScheduleList,
    ScheduleResponse,
)
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_ledger import ScheduleNotFound, ScheduleStore
from penstock_ledger.schedules.model import Schedule
from penstock_producer import OutcomesOf, SpecError
from penstock_producer.errors import Problem, seen
from penstock_producer.job.spec import JobSpec

__all__ = ["FIRINGS_SHOWN", "find_schedule", "router", "schedules_of", "shown_name"]

router = Router(tags=["schedules"])

NAME_MAX: Final = 300  # characters: a name has 64, and a tenant may stand before it
# schedules of one tenant that are added here; a fleet has room for 1,000
OF_TENANT_MAX: Final = 100
# of their options together: control processes read those that are due as often
OF_TENANT_CHARS_MAX: Final = 4_000_000
FIRINGS_SHOWN: Final = 20
_ID: Final = re.compile(r"sched_[0-9a-f]{20}")
_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "object"},
            "example": {
                "Records": [
                    {
                        "eventName": "s3:ObjectCreated:Put",
                        "s3": {
                            "bucket": {"name": "corpora"},
                            "object": {"key": "in/tickets.jsonl"},
                        },
                    }
                ]
            },
        },
    },
}


@router.post("/v1/schedules", operation_id="create_schedule", status_code=201)
async def add_schedule(
    request: Request, response: Response, given: NewSchedule, caller: Writer
) -> ScheduleDetails:
    """Submit a source, or outcomes of other jobs, at the times of a cron expression.

    The fleet's control processes read the source then; it need not be there yet. A name is given
    once.
    """
    backend = backend_of(request)
    shown = await backend.run(_added, backend, caller, given)
    response.headers["location"] = f"/v1/schedules/{shown.id}"
    return shown


@router.get("/v1/schedules", operation_id="list_schedules")
async def list_schedules(request: Request, caller: Reader) -> ScheduleList:
    """List schedules by name."""
    backend = backend_of(request)

    def look() -> ScheduleList:
        found = schedules_of(backend, caller)
        return ScheduleList(data=[ScheduleResponse(**_fields(one)) for one in found])

    return await backend.run(look)


@router.get("/v1/schedules/{schedule}", operation_id="retrieve_schedule")
async def show_schedule(request: Request, schedule: str, caller: Reader) -> ScheduleDetails:
    """Show one schedule, by its name or id: its options, and what came of its latest times."""
    backend = backend_of(request)
    return await backend.run(lambda: _detailed(backend, find_schedule(backend, caller, schedule)))


@router.post("/v1/schedules/{schedule}/pause", operation_id="pause_schedule")
async def pause_schedule(request: Request, schedule: str, caller: Writer) -> ScheduleDetails:
    """Start no more jobs until it is resumed; those that run go on. Safe to repeat."""
    backend = backend_of(request)
    return await backend.run(_changed, backend, caller, schedule, backend.producer.schedules.pause)


@router.post("/v1/schedules/{schedule}/resume", operation_id="resume_schedule")
async def resume_schedule(request: Request, schedule: str, caller: Writer) -> ScheduleDetails:
    """Go on with the next time from now; those that passed meanwhile do not count as missed.

    Safe to repeat."""
    backend = backend_of(request)
    return await backend.run(_changed, backend, caller, schedule, backend.producer.schedules.resume)


@router.delete("/v1/schedules/{schedule}", operation_id="delete_schedule")
async def remove_schedule(request: Request, schedule: str, caller: Writer) -> Removed:
    """Forget a schedule; its jobs stay."""
    backend = backend_of(request)

    def remove() -> Removed:
        found = find_schedule(backend, caller, schedule)
        backend.producer.schedules.remove(found.name)
        return Removed(id=found.schedule_id, name=shown_name(found))

    return await backend.run(remove)


@router.post(
    "/v1/notifications/{schedule}",
    operation_id="notify_schedule",
    openapi_extra={"requestBody": _BODY},
)
async def notify(request: Request, schedule: str, caller: Writer) -> Noticed:
    """Take a notification of a bucket for a schedule that was added with events `webhook`.

    Read are events of S3, as MinIO and Ceph send them, too, alone or in a message of SNS, and those
    of EventBridge. New objects wait for the schedule's next job; the same notification again
    changes nothing. 503 means: as many wait as may, send it again.
    """
    backend = backend_of(request)
    counts = await backend.run(_noticed, backend, caller, schedule, await request.body())
    if counts.get("no_room"):
        raise Refused(
            503,
            "as many objects wait for the schedule's next job as may; send the notification again "
            "later",
            code="no_room",
            headers={"retry-after": "60"},
        )
    return Noticed(outcomes=counts)


def _added(backend: Backend, caller: Caller, given: NewSchedule) -> ScheduleDetails:
    options = with_lane(with_tenant(given.options, caller, own=NewSchedule.model_fields), backend)
    tenant = options.get("tenant")
    owned_by = "" if tenant is None else stored_key(str(tenant), "")
    _check_room(backend, None if tenant is None else str(tenant), options)
    when: dict[str, Any] = {
        "timezone": given.timezone,
        "catch_up": given.catch_up,
        "overlap": given.overlap,
        "drift": given.drift,
        "drift_field": given.drift_field,
    }
    over = _outcomes_of(backend, caller, given)
    if over is None:
        source = str(given.source)
        added = backend.remote.schedules.add(
            given.name, given.cron, source, options, owned_by=owned_by, **when
        )
    else:
        backend.remote_limits.check(JobSpec.from_json(options))
        added = backend.producer.schedules.add(
            given.name, given.cron, over, options, owned_by=owned_by, **when
        )
    return _detailed(backend, added)


def _changed(
    backend: Backend, caller: Caller, named: str, change: Callable[[str], bool]
) -> ScheduleDetails:
    """Return the schedule as it is after ``change``, which takes its name."""
    found = find_schedule(backend, caller, named)
    change(found.name)
    return _detailed(backend, find_schedule(backend, caller, found.schedule_id))


def _outcomes_of(backend: Backend, caller: Caller, given: NewSchedule) -> OutcomesOf | None:
    """Return whose outcomes are read; None for a source.

    The job or schedule has to be there for this caller. Raises SpecError and Refused.
    """
    named = [name for name in ("source", "from_job", "from_schedule") if getattr(given, name)]
    if len(named) > 1:
        raise SpecError(
            [
                Problem(
                    "invalid_value",
                    f"/{named[1]}",
                    f"{' and '.join(named)} are given",
                    "give one of them",
                )
            ]
        )
    if not named:
        fix = (
            "give source, a path or an s3:// URI inside source_roots, or from_job, or from_schedule"
        )
        raise SpecError([Problem("missing_field", "/source", "there are no documents", fix)])
    if named == ["source"]:
        if given.where:
            fix = "leave it out, or give from_job or from_schedule"
            raise SpecError([Problem("invalid_value", "/where", "a source has no outcomes", fix)])
        return None
    if given.from_job is not None:
        return OutcomesOf(find_job(backend, caller, given.from_job).job_id, None, given.where)
    behind = find_schedule(backend, caller, str(given.from_schedule))
    # It is read by its name at each time: one of the command line may be removed, and its name
    # given to another tenant's.
    if caller.tenant is not None and not behind.name.startswith(stored_key(caller.tenant, "")):
        fix = "name one that was added over HTTP"
        raise SpecError(
            [
                Problem(
                    "not_allowed",
                    "/from_schedule",
                    f"{seen(given.from_schedule)} was added by the operator",
                    fix,
                )
            ]
        )
    return OutcomesOf(None, behind.name, given.where)


def _check_room(backend: Backend, tenant: str | None, options: Mapping[str, Any]) -> None:
    if tenant is None:
        return
    own = ScheduleStore(backend.database).list(lambda one: _tenant(one) == tenant)
    if len(own) >= OF_TENANT_MAX:
        message = f"this tenant has {OF_TENANT_MAX} schedules, as many as one may; remove one"
        raise Refused(409, message, code="too_many_schedules")
    size = _chars(options) + sum(_chars(one.spec) for one in own)
    if size > OF_TENANT_CHARS_MAX:
        message = (
            f"the options of this tenant's schedules would have {size:,} characters together, and "
            "may have "
        )
        message += f"{OF_TENANT_CHARS_MAX:,}; write a shorter prompt, or remove a schedule"
        raise Refused(409, message, code="too_many_schedules")


def _chars(options: Mapping[str, Any]) -> int:
    return len(json.dumps(options, ensure_ascii=False))


def schedules_of(backend: Backend, caller: Caller) -> list[Schedule]:
    """Return the schedules that this caller sees, by name. Blocks."""
    return ScheduleStore(backend.database).list(lambda one: caller.may_see(_tenant(one)))


def find_schedule(backend: Backend, caller: Caller, name: str) -> Schedule:
    """Return a schedule by its id, its name, or the name with its tenant before it.

    Raises ScheduleNotFound, alike for those of another tenant.
    """
    if len(name) > NAME_MAX or not name.isprintable():
        raise ScheduleNotFound(name[:NAME_MAX])
    store = ScheduleStore(backend.database)
    by_name = [
        partial(store.get, one) for one in dict.fromkeys((stored_key(caller.tenant, name), name))
    ]
    for look in [partial(store.of_id, name)] if _ID.fullmatch(name) else by_name:
        with contextlib.suppress(ScheduleNotFound):
            found = look()
            if caller.may_see(_tenant(found)):
                return found
    raise ScheduleNotFound(name)


def _noticed(backend: Backend, caller: Caller, name: str, body: bytes) -> dict[str, int]:
    found = find_schedule(backend, caller, name)
    return {
        str(outcome): number
        for outcome, number in backend.producer.schedules.notify(found.name, body).items()
    }


def _tenant(schedule: Schedule) -> str | None:
    tenant = schedule.spec.get("tenant")
    return None if tenant is None else str(tenant)


def shown_name(one: Schedule) -> str:
    return one.name.removeprefix(stored_key(_tenant(one), ""))


def _fields(one: Schedule) -> dict[str, Any]:
    return {
        "id": one.schedule_id,
        "name": shown_name(one),
        "cron": one.cron,
        "timezone": one.timezone,
        "catch_up": str(one.catch_up),
        "overlap": one.overlap,
        "paused": one.paused,
        "next_at": one.next_at,
        "waits_for": one.waits_for,
        "drift": None if one.drift is None else asdict(one.drift),
        "source": one.source,
        "tenant": _tenant(one),
    }


def _detailed(backend: Backend, one: Schedule) -> ScheduleDetails:
    firings = ScheduleStore(backend.database).firings(one.schedule_id, FIRINGS_SHOWN)
    return ScheduleDetails(
        **_fields(one),
        spec={name: value for name, value in one.spec.items() if value is not None},
        firings=[
            FiringResponse(
                planned_at=firing.planned_at,
                outcome=firing.outcome.value,
                job_id=firing.job_id,
                reason=firing.reason,
                job_state=None if firing.job_state is None else str(firing.job_state),
                drift=firing.drift,
            )
            for firing in firings
        ],
    )
