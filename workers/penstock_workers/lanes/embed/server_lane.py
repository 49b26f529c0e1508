"""The `embed` lane over a server that has the encoder.

The server is text-embeddings-inference, or vLLM's with a pooling model. Both answer OpenAI's
`/v1/embeddings`. Vectors are asked for as base64, which is their bytes, and stored as the lane's
own are. Scores, rankings and classes are asked for on each server's own paths, and answered in one
shape. Batches are the server's business. While it is down nothing is sent, and no attempt is
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from penstock_producer.feed.queues import Served
from penstock_workers.errors import BadEngineSettings
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes import scoring
from penstock_workers.lanes.api.upstream import ROOT, SERVER, ServerCalls, ServerLife, ServerWait
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
from penstock_workers.settings import WorkerSettings


class Input(NamedTuple):
    """The input that ``prepare`` leaves for ``infer``."""

    ask: Ask | scoring.Ask
    server_model: ServerModel  # that the server had


class EncoderModel:
    """The model of an encoder's server, and the names by which items ask for it."""

    def __init__(self, calls: ServerCalls, named: Served) -> None:
        self._calls, self._named = calls, named
        self.now = ServerModel("")
        self.served = named  # with the server's own name, once it is up

    async def look(self) -> ServerModel | None:
        """Return the model that the server has loaded; None while it has none.

        Raises BadEngineSettings for another kind of server."""
        url = self._calls.url
        status, said = await self._page(url + "/models")
        if status == 404:  # text-embeddings-inference says it elsewhere
            status, said = await self._page(self._calls.at_root("/info"))
        if status is None or status >= 500:
            return None
        if (model := model_of(said)) is not None:
            return model if await self._is_healthy() else None
        raise BadEngineSettings(
            f"embed.upstream_url = {url!r}: neither {url}/models nor /info names a model "
            f"(HTTP {status}); give the address of vLLM's or text-embeddings-inference's server "
            "with /v1 at its end, started without an API key"
        )

    def note(self, seen: ServerModel) -> None:
        self.now = seen
        names = tuple(dict.fromkeys((*self._named.names, seen.name)))
        context = self._named.context or seen.context
        self.served = replace(self._named, names=names, context=context, tasks=seen.tasks)

    @property
    def shown(self) -> str:
        return self.now.name

    async def _is_healthy(self) -> bool:
        """Return whether the server's page `/health` does not say 5xx.

        Both servers say 503 there when the model is gone and the server is not; what stands before
        one may lack the page.
        """
        status, _ = await self._page(self._calls.at_root("/health"))
        return status is not None and status < 500

    async def _page(self, url: str) -> tuple[int | None, object]:
        """Get status and JSON of a page; None where there is no server."""
        answer = await self._calls.page(url)
        if answer is None:
            return None, None
        try:
            return answer.status, orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            return answer.status, None


