"""A worker asks servers for their gauges, and providers for the models that they list.

The gauges of a server of one's own, read from its /metrics, decide how many requests are sent to
it. Heartbeats say the lists of models, so that `GET /v1/models` can. Asking costs nothing at any
provider. One that has no list, or does not answer, has none here, and its models may be asked for
all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import orjson

from penstock_ledger.redaction import redact
from penstock_producer.feed.queues import TEXT_BYTES
from penstock_ratelimit import ServerGauges
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
from penstock_workers.lanes.api.gauges import read_gauges
from penstock_workers.provider_calls import headers_of, list_address, signer_of
from penstock_workers.settings import ProviderSettings

__all__ = ["ModelList", "ask_once"]

log = logging.getLogger(__name__)

GAUGES_EVERY_S = 5.0  # a queue that builds up is seen within one answer's time
# the same where others' latency is watched: what holds them up must not last
LISTEN_EACH_S = 1.0
AWAY_S = 60.0  # after a round without an answer
LOST_S = 5.0  # the same where others' latency is watched: a server that starts again has them soon
GAUGES_TIMEOUT_S = 5.0
MAX_BYTES = 4 * 1024 * 1024  # vLLM's page is some 100 KiB, a list of thousands of models 1 MiB

Tell = Callable[[str, ServerGauges], None]
"""A provider, and what its server says."""


def _ignored(_: str, __: str) -> None:
    """Take no notice."""


class GaugeWatch:
    """One task that asks each server in turn. Owned by the worker's loop."""

    def __init__(
        self,
        urls: Mapping[str, str],
        tell: Tell,
        *,
        looks: Callable[[str], bool] = lambda _: True,
        unread: Callable[[str, str], None] = _ignored,
        closely: Collection[str] = (),
        http_client: ClientName = "lean",
    ) -> None:
        """Ask servers while ``looks`` allows it, those that are watched ``closely`` each second."""
        self._urls, self._tell = dict(urls), tell
        self._looks, self._unread, self._closely = looks, unread, frozenset(closely)
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
            self._unread(name, str(error))
            log.warning(
                "provider %s: no gauges from %s (%s); correct metrics_url", name, redact(url), error
            )
            return
        closely = name in self._closely
        every_s, lost_s = (LISTEN_EACH_S, LOST_S) if closely else (GAUGES_EVERY_S, AWAY_S)
        said = ""
        while True:
            wait_s = every_s
            if self._looks(name):
                try:
                    self._tell(name, await _ask(client, page))
                    said = ""
                except (HttpError, ValueError) as error:
                    wait_s = lost_s
                    why = redact(str(error))
                    self._unread(name, why)
                    log.log(
                        logging.DEBUG if why == said else logging.INFO,
                        "provider %s: no gauges from %s (%s); asking again in %.0f s",
                        name,
                        page.url,
                        why,
                        lost_s,
                    )
                    said = why
            await asyncio.sleep(wait_s)


async def ask_once(url: str) -> ServerGauges:
    """Return the gauges of a page; raise HttpError, UnusableRequest and ValueError."""
    client = make_client("lean", Limits(max_body_bytes=MAX_BYTES))
    try:
        return await _ask(client, Target.of(url))
    finally:
        await client.close()


async def _ask(client: HttpClient, page: Target) -> ServerGauges:
    """Return the gauges of a page; raise HttpError and ValueError."""
    answer = await client.get(page, timeout_s=GAUGES_TIMEOUT_S)
    if answer.status != 200:
        to = answer.headers.get("location")
        raise ValueError(
            f"it answers {answer.status}" + (f" and points to {redact(to)}" if to else "")
        )
    return read_gauges(answer.body.decode("utf-8", "replace"))


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
