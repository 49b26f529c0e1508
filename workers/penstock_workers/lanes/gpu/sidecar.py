"""The `gpu` lane over a vLLM server beside the worker.

The engine is in a container of its own, and the worker is small. Items wait in the same queue as
before a hosted engine (engine_queue.py), and go on as far as vLLM's own gauges say that it keeps
up. What has no place in HTTP is left out: bodies travel as they are, and priorities count in the
worker's queue only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import orjson
from msgspec import structs

from penstock_producer.feed.queues import NAMES_MAX, Served
from penstock_producer.feed.routes import model_of
from penstock_workers.celery_app.ending import end_this_worker
from penstock_workers.errors import BadEngineSettings, EngineAway
from penstock_workers.http import ClientName, HttpAnswer, HttpClient, HttpError, Target, make_client
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.lanes.api.gauges import GaugeWatch
from penstock_workers.lanes.gpu.engine.engine_queue import EngineQueue, EngineState, bound
from penstock_workers.lanes.gpu.engine.engines import RequestRefused
from penstock_workers.lanes.gpu.gpu_lane import refusal
from penstock_workers.lanes.gpu.requests.fields import refuse_templates
from penstock_workers.lanes.loading import ServerWait, SharedLook
from penstock_workers.settings import ProviderSettings, WorkerSettings

log = logging.getLogger(__name__)

SERVER = "server"  # a provider of the HTTP client: items of all providers go to it
ROOT = "server root"  # the same server: it has /classify, /rerank and /score beside its /v1
ASK_TIMEOUT_S = 5.0
# how often the server is asked what it serves: it may be started with another model, or get
# adapters
MODELS_EACH_S = 5.0
# its gauges: the server is near, and its own queue must not grow long between two looks
LISTEN_EACH_S = 1.0
GONE_MAX = 4 * NAMES_MAX  # names that are remembered
SHOWN_CHARS = 200  # of a model's name, or of the server's words, in an error
SERVER_ERROR = 500
ANSWERS_MAX = 16_384  # of one request: vLLM's own limit of `n`
CUT_OFF = b'"finish_reason":"abort"'  # of an answer that a server left unfinished as it ended


class SidecarLane:
    """Implements ``item.lane.Lane``.

    ``give_up`` ends the worker, for its orchestrator to replace."""

    def __init__(
        self, settings: WorkerSettings, give_up: Callable[[str], None] = end_this_worker
    ) -> None:
        assert settings.gpu.upstream_url is not None, "else the worker hosts the engine itself"
        self.queue = EngineQueue()
        self._url = settings.gpu.upstream_url
        self._wait_s = settings.gpu.upstream_wait_s
        self._max_seqs = settings.gpu.sequences
        self._give_up = give_up
        providers = {
            SERVER: ProviderSettings(base_url=self._url),
            ROOT: ProviderSettings(base_url=self._url.removesuffix("/v1")),
        }
        self._http_client: ClientName = settings.http_client
        self._client = ApiLane(
            providers, settings.max_answer_bytes, settings.answer_memory_bytes, settings.http_client
        )
        self._gauges = GaugeWatch(
            {SERVER: _at_root(self._url, "/metrics")},
            self._hear,
            every_s=LISTEN_EACH_S,
            http_client=settings.http_client,
        )
        self._loading = ServerWait(self._url)
        self._models = Target.of(self._url + "/models")
        self._health = Target.of(_at_root(self._url, "/health"))
        self._asking: HttpClient | None = None
        self.sequences: int | None = None  # that it runs at once: no server of vLLM says it
        self.served = Served(settings.gpu.names)  # with all that the server lists, once it is up
        self._names = settings.gpu.names
        self._gone: tuple[str, ...] = ()  # names that the server had, and has no more
        self._model = b""  # as JSON: what the server calls the model that it serves
        self._state = EngineState()
        self._is_up = self._draining = False
        self._deaths = 0  # times that the server went away
        self._returning: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._looking = SharedLook(self._look_at_models)
        self._gone_now = SharedLook(self._has_ended)

    async def start(self) -> None:
        """Wait until the server has loaded the model.

        Raises EngineAway when that takes longer than ``gpu.upstream_wait_s``."""
        await self._client.start()
        self._asking = make_client(self._http_client)
        await self._await_model()
        self._gauges.start()
        self._following = asyncio.create_task(self._follow_models(), name="server models")

    async def prepare(self, request: Request) -> Prepared:
        """Put the model into the body.

        Jobs of this lane need not name one, and a server may insist."""
        body = request.body
        if b'"model"' not in body and body[:1] == b"{" and body[1:2] != b"}":
            body = b'{"model":' + self._model + b"," + body[1:]
        place = SERVER if request.endpoint.startswith("/v1/") else ROOT
        request = structs.replace(request, provider=place, body=body)
        if b"chat_template" not in body and b"\\u" not in body and b'"n"' not in body:
            return Prepared(request)
        return _read(request)

    async def infer(self, prepared: Prepared) -> Tried:
        tried = await self._client.infer(prepared)
        if isinstance(tried, Answer):
            return await self._answered(prepared, tried)
        if tried.failure not in ("connect_failed", "connection_lost"):
            return tried
        if tried.failure == "connection_lost" and await self._gone_now.take():
            tried = replace(
                tried, failure="engine_died", detail=f"the server ended: {tried.detail}"
            )
        if tried.failure != "connection_lost":
            self._note_away(tried.detail)
        return tried

    def gauges(self) -> Mapping[str, float | str]:
        lined_up = self.queue.waiting
        return {
            "deaths": float(self._deaths),
            "running": float(self._state.running),
            "waiting": float(self._state.waiting + lined_up),
            "bound": bound(
                self._state, max_seqs=self._max_seqs if self._is_up else 0, lined_up=lined_up
            ),
            **self._loading.gauges(),
        }

    def drain(self) -> None:
        self._draining = True

    async def close(self) -> None:
        self._draining = True
        self.queue.close()
        for task in (self._returning, self._following):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._gauges.close()
        await self._client.close()
        if self._asking is not None:
            await self._asking.close()

    # -- the server's life -------------------------------------------------------------------------

    async def _await_model(self) -> None:
        """Wait until the server has its model, then open the queue."""
        self._note_models(await self._loading.model(self._serves, self._wait_s, "gpu"))
        self._is_up = True
        self.queue.open(self._max_seqs, 0)
        log.warning("%s serves %s", self._url, ", ".join(self.served.every_name))

    def _note_models(self, served: Served) -> None:
        before = self.served.every_name
        self.served = Served(
            tuple(dict.fromkeys((*self._names, *served.names))), served.adapters, served.context
        )
        self._model = orjson.dumps(served.names[0])
        gone = [name for name in (*self._gone, *before) if name not in self.served.every_name]
        self._gone = tuple(dict.fromkeys(gone))[-GONE_MAX:]

    async def _follow_models(self) -> None:
        while True:
            await asyncio.sleep(MODELS_EACH_S)
            if self._is_up:
                await self._looking.take()

    async def _look_at_models(self) -> None:
        """Look which models the server has.

        Changes nothing while the server does not answer: its items notice that."""
        try:
            served = await self._serves()
        except BadEngineSettings as error:
            log.warning("%s", error)
            return
        if served is not None:
            self._note_models(served)

    async def _answered(self, prepared: Prepared, answer: Answer) -> Tried:
        """Return what an answer means, or that the server's engine has died.

        Such a server says 500 to all that was in it, and one that ends cuts answers off."""
        if answer.status == 404:
            return await self._not_found(prepared.request.body, answer)
        suspect = answer.status >= SERVER_ERROR or CUT_OFF in answer.body
        if not suspect or not await self._gone_now.take():
            return answer
        if answer.room is not None:
            answer.room.release()
        said = f"HTTP {answer.status}: {answer.body[:SHOWN_CHARS].decode('utf-8', 'replace')}"
        self._note_away(said)
        return NoAnswer("engine_died", f"the server's engine died: {said}", answer.latency_ms)

    async def _has_ended(self) -> bool:
        """Return whether the server has ended.

        Raises nothing: items wait for it."""
        return not self._is_up or await self._list() is None

    async def _not_found(self, body: bytes, answer: Answer) -> Tried:
        """Return what a 404 means.

        An item whose model the server had when it was let in waits for another worker, uncounted.
        """
        await self._looking.take()
        model = model_of(body)
        if model is None or model not in self._gone:
            return answer
        if answer.room is not None:
            answer.room.release()
        now = f"{self._url} serves {self.served.shown} now, and not {model[:SHOWN_CHARS]}"
        return NoAnswer("engine_busy", now, answer.latency_ms, sent=False)

    async def _serves(self) -> Served | None:
        """Return what the server lists; None while no model is loaded.

        Raises BadEngineSettings for another kind of server."""
        answer = await self._list()
        if answer is None:
            return None
        try:
            return _listed(orjson.loads(answer.body)["data"])
        except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
            raise BadEngineSettings(
                f"gpu.upstream_url = {self._url!r}: GET {self._url}/models answers {answer.status} "
                "and lists no models; give the address of vLLM's OpenAI server with its /v1, "
                "started without --api-key"
            ) from error

    async def _list(self) -> HttpAnswer | None:
        """List the server's models; None while none is loaded, or its engine is dead."""
        listed = await self._get(self._models)
        return None if listed is None or await self._get(self._health) is None else listed

    async def _get(self, target: Target) -> HttpAnswer | None:
        """Get a page of the server; None for no answer.

        An answer of what stands before a server that is not up is none either; vLLM says 503 of an
        engine that died.
        """
        assert self._asking is not None, "start() comes first"
        try:
            answer = await self._asking.get(target, timeout_s=ASK_TIMEOUT_S)
        except HttpError:
            return None
        return answer if answer.status < SERVER_ERROR else None

    def _note_away(self, why: str) -> None:
        """Note that the server does not answer, and close the queue until it is back.

        Each item that was not answered calls this; only the first call does something."""
        if not self._is_up or self._draining:
            return
        self._is_up, self._state = False, EngineState()
        self._deaths += 1
        self.queue.close()
        log.error(
            "%s does not answer (%s); items wait here until its model is loaded again",
            self._url,
            why,
        )
        self._returning = asyncio.create_task(self._await_return(), name="server return")

    async def _await_return(self) -> None:
        try:
            await self._await_model()
        except (EngineAway, BadEngineSettings) as error:
            self._give_up(str(error))

    def _hear(self, _: str, running: float, waiting: float) -> None:
        self._state = EngineState(int(running), int(waiting))
        if self._is_up:
            self.queue.heard(self._state)


