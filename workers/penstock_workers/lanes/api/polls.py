"""A worker asks servers for their gauges, and providers for the models that they list.

vLLM's own gauges, read from its /metrics, decide how many requests are sent to it. Heartbeats say
the lists of models, so that `GET /v1/models` can. Asking costs nothing at any provider. One that
has no list, or does not answer, has none here, and its models may be asked for all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from penstock_ledger.redaction import redact
from penstock_producer.feed.queues import TEXT_BYTES
from penstock_workers.background import BackgroundTasks
from penstock_workers.errors import WorkerError
from penstock_workers.http import (
    ClientName,
    HttpClient,
    HttpError,
    Limits,
    Target,
    UnusableRequest,
    make_client,
)
from penstock_workers.provider_calls import headers_of, list_address, signer_of
from penstock_workers.settings import ProviderSettings

__all__ = ["ModelList"]

log = logging.getLogger(__name__)

GAUGES_EVERY_S = 5.0  # a queue that builds up is seen within one answer's time
AWAY_S = 60.0  # after a round without an answer
GAUGES_TIMEOUT_S = 5.0
MAX_BYTES = 4 * 1024 * 1024  # vLLM's page is some 100 KiB, a list of thousands of models 1 MiB
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
        every_s: float = GAUGES_EVERY_S,
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
    answer = await client.get(page, timeout_s=GAUGES_TIMEOUT_S)
    if answer.status != 200:
        to = answer.headers.get("location")
        raise ValueError(
            f"it answers {answer.status}" + (f" and points to {redact(to)}" if to else "")
        )
    gauges = read_gauges(answer.body.decode("utf-8", "replace"))
    if gauges is None:
        raise ValueError(f"the page has no {RUNNING} and {WAITING}")
    return gauges


LISTS_EVERY_S = 3_600.0  # providers add a model in weeks
LISTS_TIMEOUT_S = 10.0
NAME_CHARS = 512  # as long as a job's model may be


class ModelList:
    """One task that asks each provider in turn. Owned by the worker's loop."""

    def __init__(
        self, providers: Mapping[str, ProviderSettings], http_client: ClientName = "lean"
    ) -> None:
        # one that is all defaults was not configured
        self._providers = {
            name: one for name, one in providers.items() if one != ProviderSettings()
        }
        self._http_client: ClientName = http_client
        self._names: dict[str, list[str]] = {}
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        if self._providers:
            self._tasks.start(self._follow(), "models of providers")

    async def close(self) -> None:
        await self._tasks.close()

    def to_text(self) -> str | None:
        """Return the names by provider for the heartbeat, as many as fit; None where none is known.

        It is JSON.
        """
        said = {name: names for name, names in self._names.items() if names}
        while len(text := orjson.dumps(said)) > TEXT_BYTES:
            longest = max(said, key=lambda name: len(said[name]))
            said[longest] = said[longest][: len(said[longest]) // 2]
        return text.decode() if said else None

    async def _follow(self) -> None:
        while True:
            client = make_client(self._http_client, Limits(max_body_bytes=MAX_BYTES))
            try:
                found = [
                    await self._ask(client, name, one) for name, one in self._providers.items()
                ]
            finally:
                await client.close()
            await asyncio.sleep(LISTS_EVERY_S if all(found) else AWAY_S)

    async def _ask(self, client: HttpClient, name: str, provider: ProviderSettings) -> bool:
        """Ask one provider; return whether it has answered."""
        try:
            headers = dict(headers_of(provider.kind, provider.api_key(name)))
            address = list_address(provider)
            if (signer := await asyncio.to_thread(signer_of, name, provider)) is not None:
                headers |= await signer.headers("GET", address)
            target = Target.of(address, headers, proxy=provider.proxy)
            answer = await client.get(target, timeout_s=LISTS_TIMEOUT_S)
        except (HttpError, UnusableRequest, WorkerError) as error:
            log.debug("provider %s does not list its models: %s", name, error)
            return False
        if answer.status == 200:
            self._names[name] = names_in(answer.body)
        return answer.status < 500


def names_in(body: bytes) -> list[str]:
    """Return the names in a list of models, of OpenAI's form, of Gemini's or of Bedrock's."""
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return []
    named = ("data", "models", "modelSummaries") if isinstance(found, dict) else ()
    rows = next((found[name] for name in named if name in found), None)
    names = list[str]()
    for row in rows if isinstance(rows, list) else ():
        name = row.get("id", row.get("name", row.get("modelId"))) if isinstance(row, dict) else None
        if isinstance(name, str) and 0 < len(name) <= NAME_CHARS and name.isprintable():
            names.append(name.removeprefix("models/"))
    return names
