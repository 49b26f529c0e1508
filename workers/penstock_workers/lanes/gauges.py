"""vLLM's own gauges, read from its /metrics where that is reachable: they steer how many requests are sent to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

log = logging.getLogger(__name__)

EVERY_S = 5.0  # a queue that builds up is seen within one answer's time
AWAY_S = 60.0  # a server without metrics is asked again so seldom
TIMEOUT_S = 5.0
MAX_BYTES = 4 * 1024 * 1024  # vLLM's page is some 100 KiB; a larger one is something else
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"

Tell = Callable[[str, float, float], None]
"""Provider, requests that run, requests that wait."""


def read_gauges(text: str) -> tuple[float, float] | None:
    """Requests running and waiting, summed over engines; None when the page does not tell. Raises ValueError."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        if family.name in (RUNNING, WAITING):
            sums[family.name] = sum(sample.value for sample in family.samples)
    return (sums[RUNNING], sums[WAITING]) if len(sums) == 2 else None


class GaugeWatch:
    """One task that asks each server in turn. Owned by the worker's loop."""

    def __init__(self, urls: Mapping[str, str], tell: Tell, *, every_s: float = EVERY_S) -> None:
        self._urls, self._tell, self._every_s = dict(urls), tell, every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._urls:
            self._task = asyncio.create_task(self._watch(), name="gauges")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
            await asyncio.gather(*(self._follow(session, name, url) for name, url in self._urls.items()))

    async def _follow(self, session: aiohttp.ClientSession, name: str, url: str) -> None:
        while True:
            try:
                gauges = await _ask(session, url)
            except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
                log.info("provider %s: no gauges from %s (%s); asking again in %.0f s", name, url, error, AWAY_S)
                gauges = None
            if gauges is not None:
                self._tell(name, *gauges)
            await asyncio.sleep(self._every_s if gauges is not None else AWAY_S)


async def _ask(session: aiohttp.ClientSession, url: str) -> tuple[float, float]:
    async with session.get(url) as response:
        response.raise_for_status()
        gauges = read_gauges((await response.content.read(MAX_BYTES)).decode("utf-8", "replace"))
    if gauges is None:
        raise ValueError(f"the page has no {RUNNING} and {WAITING}")
    return gauges