def _listed(models: Any) -> Served:
    """Read which models a server lists.

    vLLM lists its model by all names, and adapters with the model that they belong to as their
    parent.
    """
    entries = models[:NAMES_MAX]
    adapters = tuple(str(entry["id"]) for entry in entries if entry.get("parent"))
    names = tuple(str(entry["id"]) for entry in entries if not entry.get("parent"))
    context = entries[0].get("max_model_len")
    return Served(names or adapters[:1], adapters, context if type(context) is int else None)


def _at_root(url: str, path: str) -> str:
    """Return an address at the root of the server.

    vLLM has some pages there, while its API is under /v1."""
    return urlsplit(url)._replace(path=path).geturl()


def _read(request: Request) -> Prepared:
    """Read a request before it goes to the server.

    A server may run templates that documents bring, so they are not sent; nor is what only its own
    reader takes for JSON. How many answers are asked for is how many sequences the server runs for
    it; what is no such number is its to refuse.
    """
    try:
        read = orjson.loads(request.body)
        if not isinstance(read, dict):
            return Prepared(request)
        refuse_templates(read)
    except orjson.JSONDecodeError as error:
        return Prepared(request, refused=refusal(RequestRefused(f"the body is not JSON: {error}")))
    except RequestRefused as error:
        return Prepared(request, refused=refusal(error))
    answers = read.get("n")
    return Prepared(
        request, sequences=answers if type(answers) is int and 0 < answers <= ANSWERS_MAX else 1
    )
