"""`/v1/webhooks`: where a caller wants to hear of what becomes of batches and jobs."""

from __future__ import annotations

import base64
import secrets
from typing import Annotated, Any, Final

from fastapi import Depends, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller, caller_with, whose
from penstock_gateway.middleware import is_id, new_id
from penstock_gateway.refused import Refused, not_found
from penstock_gateway.routing import Router
from penstock_gateway.webhook_delivery import URL_MAX, NotAllowed, check_host, check_url
from penstock_ledger import (
    EVERY_EVENT,
    Delivery,
    Endpoint,
    EventType,
    NewCallback,
    NewEndpoint,
    WebhookStore,
)

router = Router(prefix="/v1/webhooks", tags=["webhooks"])

SECRET_BYTES: Final = 32
SIGNED_BY: Final = "x-penstock-callback-secret"  # a header
OVERLAP_S: Final = 86_400.0  # for which the secret before signs as well

Reads = Annotated[Caller, Depends(caller_with("read"))]
Writes = Annotated[Caller, Depends(caller_with("write"))]


class NewWebhook(BaseModel):
    """A receiver of events, and their kinds; all of them where none is named."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"url": "https://example.com/hooks"}}
    )

    url: Annotated[str, Field(min_length=1, max_length=URL_MAX)]
    events: Annotated[list[EventType], Field(min_length=1, max_length=64)] | None = None


@router.post("", status_code=201, operation_id="create_webhook")
async def create_webhook(request: Request, caller: Writes, new: NewWebhook) -> dict[str, Any]:
    """Register an endpoint. Its secret is in this answer and in no other."""
    backend = backend_of(request)
    await check_receiver(backend, new.url, "url")
    secret = new_secret()
    events = [EVERY_EVENT] if new.events is None else sorted(set(new.events))
    made = await backend.run(
        _store(backend).add, NewEndpoint(new_id("we"), caller.tenant, new.url, secret, events)
    )
    if made is None:
        raise Refused(
            409, "there are as many webhooks as one may have; remove one", code="too_many_webhooks"
        )
    return {**shown(made), "secret": secret}


@router.get("", operation_id="list_webhooks")
async def list_webhooks(
    request: Request,
    caller: Reads,
    after: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """Return the caller's endpoints, newest first."""
    backend = backend_of(request)
    page = await backend.run(_store(backend).page, whose(caller), limit=limit, after=after)
    if page is None:
        raise Refused(
            400, "'after' is not the id of a webhook", code="invalid_value", param="after"
        )
    endpoints, has_more = page
    data = [shown(endpoint) for endpoint in endpoints]
    ends = (
        {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
        if data
        else {"first_id": None, "last_id": None}
    )
    return {"object": "list", "data": data, **ends, "has_more": has_more}


@router.get("/{webhook_id}", operation_id="retrieve_webhook")
async def retrieve_webhook(request: Request, caller: Reads, webhook_id: str) -> dict[str, Any]:
    """Show one endpoint, and why it is disabled where it is."""
    return shown(await _found(backend_of(request), caller, webhook_id))


@router.delete("/{webhook_id}", operation_id="delete_webhook")
async def delete_webhook(request: Request, caller: Writes, webhook_id: str) -> dict[str, Any]:
    """Remove an endpoint, and what is on its way there."""
    backend = backend_of(request)
    await _found(backend, caller, webhook_id)
    await backend.run(_store(backend).remove, webhook_id, whose(caller))
    return {"id": webhook_id, "object": "webhook_endpoint", "deleted": True}


@router.post("/{webhook_id}/rotate", operation_id="rotate_webhook_secret")
async def rotate_secret(request: Request, caller: Writes, webhook_id: str) -> dict[str, Any]:
    """Return a new secret, in this answer only.

    For a day, deliveries are signed by the one before as well."""
    backend = backend_of(request)
    endpoint = await _found(backend, caller, webhook_id)
    secret = new_secret()
    await backend.run(
        _store(backend).rotate, webhook_id, whose(caller), secret, overlap_s=OVERLAP_S
    )
    return {**shown(endpoint), "secret": secret}


@router.post("/{webhook_id}/enable", operation_id="enable_webhook")
async def enable_webhook(request: Request, caller: Writes, webhook_id: str) -> dict[str, Any]:
    """Send events to an endpoint again that was disabled: those from now on."""
    backend = backend_of(request)
    await _found(backend, caller, webhook_id)
    await backend.run(_store(backend).enable, webhook_id, whose(caller))
    return shown(await _found(backend, caller, webhook_id))


@router.post("/{webhook_id}/test", status_code=202, operation_id="test_webhook")
async def send_test_event(request: Request, caller: Writes, webhook_id: str) -> dict[str, Any]:
    """Send the event `webhook.test` there now. Its delivery is listed as any other."""
    backend = backend_of(request)
    await _refuse_disabled(backend, caller, webhook_id)
    event_id = await backend.run(_store(backend).test, webhook_id)
    if event_id is None:
        message = "as many test events wait to be sent there as may; look at its deliveries"
        raise Refused(429, message, code="too_many_tests", headers={"retry-after": "60"})
    return {"id": event_id, "object": "event", "type": "webhook.test"}


@router.get("/{webhook_id}/deliveries", operation_id="list_webhook_deliveries")
async def list_deliveries(
    request: Request,
    caller: Reads,
    webhook_id: str,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> dict[str, Any]:
    """Return the latest deliveries to an endpoint, newest first, with the last error of each."""
    backend = backend_of(request)
    await _found(backend, caller, webhook_id)
    deliveries = await backend.run(_store(backend).deliveries, webhook_id, limit)
    return {"object": "list", "data": [serialize_delivery(delivery) for delivery in deliveries]}


@router.post(
    "/{webhook_id}/deliveries/{event_id}/retry",
    status_code=202,
    operation_id="retry_webhook_delivery",
)
async def retry_delivery(
    request: Request, caller: Writes, webhook_id: str, event_id: str
) -> dict[str, Any]:
    """Send an event once more now, with the same `webhook-id`.

    It may have arrived or been given up."""
    backend = backend_of(request)
    await _refuse_disabled(backend, caller, webhook_id)
    if not is_id("evt", event_id) or not await backend.run(
        _store(backend).again, event_id, webhook_id
    ):
        raise not_found("event", event_id)
    return {"id": event_id, "object": "event"}


async def check_receiver(backend: Backend, url: str, param: str) -> None:
    """Check where events may go. Raises Refused (400), which names the field."""
    allowed = backend.settings.gateway.webhook_hosts
    try:
        await check_host(check_url(url, allowed), allowed)
    except NotAllowed as error:
        raise Refused(400, f"{param}: {error}", code="url_not_allowed", param=param) from None


def call_back(
    backend: Backend, object_id: str, tenant: str | None, url: str | None
) -> dict[str, str]:
    """Send the events of a batch or job to a URL that was checked; return headers for the caller.

    They have the secret that signs, once: nothing without a URL, nor where there is a callback.
    """
    if url is None:
        return {}
    new = NewCallback(object_id, tenant, url, new_secret())
    return {SIGNED_BY: new.secret} if _store(backend).call_back(new) else {}


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def shown(endpoint: Endpoint) -> dict[str, Any]:
    """Return an endpoint without its secret."""
    return {
        "id": endpoint.endpoint_id,
        "object": "webhook_endpoint",
        "url": endpoint.url,
        "events": list(endpoint.events),
        "created_at": int(endpoint.created_at),
        "status": "enabled" if endpoint.disabled_at is None else "disabled",
        "failing_since": _seconds(endpoint.failing_since),
        "disabled_at": None if endpoint.disabled_at is None else int(endpoint.disabled_at),
        "disabled_because": endpoint.why,
    }


def serialize_delivery(delivery: Delivery) -> dict[str, Any]:
    next_at = None if delivery.next_at is None else max(delivery.next_at, delivery.created_at)
    state = "delivered" if delivery.delivered_at else "failed" if delivery.gave_up_at else "waiting"
    return {
        "id": delivery.event_id,
        "object": "webhook_delivery",
        "type": delivery.type,
        "status": state,
        "tries": delivery.tries,
        "created_at": int(delivery.created_at),
        "next_try_at": _seconds(next_at),
        "delivered_at": _seconds(delivery.delivered_at),
        "gave_up_at": _seconds(delivery.gave_up_at),
        "last_error": delivery.last_error,
    }


def _seconds(moment: float | None) -> int | None:
    return None if moment is None else int(moment)


async def _refuse_disabled(backend: Backend, caller: Caller, webhook_id: str) -> None:
    if (await _found(backend, caller, webhook_id)).disabled_at is not None:
        raise Refused(409, "this webhook is disabled; enable it first", code="webhook_disabled")


async def _found(backend: Backend, caller: Caller, webhook_id: str) -> Endpoint:
    found = (
        await backend.run(_store(backend).get, webhook_id, whose(caller))
        if is_id("we", webhook_id)
        else None
    )
    if found is None:
        raise not_found("webhook", webhook_id)
    return found


def _store(backend: Backend) -> WebhookStore:
    return WebhookStore(backend.database)
