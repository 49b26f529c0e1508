"""What a cloud says of the end of this machine, and how its answers are read: believed only where
they make sense."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from penstock_workers.http import HttpAnswer
from penstock_workers.http.lean import LeanClient

TIMEOUT_S: Final = 3.0  # of one question; GKE's own metadata server takes up to 2 s
SHOWN_CHARS: Final = 80  # of what was answered, in the log
# The shortest notice of any cloud is 30 s, the longest of a spot machine 2 minutes; clocks differ
# by seconds at most.
MAX_AHEAD_S: Final = 900.0
MAX_AGO_S: Final = 300.0  # such a machine is still here, so the notice is of an earlier life of it


class Unusable(Exception):
    """The metadata service has answered, but not as its documentation says.

    The text is a sentence for a person."""


@dataclass(frozen=True, slots=True)
class Notice:
    cloud: str
    event: str  # the cloud's own word, of the few that are known
    ends_at: float  # Unix time


class SpotService(Protocol):
    """The metadata service of one cloud."""

    cloud: str
    interval_s: float  # between two questions

    async def look(self, client: LeanClient) -> Notice | None:
        """Ask once. None = no notice. Raises Unusable and HttpError."""
        ...


def believed(cloud: str, event: str, ends_at: datetime) -> Notice:
    """Raises Unusable for a time that no notice has: a wrong clock or a wrong service must not end
    a worker."""
    aware = ends_at if ends_at.tzinfo is not None else ends_at.replace(tzinfo=UTC)
    left = aware.timestamp() - time.time()
    if not -MAX_AGO_S <= left <= MAX_AHEAD_S:
        raise Unusable(
            f"its notice ({event}) names {aware.isoformat()}, {left:.0f} s from now, which no "
            "notice does"
        )
    return Notice(cloud, event, aware.timestamp())


def expect_ok(answer: HttpAnswer, asked: str) -> None:
    if answer.status != 200:
        raise Unusable(f"it answered {asked} with status {answer.status}")


def json_object(answer: HttpAnswer, asked: str) -> dict[str, Any]:
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise Unusable(f"it answered {asked} with what is not JSON: {shown(answer.body)}") from None
    if not isinstance(found, dict):
        raise Unusable(f"it answered {asked} with {shown(answer.body)}, which is not a JSON object")
    return found


def shown(what: object) -> str:
    """As the log may show it: short, and on one line."""
    text = repr(what[: 2 * SHOWN_CHARS] if isinstance(what, (str, bytes)) else what)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
