"""The `gpu` lane over a vLLM server beside the worker.

The engine is in a container of its own, and the worker is small. Items wait in the same queue as
before a hosted engine (engine_queue.py), and go on as far as vLLM's own gauges say that it keeps
up. What has no place in HTTP is left out: bodies travel as they are, and priorities count in the
worker's queue only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson
from msgspec import structs

from penstock_producer.feed.queues import NAMES_MAX, Served
from penstock_producer.feed.routes import model_of
from penstock_ratelimit import InteractiveTarget, ServerGauges
from penstock_ratelimit.for_penstock import InteractiveControl, Ours
from penstock_workers.celery_app.ending import end_this_worker
from penstock_workers.errors import BadEngineSettings
from penstock_workers.http import HttpAnswer
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.api.polls import GaugeWatch
from penstock_workers.lanes.api.upstream import ROOT, SERVER, ServerCalls, ServerLife, ServerWait
from penstock_workers.lanes.gpu.engine.engine_queue import EngineQueue, EngineState, bound
from penstock_workers.lanes.gpu.engine.engines import RequestRefused
from penstock_workers.lanes.gpu.gpu_lane import refusal
from penstock_workers.lanes.gpu.requests.fields import refuse_templates
from penstock_workers.settings import WorkerSettings

GONE_MAX = 4 * NAMES_MAX  # names that are remembered
SHOWN_CHARS = 200  # of a model's name, or of the server's words, in an error
SERVER_ERROR = 500
ANSWERS_MAX = 16_384  # of one request: vLLM's own limit of `n`
CUT_OFF = b'"finish_reason":"abort"'  # of an answer that a server left unfinished as it ended


class ServerQueue:
    """The queue before the server, which its gauges keep full and not flooded."""

    def __init__(self, max_seqs: int, interactive_ttft_s: float | None = None) -> None:
        self.items = EngineQueue()
        self._others = None
        if interactive_ttft_s is not None:
            target = InteractiveTarget(interactive_ttft_s)
            self._others = InteractiveControl(target, time.monotonic)
            self.items.ceiling = int(self._others.state.ceiling)
        self._max_seqs = max_seqs
        self._is_open = False
        self._state = EngineState()

    def open(self) -> None:
        self._is_open = True
        self.items.open(self._max_seqs, 0)

    def close(self) -> None:
        self._is_open, self._state = False, EngineState()
        self.items.close()

    def hear(self, _: str, gauges: ServerGauges) -> None:
        self._state = EngineState(int(gauges.running), int(gauges.waiting))
        if self._others is not None:
            self.items.ceiling = int(self._others.look(gauges, Ours(self.items.inside)).ceiling)
        if self._is_open:
            self.items.heard(self._state)

    def unread(self, _: str, why: str) -> None:
        if self._others is not None:
            self._others.unread(why)

    def gauges(self) -> Mapping[str, float | str]:
        lined_up = self.items.waiting
        max_seqs = self._max_seqs if self._is_open else 0
        told: dict[str, float | str] = {
            "running": float(self._state.running),
            "waiting": float(self._state.waiting + lined_up),
            "bound": "interactive"
            if lined_up and self.items.inside >= self.items.ceiling
            else bound(self._state, max_seqs=max_seqs, lined_up=lined_up),
        }
        if self._others is not None:
            told["yields"] = self._others.state.to_json()
        return told


class VllmModels:
    """The models that a vLLM server serves, and the names it had before."""

    def __init__(self, calls: ServerCalls, names: tuple[str, ...]) -> None:
        self._calls, self._names = calls, names
        self.served = Served(names)  # with all that the server lists, once it is up
        self.default = b""  # as JSON: what the server calls the model that it serves
        self._gone: tuple[str, ...] = ()  # names that the server had, and has no more

    async def look(self) -> Served | None:
        """Return what the server lists; None while no model is loaded.

        Raises BadEngineSettings for another kind of server."""
        url = self._calls.url
        answer = await self._page(url + "/models")
        # vLLM says 503 there once its engine has died
        if answer is None or await self._page(self._calls.at_root("/health")) is None:
            return None
        try:
            return _listed(orjson.loads(answer.body)["data"])
        except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
            raise BadEngineSettings(
                f"gpu.upstream_url = {url!r}: GET {url}/models answers {answer.status} and lists "
                "no models; give the address of vLLM's OpenAI server with its /v1, started without "
                "--api-key"
            ) from error

    def note(self, seen: Served) -> None:
        before = self.served.every_name
        self.served = Served(
            tuple(dict.fromkeys((*self._names, *seen.names))), seen.adapters, seen.context
        )
        self.default = orjson.dumps(seen.names[0])
        gone = [name for name in (*self._gone, *before) if name not in self.served.every_name]
        self._gone = tuple(dict.fromkeys(gone))[-GONE_MAX:]

    @property
    def shown(self) -> str:
        return ", ".join(self.served.every_name)

    def had(self, model: str) -> bool:
        """Return whether the server had a model, and has it no more."""
        return model in self._gone

    async def _page(self, url: str) -> HttpAnswer | None:
        """Get a page of the server; None for no answer.

        An answer of what stands before a server that is not up is none either."""
        answer = await self._calls.page(url)
        return answer if answer is not None and answer.status < SERVER_ERROR else None


class SidecarLane:
    """Implements ``item.lane.Lane``.

    ``give_up`` ends the worker, for its orchestrator to replace."""

    sequences: int | None = None  # that it runs at once: no server of vLLM says it

    def __init__(
        self, settings: WorkerSettings, give_up: Callable[[str], None] = end_this_worker
    ) -> None:
        url = settings.gpu.upstream_url
        assert url is not None, "else the worker hosts the engine itself"
        self._calls = ServerCalls(url, settings)
        self._line = ServerQueue(settings.gpu.sequences, settings.gpu.interactive_ttft_s)
        self._models = VllmModels(self._calls, settings.gpu.names)
        wait = ServerWait[Served](url, settings.gpu.upstream_wait_s, "gpu")
        self._server = ServerLife(url, wait, self._models, give_up, self._line)
        self._gauges = GaugeWatch(
            {SERVER: self._calls.at_root("/metrics")},
            self._line.hear,
            unread=self._line.unread,
            closely=[SERVER],
            http_client=settings.http_client,
        )

    async def start(self) -> None:
        """Wait until the server has loaded the model.

        Raises EngineAway when that takes longer than ``gpu.upstream_wait_s``."""
        await self._calls.start()
        await self._server.start()
        self._gauges.start()

    @property
    def queue(self) -> EngineQueue:
        return self._line.items

    @property
    def served(self) -> Served:
        return self._models.served

    async def prepare(self, request: Request) -> Prepared:
        """Put the model into the body.

        Jobs of this lane need not name one, and a server may insist."""
        body = request.body
        if b'"model"' not in body and body[:1] == b"{" and body[1:2] != b"}":
            body = b'{"model":' + self._models.default + b"," + body[1:]
        place = SERVER if request.endpoint.startswith("/v1/") else ROOT
        request = structs.replace(request, provider=place, body=body)
        if b"chat_template" not in body and b"\\u" not in body and b'"n"' not in body:
            return Prepared(request)
        return _read(request)

    async def infer(self, prepared: Prepared) -> Tried:
        tried = await self._calls.infer(prepared)
        if isinstance(tried, Answer):
            return await self._answered(prepared, tried)
        if tried.failure not in ("connect_failed", "connection_lost"):
            return tried
        if tried.failure == "connection_lost" and await self._server.is_gone():
            tried = replace(
                tried, failure="engine_died", detail=f"the server ended: {tried.detail}"
            )
        if tried.failure != "connection_lost":
            self._server.note_away(tried.detail)
        return tried

    def gauges(self) -> Mapping[str, float | str]:
        return {**self._line.gauges(), **self._server.gauges()}

    def drain(self) -> None:
        self._server.drain()

    async def close(self) -> None:
        self._line.close()
        await self._server.close()
        await self._gauges.close()
        await self._calls.close()

    async def _answered(self, prepared: Prepared, answer: Answer) -> Tried:
        """Return what an answer means, or that the server's engine has died.

        Such a server says 500 to all that was in it, and one that ends cuts answers off."""
        if answer.status == 404:
            return await self._not_found(prepared.request.body, answer)
        suspect = answer.status >= SERVER_ERROR or CUT_OFF in answer.body
        if not suspect or not await self._server.is_gone():
            return answer
        if answer.room is not None:
            answer.room.release()
        said = f"HTTP {answer.status}: {answer.body[:SHOWN_CHARS].decode('utf-8', 'replace')}"
        self._server.note_away(said)
        return NoAnswer("engine_died", f"the server's engine died: {said}", answer.latency_ms)

    async def _not_found(self, body: bytes, answer: Answer) -> Tried:
        """Return what a 404 means.

        An item whose model the server had when it was let in waits for another worker, uncounted.
        """
        await self._server.look()
        model = model_of(body)
        if model is None or not self._models.had(model):
            return answer
        if answer.room is not None:
            answer.room.release()
        serves = self.served.shown
        now = f"{self._calls.url} serves {serves} now, and not {model[:SHOWN_CHARS]}"
        return NoAnswer("engine_busy", now, answer.latency_ms, sent=False)


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
