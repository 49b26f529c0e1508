"""Asks the cloud's metadata service for a spot notice until there is one, in a thread with a loop
of its own.

A lane may block the item loop while a model loads, and a notice counts then, too. Whatever the
service answers other than a notice that makes sense leaves the worker as it is: it is asked again,
less often, and SIGTERM works as ever.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from penstock_workers.http import HttpError, Limits
from penstock_workers.http.lean import LeanClient
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample
from penstock_workers.settings import WorkerSettings
from penstock_workers.spot.aws import AwsService
from penstock_workers.spot.azure import AzureService
from penstock_workers.spot.gcp import GcpService
from penstock_workers.spot.notice import Notice, SpotService, Unusable

log = logging.getLogger(__name__)

# One address for all three. Never through a proxy, and a name that DNS could point elsewhere is not
# asked for.
METADATA_URL: Final = "http://169.254.169.254"
SERVICES: Final[dict[str, Callable[[str], SpotService]]] = {
    "aws": AwsService,
    "gcp": GcpService,
    "azure": AzureService,
}
LIMITS: Final = Limits(max_body_bytes=256 * 1024, connect_timeout_s=3.0, idle_per_server=1)
BACKOFF_S: Final = (
    15.0  # at most, between two questions to a service that fails: half of the shortest notice
)
LOG_AGAIN_S: Final = 600.0  # a state that comes and goes is logged no more often
TROUBLE_AFTER: Final = (
    2  # failures in a row: a single one may be a connection that was closed while it was idle
)
STOP_S: Final = 1.0  # for the watch's thread to end with the worker; it is a daemon


class SpotWatch:
    """``act`` is called once, in the watch's thread, with the first notice; nothing is asked after
    it."""

    def __init__(self, service: SpotService, act: Callable[[Notice], None]) -> None:
        self._service = service
        self._act = act
        self._notice: Notice | None = None
        self._answers = False
        self._failures = 0  # in a row
        self._state = ""
        self._logged_at: dict[str, float] = {}  # by state: one of few words
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(
            target=self._main, name="penstock-spot-notices", daemon=True
        )

    @classmethod
    def of(cls, settings: WorkerSettings, act: Callable[[Notice], None]) -> SpotWatch | None:
        """None where `spot_notices` is off."""
        if settings.spot_notices is None:
            return None
        return cls(SERVICES[settings.spot_notices](settings.spot_notices_url or METADATA_URL), act)

    # -- any thread --------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                log.debug("the watch for spot notices has ended already")
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def figures(self, lane: str) -> Iterator[Sample]:
        cloud, notice = self._service.cloud, self._notice
        yield catalogue.SPOT_ANSWERS(float(self._answers), lane, cloud)
        if notice is not None:
            yield catalogue.SPOT_LEFT(
                max(0.0, notice.ends_at - time.time()), lane, cloud, notice.event
            )

    # -- the watch's thread ------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            asyncio.run(self._watch())
        except asyncio.CancelledError:
            log.debug("no more spot notices are asked for: the worker ends")

    async def _watch(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        client = LeanClient(LIMITS)
        try:
            wait_s = await self.ask(client)
            while wait_s is not None:
                await asyncio.sleep(wait_s)
                wait_s = await self.ask(client)
        finally:
            await client.close()

    async def ask(self, client: LeanClient) -> float | None:
        """One question.

        Returns how long to wait before the next; None after a notice, which is the last."""
        try:
            notice = await self._service.look(client)
        except (HttpError, Unusable) as error:
            return self._failed(type(error).__name__, str(error))
        except Exception as error:  # an error in Penstock must end neither the watch nor the worker
            log.debug("the watch for spot notices", exc_info=True)
            return self._failed(
                "error", f"{type(error).__name__}: {error}, because of an error in Penstock"
            )
        self._answers, self._failures = True, 0
        if notice is None:
            self._enter("answers", logging.INFO, "it answers, and has no notice for this machine")
            return self._service.interval_s
        self._notice = notice
        self._act(notice)
        return None

    def _failed(self, state: str, why: str) -> float:
        self._answers = False
        self._failures += 1
        wait_s = min(BACKOFF_S, self._service.interval_s * 2.0 ** min(self._failures, 5))
        if self._failures >= TROUBLE_AFTER:
            self._enter(
                state,
                logging.WARNING,
                f"{why}. The worker goes on without its notices, and a SIGTERM drains it as ever; "
                f"it is asked again every {BACKOFF_S:.0f} s at the latest",
            )
        return wait_s

    def _enter(self, state: str, level: int, words: str) -> None:
        if state == self._state:
            return
        self._state = state
        now = time.monotonic()
        if now - self._logged_at.get(state, -LOG_AGAIN_S) >= LOG_AGAIN_S:
            self._logged_at[state] = now
            log.log(
                level,
                "spot notices from the metadata service of %s: %s",
                self._service.cloud,
                words,
            )
