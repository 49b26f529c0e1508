"""Events that callers of the HTTP doors want: written with the change itself, sent later.

Each event is a row per endpoint that wants it, with one id for all of them and for every try.
"""

from __future__ import annotations

import secrets
import string
import time
from typing import Final, Literal, get_args

from sqlalchemy import Connection, insert, select

from penstock_ledger.sql.tables import webhook_deliveries, webhook_endpoints
from penstock_ledger.stored_values import json_text

__all__ = [
    "AT_ONCE",
    "CALLBACK",
    "ENDPOINTS_MAX",
    "EVENT_TYPES",
    "EVERY_EVENT",
    "TEST_EVENT",
    "EventType",
    "callback_id",
    "new_event",
    "note_event",
]

EventType = Literal[
    "batch.cancelled",
    "batch.completed",
    "batch.expired",
    "batch.failed",
    "job.cancelled",
    "job.completed",
    "job.drifted",
    "job.failed",
    "job.paused",
]
EVENT_TYPES: Final = get_args(EventType)
TEST_EVENT: Final = "webhook.test"  # sent where it is asked for
# what an endpoint has that wants all of them, also those of later releases
EVERY_EVENT: Final = "*"
# The events of an endpoint that is the callback of one batch or job: it hears of no other, and of
# all that becomes of that one.
CALLBACK: Final = "callback"
ENDPOINTS_MAX: Final = 20  # of one tenant: each event is a row for each of them
AT_ONCE: Final = 0.0  # the next try of a delivery that nothing has to wait for, on any clock
_LETTERS: Final = string.digits + string.ascii_letters


def note_event(connection: Connection, tenant: str | None, type_: str, object_id: str) -> int:
    """Note ``type_`` of a batch or job for the endpoints of its tenant, as part of a transaction.

    Its callback is one of them. Returns how many there are. Costs two looks at a small table where
    there are none.
    """
    columns = webhook_endpoints.c
    owner = columns.tenant.is_(None) if tenant is None else columns.tenant == tenant
    query = (
        select(columns.endpoint_id, columns.events)
        .where(owner, columns.disabled_at.is_(None))
        .limit(ENDPOINTS_MAX)
    )
    wanting = [
        row.endpoint_id
        for row in connection.execute(query)
        if {type_, EVERY_EVENT} & set(row.events.split(","))
    ]
    called = columns.endpoint_id == callback_id(object_id), columns.disabled_at.is_(None)
    wanting += connection.execute(select(columns.endpoint_id).where(*called)).scalars()
    new_event(connection, wanting, type_, object_id)
    return len(wanting)


def callback_id(object_id: str) -> str:
    """Return the id of the endpoint that is the callback of a batch or job."""
    return f"{CALLBACK}:{object_id}"


def new_event(connection: Connection, endpoint_ids: list[str], type_: str, object_id: str) -> str:
    """Put one event on its way to these endpoints; return its id."""
    now = time.time()
    event_id = "evt_" + "".join(secrets.choice(_LETTERS) for _ in range(27))
    told = {
        "object": "event",
        "id": event_id,
        "type": type_,
        "created_at": int(now),
        "data": {"id": object_id},
    }
    rows = [
        {
            "event_id": event_id,
            "endpoint_id": endpoint_id,
            "type": type_,
            "payload": json_text(told),
            "created_at": now,
            "tries": 0,
            "next_at": AT_ONCE,
        }
        for endpoint_id in endpoint_ids
    ]
    if rows:
        connection.execute(insert(webhook_deliveries), rows)
    return event_id
