"""The `embed` lane over a server that has the encoder.

The server is text-embeddings-inference, or vLLM's with a pooling model. Both answer OpenAI's
`/v1/embeddings`. Vectors are asked for as base64, which is their bytes, and stored as the lane's
own are. Scores, rankings and classes are asked for on each server's own paths, and answered in one
shape. Batches are the server's business. While it is down nothing is sent, and no attempt is
counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import orjson

from penstock_workers.errors import BadEngineSettings, EngineAway
from penstock_workers.http import ClientName, HttpClient, HttpError, Target, make_client
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes import scoring
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.lanes.embed.bodies import (
    Ask,
    BadBody,
    NotRepresentable,
    ShortVectors,
    answer_body,
    check_dimensions,
    check_endpoint,
    read_body,
)
from penstock_workers.lanes.embed.server_answers import (
    ServerModel,
    Unusable,
    message,
    model_of,
    read_scores,
    read_vectors,
    refused,
    scores_request,
)
from penstock_workers.lanes.loading import ServerWait, SharedLook
from penstock_workers.settings import ProviderSettings, WorkerSettings

log = logging.getLogger(__name__)

SERVER: Final = "server"  # the provider of the HTTP client: items of all providers go to it
ROOT: Final = "server root"  # the same server: its paths beside its /v1
ASK_TIMEOUT_S: Final = 5.0
# how often the server is asked what it serves: it may be started with another model
MODEL_EACH_S: Final = 5.0


class Input(NamedTuple):
    """What ``prepare`` leaves for ``infer``."""

    ask: Ask | scoring.Ask
    server_model: ServerModel  # that the server had


class EmbedServerLane:
    """Implements ``item.lane.Lane``.

    ``give_up`` ends the worker, for its orchestrator to replace."""

    def __init__(self, settings: WorkerSettings, give_up: Callable[[str], None]) -> None:
        embed = settings.embed
        assert embed.upstream_url is not None, "else the worker hosts the encoder itself"
        self._url, self._wait_s, self._give_up = embed.upstream_url, embed.upstream_wait_s, give_up
        self._matryoshka = embed.matryoshka
        self._client = ApiLane(
            {
                SERVER: ProviderSettings(base_url=self._url),
                ROOT: ProviderSettings(base_url=self._url.removesuffix("/v1")),
            },
            settings.max_answer_bytes,
            settings.answer_memory_bytes,
            settings.http_client,
        )
        self._http_client: ClientName = settings.http_client
        self._asking: HttpClient | None = None
        self._gone_now = SharedLook(self._is_gone)
        self._model = ServerModel("")
        self.served = self._named = embed.served()  # with the server's own name, once it is up
        self._loading = ServerWait(self._url)
        self._up = asyncio.Event()
        self._in_flight = 0
        self._deaths = 0  # times that the server went away
        self._returning: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._ending = False

    async def start(self) -> None:
        """Wait until the server has loaded the model.

        Raises EngineAway when that takes longer than ``embed.upstream_wait_s``."""
        await self._client.start()
        self._asking = make_client(self._http_client)
        await self._await_model()
        self._following = asyncio.create_task(self._follow_model(), name="server model")

    def is_up(self) -> bool:
        return self._up.is_set()

    async def up(self) -> None:
        """Wait until the server has its model."""
        await self._up.wait()

    async def prepare(self, request: Request) -> Prepared:
        try:
            ask = self._read(request)
        except BadBody as error:
            return Prepared(request, refused=error.answer())
        trim = request.on_overflow != "fail"
        if isinstance(ask, Ask):
            provider, endpoint, body = SERVER, request.endpoint, self._body(ask, trim=trim)
        else:
            provider, (endpoint, body) = ROOT, scores_request(ask, self._model, trim=trim)
        sent = Request(
            request.tag, provider, endpoint, body, request.timeout_s, priority=request.priority
        )
        return Prepared(sent, input=Input(ask, self._model))

    async def infer(self, prepared: Prepared) -> Tried:
        given: Input = prepared.input
        # numbers of another one would not fit; the item waits, uncounted
        if given.server_model != self._model:
            now = f"{self._url} serves {self._model.name} now, and not {given.server_model.name}"
            return NoAnswer("engine_busy", now, 0, sent=False)
        self._in_flight += 1
        try:
            tried = await self._client.infer(prepared)
        finally:
            self._in_flight -= 1
        if isinstance(tried, NoAnswer):
            return await self._no_answer(tried)
        ask = given.ask
        if tried.status != 200:
            return await self._refused(tried, "embed" if isinstance(ask, Ask) else ask.task)
        try:
            if isinstance(ask, Ask):
                return self._stored(ask, tried)
            return self._scored(ask, given.server_model, tried, prepared.request.tag)
        except Unusable as error:
            return NoAnswer("invalid_answer", str(error), tried.latency_ms)

    def gauges(self) -> Mapping[str, float | str]:
        bound = "engine" if self._up.is_set() else "starting"
        figures = {"deaths": float(self._deaths), "running": float(self._in_flight)}
        return {**figures, "bound": bound, **self._loading.gauges()}

    def drain(self) -> None:
        self._ending = True

    async def close(self) -> None:
        self._ending = True
        for task in (self._returning, self._following):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._client.close()
        if self._asking is not None:
            await self._asking.close()

    # -- requests and answers ----------------------------------------------------------------------

    def _read(self, request: Request) -> Ask | scoring.Ask:
        """Read what a request asks for.

        Raises BadBody, also for what the server says that its model is not for."""
        task, labels = scoring.task_of(request.endpoint), self._model.labels
        if task is None:
            check_endpoint(request.endpoint, ", /v1/rerank, /v1/score and /classify")
            if labels:
                raise BadBody(f"{self._model.name} classifies and does not embed: ask /classify")
            return read_body(request.body)
        try:
            if labels is not None and (why := scoring.wrong_model(task, len(labels))) is not None:
                raise scoring.BadAsk(f"{self._model.name}: {why}", "model")
            return scoring.read_ask(task, request.body)
        except scoring.BadAsk as error:
            raise BadBody(str(error), param=error.param) from None

    def _body(self, ask: Ask, *, trim: bool) -> bytes:
        """Make the body of the call to the server.

        It holds what both servers know of the request; what is done with the numbers is this lane's
        business.
        """
        body: dict[str, Any] = {
            "input": ask.texts or ask.ids,
            "model": ask.model or self._model.name,
            "encoding_format": "base64",
        }
        if trim:
            # vLLM's; text-embeddings-inference cuts with --auto-truncate
            body["truncate_prompt_tokens"] = -1
        return orjson.dumps(body)

    def _stored(self, ask: Ask, answer: Answer) -> Tried:
        """Return the answer with the server's vectors, as it is stored.

        Raises Unusable."""
        read = read_vectors(answer.body, len(ask.texts or ask.ids))
        try:
            check_dimensions(ask, ShortVectors(len(read.vectors[0]), self._matryoshka))
            model = ask.model or read.model or self._model.name
            body = answer_body(ask, read.vectors, model=model, tokens=read.tokens)
        except BadBody as error:
            return error.answer()
        except NotRepresentable as error:
            return BadBody(str(error), param="output_dtype").answer()
        return Answer(200, answer.headers, body, answer.latency_ms, answer.room, packed=True)

    def _scored(self, ask: scoring.Ask, model: ServerModel, answer: Answer, tag: str) -> Answer:
        """Return the answer with the server's scores.

        Raises Unusable."""
        read = read_scores(answer, ask, model)
        name = ask.model or model.name
        body = scoring.answer_body(
            ask, read.rows, labels=read.labels, tag=tag, model=name, tokens=read.tokens
        )
        return Answer(200, answer.headers, body, answer.latency_ms, answer.room)

    # -- the server's life -------------------------------------------------------------------------

    async def _no_answer(self, tried: NoAnswer) -> NoAnswer:
        """Return what no answer means: if the server is gone, the request was lost with it.

        The same text again gives the same vector, and its document is not at fault."""
        if tried.failure not in ("connect_failed", "connection_lost"):
            return tried
        if tried.failure == "connection_lost" and not await self._gone_now.take():
            return tried
        self._note_away(tried.detail)
        return NoAnswer(
            "connect_failed", f"the server ended: {tried.detail}", tried.latency_ms, sent=tried.sent
        )

    async def _refused(self, tried: Answer, does: str) -> Tried:
        """Return what a refusal means, or that the server has lost its model.

        Such a server says 500 to all that it had, and goes on answering until it ends."""
        if tried.status >= 500 and tried.status != 501 and await self._gone_now.take():
            why = f"HTTP {tried.status}: {message(tried.body)}"
            self._note_away(why)
            return NoAnswer("connect_failed", f"the server lost its model: {why}", tried.latency_ms)
        return refused(tried, does)

    async def _is_gone(self) -> bool:
        return not self._up.is_set() or await self._serves() is None

    def _note_away(self, why: str) -> None:
        """Note that the server does not answer, and have items wait.

        Each item that was not answered calls this; only the first call does something."""
        if not self._up.is_set() or self._ending:
            return
        self._up.clear()
        self._deaths += 1
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
            self._give_up(f"{error}; this worker ends, for another to take over")

    async def _await_model(self) -> None:
        self._note_model(await self._loading.model(self._serves, self._wait_s, "embed"))
        self._up.set()
        log.warning("%s serves %s", self._url, self._model.name)

    def _note_model(self, model: ServerModel) -> None:
        self._model = model
        names = tuple(dict.fromkeys((*self._named.names, model.name)))
        context = self._named.context or model.context
        self.served = replace(self._named, names=names, context=context, tasks=model.tasks)

    async def _follow_model(self) -> None:
        """Look again and again at which model the server has.

        Changes nothing while the server does not answer: its items notice that."""
        while True:
            await asyncio.sleep(MODEL_EACH_S)
            try:
                model = await self._serves() if self._up.is_set() else None
            except BadEngineSettings as error:
                log.warning("%s", error)
                continue
            if model is not None:
                self._note_model(model)

    async def _serves(self) -> ServerModel | None:
        """Return the model that the server has loaded; None while it has none.

        Raises BadEngineSettings for another kind of server."""
        status, said = await self._get(self._url + "/models")
        if status == 404:  # text-embeddings-inference says it elsewhere
            status, said = await self._get(urlsplit(self._url)._replace(path="/info").geturl())
        if status is None or status >= 500:
            return None
        if (model := model_of(said)) is not None:
            return model if await self._is_healthy() else None
        raise BadEngineSettings(
            f"embed.upstream_url = {self._url!r}: neither {self._url}/models nor /info names a "
            f"model (HTTP {status}); give the address of vLLM's or text-embeddings-inference's "
            "server with /v1 at its end, started without an API key"
        )

    async def _is_healthy(self) -> bool:
        """Return whether the server's page `/health` does not say 5xx.

        Both servers say 503 there when the model is gone and the server is not; what stands before
        one may lack the page.
        """
        status, _ = await self._get(urlsplit(self._url)._replace(path="/health").geturl())
        return status is not None and status < 500

    async def _get(self, url: str) -> tuple[int | None, object]:
        """Get status and JSON of a page; None where there is no server."""
        assert self._asking is not None, "start() comes first"
        try:
            answer = await self._asking.get(Target.of(url), timeout_s=ASK_TIMEOUT_S)
        except HttpError:
            return None, None
        try:
            return answer.status, orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            return answer.status, None
