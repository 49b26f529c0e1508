"""Google Cloud: `instance/preempted`, which is FALSE until the notice.

One request waits for the change."""

from __future__ import annotations

import re
import time
from typing import Final

from penstock_workers.http import Target
from penstock_workers.http.lean import LeanClient
from penstock_workers.spot.notice import TIMEOUT_S, Notice, Unusable, expect_ok, shown

PATH: Final = "/computeMetadata/v1/instance/preempted"
WAIT_S: Final = (
    60  # that one request waits: a connection which has silently gone is noticed after it
)
NOTICE_S: Final = 30.0  # from the preemption to the end; the service itself names no time
NO_ETAG: Final = "NONE"  # unlike any state: what is so now is answered at once
ETAG: Final = re.compile(r"[0-9A-Za-z]{1,64}")
HEADERS: Final = {"Metadata-Flavor": "Google"}


class GcpService:
    """Implements ``SpotService``.

    GKE's workload identity puts a server of its own in front, which answers 404 here."""

    cloud = "gcp"
    interval_s = 1.0  # between the answer to one waiting request and the next

    def __init__(self, url: str) -> None:
        self._url = f"{url}{PATH}?wait_for_change=true&timeout_sec={WAIT_S}&last_etag="
        self._etag = NO_ETAG

    async def look(self, client: LeanClient) -> Notice | None:
        answer = await client.get(
            Target.of(self._url + self._etag, HEADERS), timeout_s=WAIT_S + TIMEOUT_S
        )
        expect_ok(answer, PATH)
        if answer.headers.get("metadata-flavor") != "Google":
            raise Unusable(
                f"its answer to {PATH} lacks the header Metadata-Flavor: Google, so it is another "
                "server's"
            )
        state = answer.body.strip()
        if state == b"TRUE":
            return Notice(self.cloud, "preempted", time.time() + NOTICE_S)
        if state != b"FALSE":
            raise Unusable(f"it answered {PATH} with {shown(answer.body)}, neither TRUE nor FALSE")
        etag = answer.headers.get("etag", "")
        self._etag = etag if ETAG.fullmatch(etag) else NO_ETAG
        return None
