"""Azure: Scheduled Events with a `Preempt` event that names this virtual machine.

Nothing is acknowledged: that would make Azure begin at once, for every process of every machine
that the event names.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from penstock_workers.http import Target
from penstock_workers.http.lean import LeanClient
from penstock_workers.spot.notice import (
    TIMEOUT_S,
    Notice,
    Unusable,
    believed,
    expect_ok,
    json_object,
    shown,
)

EVENTS_PATH: Final = "/metadata/scheduledevents"
NAME_PATH: Final = "/metadata/instance/compute/name"
HEADERS: Final = {"Metadata": "true"}
MAX_NAME_CHARS: Final = 256  # Azure's names have 64 and a number
MAX_EVENTS: Final = 1000  # of all machines of a scale set, in one answer


class AzureService:
    """Implements ``SpotService``. The list has the events of all machines of the same scale set."""

    cloud = "azure"
    interval_s = 2.0  # Azure advises one per second and machine; a machine may have several workers

    def __init__(self, url: str) -> None:
        self._events = Target.of(f"{url}{EVENTS_PATH}?api-version=2020-07-01", HEADERS)
        self._name_target = Target.of(
            f"{url}{NAME_PATH}?api-version=2021-02-01&format=text", HEADERS
        )
        self._name: str | None = None  # of this virtual machine

    async def look(self, client: LeanClient) -> Notice | None:
        if self._name is None:
            self._name = await self._ask_name(client)
        answer = await client.get(self._events, timeout_s=TIMEOUT_S)
        expect_ok(answer, EVENTS_PATH)
        events = json_object(answer, EVENTS_PATH).get("Events")
        if not isinstance(events, list) or len(events) > MAX_EVENTS:
            raise Unusable(
                f"it answered {EVENTS_PATH} with {shown(answer.body)}, which has no list of Events"
            )
        ours = next((event for event in events if _is_preemption_of(event, self._name)), None)
        return None if ours is None else _read(ours)

    async def _ask_name(self, client: LeanClient) -> str:
        answer = await client.get(self._name_target, timeout_s=TIMEOUT_S)
        expect_ok(answer, NAME_PATH)
        name = answer.body.decode("utf-8", "replace").strip()
        if not name or len(name) > MAX_NAME_CHARS:
            raise Unusable(
                f"it answered {NAME_PATH} with {shown(answer.body)}, which is not a name"
            )
        return name.lower()


def _is_preemption_of(event: Any, name: str) -> bool:
    if not isinstance(event, dict) or event.get("EventType") != "Preempt":
        return False
    resources = event.get("Resources")
    return isinstance(resources, list) and any(
        isinstance(one, str) and one.lower() == name for one in resources
    )


def _read(event: dict[str, Any]) -> Notice:
    time = event.get("NotBefore")
    if event.get("EventStatus") == "Started":  # its time has come, and NotBefore is empty
        return believed(AzureService.cloud, "Preempt", datetime.now(UTC))
    try:
        ends_at = parsedate_to_datetime(time) if isinstance(time, str) else None
    except (ValueError, OverflowError):
        ends_at = None
    if ends_at is None:
        raise Unusable(
            f"its Preempt event has the NotBefore {shown(time)}, which is not an HTTP date"
        )
    return believed(AzureService.cloud, "Preempt", ends_at)
