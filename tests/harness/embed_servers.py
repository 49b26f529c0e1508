"""Servers with a model, for tests of the embed lane: one keeps text-embeddings-inference's
contract, one vLLM's.

text-embeddings-inference's is from its documentation (docs/openapi.json) and its sources, 1.8 and
1.9: paths, field names, statuses and words. A token is a word; a score is the number of words, a
class more for each label.
"""

from __future__ import annotations

import asyncio
import base64
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web
from servers import free_port

MAX_TOKENS, MAX_BATCH = 8, 4  # of the server
VECTOR = [0.6, 0.8, 0.0, 0.0]
START_S = 10.0  # for a thread to listen


class PlayedServer(ABC):
    """What both have: `/health`, `/v1/embeddings`, and failures that a test asks for."""

    def __init__(self, labels: Sequence[str] | None = None, *, model: str) -> None:
        """``labels``: of a classifier's classes; None = it embeds."""
        self.labels, self.model = labels, model
        self.asked: list[tuple[str, dict[str, Any]]] = []  # path and body
        self.fails: list[tuple[int, str, str]] = []  # of the next requests: status, message, type
        self.answer: bytes | None = None  # in place of its own
        self.loaded = self.healthy = True

    @abstractmethod
    def routes(self) -> list[web.RouteDef]:
        """Its own, beside `/health`."""

    @abstractmethod
    def error(self, path: str, status: int, message: str, kind: str) -> web.Response:
        """In the form of this server."""

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def read(self, request: web.Request) -> tuple[dict[str, Any], web.Response | None]:
        """What was asked, and the answer that the test wants instead of the server's own."""
        asked = orjson.loads(await request.read())
        self.asked.append((request.path, asked))
        if self.fails:
            return asked, self.error(request.path, *self.fails.pop(0))
        if self.answer is not None:
            return asked, web.Response(body=self.answer, content_type="application/json")
        return asked, None

    @asynccontextmanager
    async def served(self, port: int = 0) -> AsyncIterator[str]:
        app = web.Application()
        app.add_routes([web.get("/health", self.health), *self.routes()])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()


class Tei(PlayedServer):
    """`/info`, `/v1/embeddings` and `/predict`.

    What is wrong with a request was 413 up to 1.8 and is 422 since 1.9."""

    def __init__(self, labels: Sequence[str] | None = None, *, invalid: int = 422) -> None:
        super().__init__(labels, model="BAAI/bge-small")
        self.invalid = invalid

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/info", self.info),
            web.post("/v1/embeddings", self.embeddings),
            web.post("/predict", self.predict),
        ]

    def error(self, path: str, status: int, message: str, kind: str) -> web.Response:
        if path.startswith("/v1/"):
            return web.json_response(
                {"message": message, "code": status, "type": kind}, status=status
            )
        return web.json_response({"error": message, "error_type": kind}, status=status)

    async def info(self, _: web.Request) -> web.Response:
        if not self.loaded:
            return web.Response(status=503, text="starting")
        names = {str(place): label for place, label in enumerate(self.labels or ())}
        kind: dict[str, Any] = {"embedding": {"pooling": "cls"}}
        if names:
            classes = {
                "id2label": names,
                "label2id": {label: int(place) for place, label in names.items()},
            }
            kind = {"reranker" if len(names) == 1 else "classifier": classes}
        return web.json_response(
            {
                "model_id": self.model,
                "model_sha": None,
                "model_dtype": "float32",
                "model_type": kind,
                "max_concurrent_requests": 512,
                "max_input_length": MAX_TOKENS,
                "max_batch_tokens": 16384,
                "max_batch_requests": None,
                "max_client_batch_size": MAX_BATCH,
                "auto_truncate": False,
                "tokenization_workers": 2,
                "version": "1.9.3",
            }
        )

    async def embeddings(self, request: web.Request) -> web.Response:
        asked, instead = await self.read(request)
        if instead is not None:
            return instead
        inputs = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        wrong = self._wrong(request.path, inputs, truncate=False)
        return wrong or embedded(inputs, asked, self.model)

    async def predict(self, request: web.Request) -> web.Response:
        asked, instead = await self.read(request)
        if instead is not None:
            return instead
        # each is a list of one text, or of a pair
        texts = [" ".join(one) for one in asked["inputs"]]
        assert all(isinstance(one, list) and len(one) in (1, 2) for one in asked["inputs"])
        wrong = self._wrong(request.path, texts, truncate=asked["truncate"])
        if wrong is not None:
            return wrong
        factor = 2 if asked["raw_scores"] else 1
        said = []
        for text in texts:
            numbers = [factor * number for number in numbers_of(text, self.labels or ())]
            pairs = zip(numbers, self.labels or (), strict=True)
            said.append(
                [{"score": number, "label": label} for number, label in sorted(pairs, reverse=True)]
            )
        return web.json_response(
            said, headers={"x-compute-tokens": str(sum(map(tokens_of, texts)))}
        )

    def _wrong(self, path: str, texts: Sequence[str], *, truncate: bool) -> web.Response | None:
        if len(texts) > MAX_BATCH:
            words = f"batch size {len(texts)} > maximum allowed batch size {MAX_BATCH}"
            return self.error(path, self.invalid, words, "Validation")
        longest = max(map(tokens_of, texts))
        if longest > MAX_TOKENS and not truncate:
            words = (
                f"Input validation error: `inputs` must have less than {MAX_TOKENS} tokens. Given: "
                f"{longest}"
            )
            return self.error(path, self.invalid, words, "Validation")
        return None