class EmbedServerLane:
    """Implements ``item.lane.Lane``.

    ``give_up`` ends the worker, for its orchestrator to replace."""

    def __init__(self, settings: WorkerSettings, give_up: Callable[[str], None]) -> None:
        embed = settings.embed
        url = embed.upstream_url
        assert url is not None, "else the worker hosts the encoder itself"
        self._matryoshka = embed.matryoshka
        self._calls = ServerCalls(url, settings)
        self._model = EncoderModel(self._calls, embed.served())
        wait = ServerWait[ServerModel](url, embed.upstream_wait_s, "embed")
        self._server = ServerLife(url, wait, self._model, give_up)
        self._in_flight = 0

    async def start(self) -> None:
        """Wait until the server has loaded the model.

        Raises EngineAway when that takes longer than ``embed.upstream_wait_s``."""
        await self._calls.start()
        await self._server.start()

    @property
    def served(self) -> Served:
        return self._model.served

    def is_up(self) -> bool:
        return self._server.up.is_set()

    async def up(self) -> None:
        """Wait until the server has its model."""
        await self._server.up.wait()

    async def prepare(self, request: Request) -> Prepared:
        try:
            ask = self._read(request)
        except BadBody as error:
            return Prepared(request, refused=error.answer())
        trim = request.on_overflow != "fail"
        if isinstance(ask, Ask):
            provider, endpoint, body = SERVER, request.endpoint, self._body(ask, trim=trim)
        else:
            provider, (endpoint, body) = ROOT, scores_request(ask, self._model.now, trim=trim)
        sent = Request(
            request.tag, provider, endpoint, body, request.timeout_s, priority=request.priority
        )
        return Prepared(sent, input=Input(ask, self._model.now))

    async def infer(self, prepared: Prepared) -> Tried:
        given: Input = prepared.input
        # numbers of another one would not fit; the item waits, uncounted
        if given.server_model != self._model.now:
            serves, wanted = self._model.shown, given.server_model.name
            now = f"{self._calls.url} serves {serves} now, and not {wanted}"
            return NoAnswer("engine_busy", now, 0, sent=False)
        self._in_flight += 1
        try:
            tried = await self._calls.infer(prepared)
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
        bound = "engine" if self.is_up() else "starting"
        return {"running": float(self._in_flight), "bound": bound, **self._server.gauges()}

    def drain(self) -> None:
        self._server.drain()

    async def close(self) -> None:
        await self._server.close()
        await self._calls.close()

    def _read(self, request: Request) -> Ask | scoring.Ask:
        """Read what a request asks for.

        Raises BadBody, also for what the server says that its model is not for."""
        task, labels = scoring.task_of(request.endpoint), self._model.now.labels
        if task is None:
            check_endpoint(request.endpoint)
            if labels:
                raise BadBody(
                    f"{self._model.now.name} classifies and does not embed: ask /classify"
                )
            ask = read_body(request.body)
            if ask.messages and self._model.now.is_tei:
                raise BadBody("text-embeddings-inference embeds texts only", param="messages")
            return ask
        try:
            if labels is not None and (why := scoring.wrong_model(task, len(labels))) is not None:
                raise scoring.BadAsk(f"{self._model.now.name}: {why}", "model")
            return scoring.read_ask(task, request.body)
        except scoring.BadAsk as error:
            raise BadBody(str(error), param=error.param) from None

    def _body(self, ask: Ask, *, trim: bool) -> bytes:
        """Make the body of the call to the server.

        It holds what both servers know of the request; what is done with the numbers is this lane's
        business.
        """
        given = {"messages": ask.messages} if ask.messages else {"input": ask.texts or ask.ids}
        body: dict[str, Any] = {
            **given,
            "model": ask.model or self._model.now.name,
            "encoding_format": "base64",
        }
        if trim:
            # vLLM's; text-embeddings-inference cuts with --auto-truncate
            body["truncate_prompt_tokens"] = -1
        return orjson.dumps(body)

    def _stored(self, ask: Ask, answer: Answer) -> Tried:
        """Return the answer with the server's vectors, as it is stored.

        Raises Unusable."""
        read = read_vectors(answer.body, ask.inputs)
        try:
            check_dimensions(ask, ShortVectors(len(read.vectors[0]), self._matryoshka))
            model = ask.model or read.model or self._model.now.name
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

    async def _no_answer(self, tried: NoAnswer) -> NoAnswer:
        """Return what no answer means: if the server is gone, the request was lost with it.

        The same text again gives the same vector, and its document is not at fault."""
        if tried.failure not in ("connect_failed", "connection_lost"):
            return tried
        if tried.failure == "connection_lost" and not await self._server.is_gone():
            return tried
        self._server.note_away(tried.detail)
        return NoAnswer(
            "connect_failed", f"the server ended: {tried.detail}", tried.latency_ms, sent=tried.sent
        )

    async def _refused(self, tried: Answer, does: str) -> Tried:
        """Return what a refusal means, or that the server has lost its model.

        Such a server says 500 to all that it had, and goes on answering until it ends."""
        if tried.status >= 500 and tried.status != 501 and await self._server.is_gone():
            why = f"HTTP {tried.status}: {message(tried.body)}"
            self._server.note_away(why)
            return NoAnswer("connect_failed", f"the server lost its model: {why}", tried.latency_ms)
        return refused(tried, does)
