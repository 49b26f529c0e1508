"""Schedules as callers see them, and notifications of buckets for those that take them over HTTP (docs/schedules.md)."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller
from penstock_gateway.jobs.names import Reader, Writer
from penstock_gateway.jobs.shapes import Noticed, ScheduleList, ScheduleShown
from penstock_gateway.refused import Refused
from penstock_ledger import ScheduleNotFound, ScheduleStore
from penstock_ledger.schedule import Schedule

router = APIRouter()

NAME_MAX: Final = 100  # characters; a schedule's name has 64
_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "object"},
            "example": {
                "Records": [
                    {
                        "eventName": "s3:ObjectCreated:Put",
                        "s3": {"bucket": {"name": "corpora"}, "object": {"key": "in/tickets.jsonl"}},
                    }
                ]
            },
        },
    },
}


@router.get("/v1/schedules", operation_id="list_schedules")
async def list_schedules(request: Request, caller: Reader) -> ScheduleList:
    """List schedules by name."""
    backend = backend_of(request)

    def look() -> ScheduleList:
        found = ScheduleStore(backend.database).list()
        return ScheduleList(data=[_shown(one) for one in found if caller.may_see(_tenant(one))])

    return await backend.run(look)


@router.post("/v1/notifications/{schedule}", openapi_extra={"requestBody": _BODY}, operation_id="notify_schedule")
async def notify(request: Request, schedule: str, caller: Writer) -> Noticed:
    """Take a notification of a bucket for a schedule that was added with events `webhook`.

    Read are events of S3, as MinIO and Ceph send them, too, alone or in a message of SNS, and those of EventBridge. New objects
    wait for the schedule's next job; the same notification again changes nothing. 503 means: as many wait as may, send it again.
    """
    backend = backend_of(request)
    counts = await backend.run(_noticed, backend, caller, schedule, await request.body())
    if counts.get("no_room"):
        raise Refused(503, "as many objects wait for the schedule's next job as may; send the notification again later",
                      code="no_room", headers={"retry-after": "60"})  # fmt: skip
    return Noticed(outcomes=counts)


def _noticed(backend: Backend, caller: Caller, name: str, body: bytes) -> dict[str, int]:
    if len(name) > NAME_MAX or not name.isprintable():
        raise ScheduleNotFound(name[:NAME_MAX])
    if not caller.may_see(_tenant(ScheduleStore(backend.database).get(name))):
        raise ScheduleNotFound(name)
    return {str(outcome): number for outcome, number in backend.producer.schedules.notify(name, body).items()}


def _tenant(schedule: Schedule) -> str | None:
    tenant = schedule.spec.get("tenant")
    return None if tenant is None else str(tenant)


def _shown(one: Schedule) -> ScheduleShown:
    return ScheduleShown(
        name=one.name, cron=one.cron, timezone=one.timezone, paused=one.paused, next_at=one.next_at,
        waits_for=one.waits_for, source=one.source, tenant=_tenant(one),
    )  # fmt: skip
