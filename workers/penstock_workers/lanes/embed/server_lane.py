"""The `embed` lane over a server that has the encoder: text-embeddings-inference, or vLLM's with a pooling model.

Both answer OpenAI's `/v1/embeddings`. Vectors are asked for as base64, which is their bytes, and stored as the lane's own are.
Batches are the server's business. While it is down nothing is sent, and no attempt is counted.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from penstock_workers.errors import BadEngineSettings, EngineAway
from penstock_workers.http import ClientName, HttpClient, HttpError, Target, make_client
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.lanes.embed.encoding.buckets import Vector
from penstock_workers.lanes.embed.requests.bodies import (
    ENDPOINT,
    MAX_INPUTS,
    Ask,
    BadBody,
    ShortVectors,
    answer_body,
    check_dimensions,
    check_endpoint,
    read_body,
)
from penstock_workers.lanes.embed.requests.numbers import NotRepresentable
from penstock_workers.lanes.scoring import asks
from penstock_workers.settings import ProviderSettings, WorkerSettings

log = logging.getLogger(__name__)

SERVER: Final = "server"  # the one provider of the HTTP client: items of all providers go to it
ASK_AGAIN_S: Final = 1.0  # while the model loads
ASK_TIMEOUT_S: Final = 5.0
FOR_SCORES: Final = "host the model in the worker (embed.model), or ask a vLLM server by lane gpu (gpu.upstream_url)"
# How text-embeddings-inference begins the message of its 413 for a text that is too long, as of 1.8.
TOO_LONG: Final = ("`inputs` must have less than", "inputs must have less than")


class EmbedServerLane:
    """Implements ``item.lane.Lane``. ``give_up`` ends the worker, for its orchestrator to replace."""

    def __init__(self, settings: WorkerSettings, give_up: Callable[[str], None]) -> None:
        embed = settings.embed
        assert embed.upstream_url is not None, "else the worker hosts the encoder itself"
        self._url, self._wait_s, self._give_up = embed.upstream_url, embed.upstream_wait_s, give_up
        self._matryoshka = embed.matryoshka
        self._client = ApiLane(
            {SERVER: ProviderSettings(base_url=self._url)},
            settings.max_answer_bytes,
            settings.answer_memory_bytes,
            settings.http_client,
        )
        self._http_client: ClientName = settings.http_client
        self._asking: HttpClient | None = None
        self._model = ""
        self.served = self._named = embed.served()  # with the server's own name, once it is up
        self._up = asyncio.Event()
        self._in_flight = 0
        self._returning: asyncio.Task[None] | None = None
        self._ending = False

    async def start(self) -> None:
        """Returns once the model is loaded. Raises EngineAway when that takes longer than ``embed.upstream_wait_s``."""
        await self._client.start()
        self._asking = make_client(self._http_client)
        await self._await_model()

    async def up(self) -> None:
        """Wait until the server has its model."""
        await self._up.wait()

    async def prepare(self, request: Request) -> Prepared:
        try:
            if asks.task_of(request.endpoint) is not None:
                raise BadBody(
                    f"embed.upstream_url answers {ENDPOINT} only, not {request.endpoint}; {FOR_SCORES}", param="url"
                )
            check_endpoint(request.endpoint)
            ask = read_body(request.body)
        except BadBody as error:
            return Prepared(request, refused=error.answer())
        sent = Request(
            request.tag,
            SERVER,
            request.endpoint,
            self._body(ask, request),
            request.timeout_s,
            priority=request.priority,
        )
        return Prepared(sent, input=ask)

    async def infer(self, prepared: Prepared) -> Tried:
        self._in_flight += 1
        try:
            tried = await self._client.infer(prepared)
        finally:
            self._in_flight -= 1
        if isinstance(tried, NoAnswer):
            return await self._no_answer(tried)
        return self._stored(prepared.input, tried) if tried.status == 200 else _named(tried)

    def gauges(self) -> Mapping[str, float | str]:
        return {"running": float(self._in_flight), "bound": "engine" if self._up.is_set() else "starting"}

    def drain(self) -> None:
        self._ending = True

    async def close(self) -> None:
        self._ending = True
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.gather(self._returning, return_exceptions=True)
        await self._client.close()
        if self._asking is not None:
            await self._asking.close()

    # -- requests and answers --------------------------------------------------------------------------------------

    def _body(self, ask: Ask, request: Request) -> bytes:
        """What both servers know of the request; what is done with the numbers is this lane's business."""
        body: dict[str, Any] = {
            "input": ask.texts or ask.ids,
            "model": ask.model or self._model,
            "encoding_format": "base64",
        }
        if request.on_overflow != "fail":
            body["truncate_prompt_tokens"] = -1  # vLLM's; text-embeddings-inference cuts with --auto-truncate
        return orjson.dumps(body)

    def _stored(self, ask: Ask, answer: Answer) -> Tried:
        try:
            vectors, model, tokens = _read(answer.body, len(ask.texts or ask.ids))
            check_dimensions(ask, ShortVectors(len(vectors[0]), self._matryoshka))
            body = answer_body(ask, vectors, model=ask.model or model or self._model, tokens=tokens)
        except BadBody as error:
            return error.answer()
        except NotRepresentable as error:
            return BadBody(str(error), param="output_dtype").answer()
        except _Unusable as error:
            return NoAnswer("invalid_answer", str(error), answer.latency_ms)
        return Answer(200, answer.headers, body, answer.latency_ms, answer.room, packed=True)

    # -- the server's life -----------------------------------------------------------------------------------------

    async def _no_answer(self, tried: NoAnswer) -> NoAnswer:
        """A request is lost with its server: the same text again gives the same vector, and its document is not at fault."""
        if tried.failure not in ("connect_failed", "connection_lost"):
            return tried
        if tried.failure == "connection_lost" and await self._serves() is not None:
            return tried
        self._note_away(tried.detail)
        return NoAnswer("connect_failed", f"the server ended: {tried.detail}", tried.latency_ms, sent=tried.sent)

    def _note_away(self, why: str) -> None:
        """Called by each item that was not answered; the first has the others wait."""
        if not self._up.is_set() or self._ending:
            return
        self._up.clear()
        log.error("%s does not answer (%s); items wait here until its model is loaded again", self._url, why)
        self._returning = asyncio.create_task(self._await_return(), name="server return")

    async def _await_return(self) -> None:
        try:
            await self._await_model()
        except (EngineAway, BadEngineSettings) as error:
            self._give_up(f"{error}; this worker ends, for another to take over")

    async def _await_model(self) -> None:
        began = time.monotonic()
        log.warning("waiting for the model of %s, for %g s at most", self._url, self._wait_s)
        while (model := await self._serves()) is None:
            if time.monotonic() - began + ASK_AGAIN_S > self._wait_s:
                raise EngineAway(self._url, self._wait_s, "embed")
            await asyncio.sleep(ASK_AGAIN_S)
        self._model = model
        self.served = replace(self._named, names=tuple(dict.fromkeys((*self._named.names, model))))
        self._up.set()
        log.warning("%s serves %s after %.0f s", self._url, model, time.monotonic() - began)

    async def _serves(self) -> str | None:
        """The name of the model that is loaded; None while none is. Raises BadEngineSettings for another kind of server."""
        status, said = await self._get(self._url + "/models")
        if status == 404:  # text-embeddings-inference says it elsewhere
            status, said = await self._get(urlsplit(self._url)._replace(path="/info").geturl())
        if status is None or status >= 500:
            return None
        match said:
            case {"data": [{"id": str(name)}, *_]} | {"model_id": str(name)}:
                return name
        raise BadEngineSettings(
            f"embed.upstream_url = {self._url!r}: neither {self._url}/models nor /info names a model (HTTP {status}); give "
            "the address of vLLM's or text-embeddings-inference's server with /v1 at its end, started without an API key"
        )

    async def _get(self, url: str) -> tuple[int | None, object]:
        """Status and JSON; None where there is no server."""
        assert self._asking is not None, "start() comes first"
        try:
            answer = await self._asking.get(Target.of(url), timeout_s=ASK_TIMEOUT_S)
        except HttpError:
            return None, None
        try:
            return answer.status, orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            return answer.status, None


