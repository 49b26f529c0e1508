"""vLLM's own gauges, read from its /metrics: they decide how many requests are sent to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from prometheus_client.parser import text_string_to_metric_families

from penstock_ledger.redaction import redact
from penstock_workers.background import BackgroundTasks
from penstock_workers.http import (
    ClientName,
    HttpClient,
    HttpError,
    Limits,
    Target,
    UnusableRequest,
    make_client,
)

log = logging.getLogger(__name__)

EVERY_S = 5.0  # a queue that builds up is seen within one answer's time
AWAY_S = 60.0  # a server without metrics is asked again so seldom
TIMEOUT_S = 5.0
MAX_BYTES = 4 * 1024 * 1024  # vLLM's page is some 100 KiB; a larger one is something else
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"

Tell = Callable[[str, float, float], None]
"""Provider, requests that run, requests that wait."""


def read_gauges(text: str) -> tuple[float, float] | None:
    """Return requests running and waiting, summed over engines; raise ValueError.

    None when the page has neither or only one."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        if family.name in (RUNNING, WAITING):
            sums[family.name] = sum(sample.value for sample in family.samples)
    return (sums[RUNNING], sums[WAITING]) if len(sums) == 2 else None


class GaugeWatch:
    """One task that asks each server in turn. Owned by the worker's loop."""

    def __init__(
        self,
        urls: Mapping[str, str],
        tell: Tell,
        *,
        every_s: float = EVERY_S,
        http_client: ClientName = "lean",
    ) -> None:
        self._urls, self._tell, self._every_s = dict(urls), tell, every_s
        self._http_client: ClientName = http_client
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        if self._urls:
            self._tasks.start(self._watch(), "gauges")

    async def close(self) -> None:
        await self._tasks.close()

    async def _watch(self) -> None:
        client = make_client(self._http_client, Limits(max_body_bytes=MAX_BYTES))
        try:
            await asyncio.gather(
                *(self._follow(client, name, url) for name, url in self._urls.items())
            )
        finally:
            await client.close()

    async def _follow(self, client: HttpClient, name: str, url: str) -> None:
        try:
            page = Target.of(url)
        except UnusableRequest as error:
            log.warning(
                "provider %s: no gauges from %s (%s); correct metrics_url", name, redact(url), error
            )
            return
        while True:
            try:
                gauges = await _ask(client, page)
            except (HttpError, ValueError) as error:
                log.info(
                    "provider %s: no gauges from %s (%s); asking again in %.0f s",
                    name,
                    page.url,
                    error,
                    AWAY_S,
                )
                gauges = None
            if gauges is not None:
                self._tell(name, *gauges)
            await asyncio.sleep(self._every_s if gauges is not None else AWAY_S)


async def _ask(client: HttpClient, page: Target) -> tuple[float, float]:
    """Return the gauges of a page; raise HttpError and ValueError."""
    answer = await client.get(page, timeout_s=TIMEOUT_S)
    if answer.status != 200:
        to = answer.headers.get("location")
        raise ValueError(
            f"it answers {answer.status}" + (f" and points to {redact(to)}" if to else "")
        )
    gauges = read_gauges(answer.body.decode("utf-8", "replace"))
    if gauges is None:
        raise ValueError(f"the page has no {RUNNING} and {WAITING}")
    return gauges