class Vllm(PlayedServer):
    """`/v1/models`, and only the paths that its model can answer: the others are 404."""

    def __init__(self, labels: Sequence[str] | None = None) -> None:
        super().__init__(labels, model="tiny-bert")

    def routes(self) -> list[web.RouteDef]:
        able = [web.get("/v1/models", self.models)]
        if self.labels is None:
            return [*able, web.post("/v1/embeddings", self.embeddings), self._nothing()]
        able.append(web.post("/classify", self.classify))
        if len(self.labels) == 1:
            able.append(web.post("/score", self.score))
        return [*able, self._nothing()]

    def _nothing(self) -> web.RouteDef:
        async def missing(_: web.Request) -> web.Response:
            return web.json_response({"detail": "Not Found"}, status=404)

        return web.post("/{path:.*}", missing)

    def error(self, path: str, status: int, message: str, kind: str) -> web.Response:
        error = {"message": message, "type": kind, "param": None, "code": status}
        return web.json_response({"error": error}, status=status)

    async def models(self, _: web.Request) -> web.Response:
        said = {"object": "list", "data": [{"id": self.model, "max_model_len": MAX_TOKENS}]}
        return web.json_response(said, status=200 if self.loaded else 503)

    async def embeddings(self, request: web.Request) -> web.Response:
        asked, instead = await self.read(request)
        given = asked.get("input", str(asked.get("messages")))  # a chat is one input
        inputs = [given] if isinstance(given, str) else given
        wrong = None if "messages" in asked else self._wrong(request.path, inputs, asked)
        return instead or wrong or embedded(inputs, asked, asked["model"])

    async def score(self, request: web.Request) -> web.Response:
        asked, instead = await self.read(request)
        firsts, seconds = asked["text_1"], asked["text_2"]
        firsts = [firsts] * len(seconds) if isinstance(firsts, str) else firsts
        texts = [f"{first} {second}" for first, second in zip(firsts, seconds, strict=True)]
        wrong = instead or self._wrong(request.path, texts, asked)
        if wrong is not None:
            return wrong
        data = [
            {"index": at, "object": "score", "score": float(tokens_of(text))}
            for at, text in enumerate(texts)
        ]
        return web.json_response(listed(data[::-1], texts, self.model))

    async def classify(self, request: web.Request) -> web.Response:
        asked, instead = await self.read(request)
        wrong = instead or self._wrong(request.path, asked["input"], asked)
        if wrong is not None:
            return wrong
        labels, data = self.labels or (), []
        for at, text in enumerate(asked["input"]):
            numbers = numbers_of(text, labels)
            best = labels[numbers.index(max(numbers))]
            data.append({"index": at, "label": best, "probs": numbers, "num_classes": len(labels)})
        return web.json_response(listed(data, asked["input"], self.model))

    def _wrong(self, path: str, texts: Sequence[str], asked: dict[str, Any]) -> web.Response | None:
        longest = max(map(tokens_of, texts))
        if longest <= MAX_TOKENS or "truncate_prompt_tokens" in asked:
            return None
        words = (
            f"This model's maximum context length is {MAX_TOKENS} tokens. However, your prompt "
            f"contains {longest}"
        )
        return self.error(path, 400, words, "BadRequestError")


def tokens_of(text: str) -> int:
    return len(text.split())


def numbers_of(text: str, labels: Sequence[str]) -> list[float]:
    return [float(tokens_of(text) + place) for place in range(len(labels))]


def listed(data: list[dict[str, Any]], texts: Sequence[str], model: str) -> dict[str, Any]:
    tokens = sum(map(tokens_of, texts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": "x", "object": "list", "created": 1, "model": model, "data": data, "usage": usage}


def embedded(inputs: Sequence[str], asked: dict[str, Any], model: str) -> web.Response:
    """In an order of its own."""
    assert asked["encoding_format"] == "base64"
    packed = base64.b64encode(struct.pack("<4f", *VECTOR)).decode()
    data = [{"object": "embedding", "index": at, "embedding": packed} for at in range(len(inputs))]
    longest = max(map(tokens_of, inputs))
    usage = {"prompt_tokens": longest, "total_tokens": longest}
    return web.json_response({"object": "list", "data": data[::-1], "model": model, "usage": usage})


class OnThread(threading.Thread):
    """A server on a thread of its own, for tests of processes; it ends with ours."""

    def __init__(self, played: PlayedServer) -> None:
        super().__init__(name="played encoder", daemon=True)
        self._played, self._port, self._up = played, free_port(), threading.Event()

    def begin(self) -> str:
        """Serve; return the URL."""
        self.start()
        assert self._up.wait(START_S)
        return f"http://127.0.0.1:{self._port}/v1"

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        async with self._played.served(self._port):
            self._up.set()
            await asyncio.Event().wait()