class _Unusable(Exception):
    """A 200 that does not hold what was asked for."""


def _read(body: bytes, inputs: int) -> tuple[Sequence[Vector], str | None, int]:
    """Vectors in the order of the inputs, the model and the tokens. Raises _Unusable."""
    import numpy

    try:
        answer = orjson.loads(body)
        entries = sorted(answer["data"], key=lambda entry: entry["index"])
        vectors = [_vector(entry["embedding"], numpy) for entry in entries]
        tokens = int((answer.get("usage") or {}).get("prompt_tokens", 0))
    except (ValueError, TypeError, LookupError, AttributeError, binascii.Error) as error:
        raise _Unusable(f"200 with an answer that holds no vectors: {type(error).__name__}: {error}") from None
    if len(vectors) != inputs or inputs > MAX_INPUTS or len({len(vector) for vector in vectors}) != 1:
        raise _Unusable(f"200 with {len(vectors)} vectors for {inputs} inputs, or of unequal length")
    if not all(len(vector) and numpy.isfinite(vector).all() for vector in vectors):
        raise _Unusable("200 with a vector that is empty or holds what is not a number")
    model = answer.get("model")
    return vectors, model if isinstance(model, str) else None, max(0, tokens)


def _vector(embedding: Any, numpy: Any) -> Vector:
    if isinstance(embedding, str):
        return numpy.frombuffer(base64.b64decode(embedding, validate=True), "<f4")
    return numpy.array(embedding, "<f4")


def _named(answer: Answer) -> Tried:
    """What text-embeddings-inference means by statuses that mean something else elsewhere; all others speak for themselves.

    413 is a text that is too long as well as too many of them, 424 a failed forward pass, 429 its full queue.
    """
    words = _message(answer.body)
    match answer.status:
        case 413 if words.startswith(TOO_LONG):
            fix = "shorten it, or start the server with --auto-truncate"
            return BadBody(f"{words}; {fix}", code="context_length_exceeded").answer()
        case 424:
            return NoAnswer("engine_failed", f"the server's model failed: {words}", answer.latency_ms)
        case 429:
            return NoAnswer("engine_busy", f"the server's queue is full: {words}", answer.latency_ms)
    return answer


def _message(body: bytes) -> str:
    """Of either of its error bodies, OpenAI's form or its own; cut."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = None
    words = (said.get("message") or said.get("error")) if isinstance(said, dict) else None
    return str(words if isinstance(words, str) else body[:200].decode("utf-8", "replace"))[:500]
