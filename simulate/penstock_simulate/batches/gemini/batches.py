"""Gemini's batches: create from a file or from requests in the call, look, list, cancel and
delete."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web

from penstock_simulate.answers import refusals
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.batches.batch import Batch, Dialect
from penstock_simulate.batches.course import Status
from penstock_simulate.batches.gemini import google
from penstock_simulate.batches.gemini.files import GeminiFile, GeminiFiles
from penstock_simulate.batches.gemini.lines import QUEUE_FULL, GeminiReader, GeminiWording, no_room
from penstock_simulate.batches.gemini.shown import shown
from penstock_simulate.batches.refused import Refused
from penstock_simulate.batches.results import Results
from penstock_simulate.batches.sent import json
from penstock_simulate.batches.shop import BatchShop

MAX_INLINE_BYTES = 20 * 1024 * 1024  # of a call with its requests in it
PAGE, MAX_PAGE = 50, 1000


@dataclass(slots=True)
class GeminiBatch:
    """A batch, and where its results go: a file, or the batch itself."""

    batch: Batch
    inline: bool
    responses_file: str | None = None


class GeminiBatches:
    """Handlers of aiohttp."""

    def __init__(self, shop: BatchShop, files: GeminiFiles) -> None:
        self._shop, self._files = shop, files
        self._batches: dict[str, GeminiBatch] = {}

    def routes(self) -> list[web.RouteDef]:
        ident = "/v1beta/batches/{id:[^/:]+}"
        return [
            web.post("/v1beta/models/{model:[^/:]+}:batchGenerateContent", self.create),
            web.get("/v1beta/batches", self.page),
            web.get(ident, self.look),
            web.post(ident + ":cancel", self.cancel),
            web.delete(ident, self.delete),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        self._enter("batches.create", request, spends=True)
        model, (display, config) = request.match_info["model"], _given(await request.read())
        inline = "fileName" not in config
        source = self._inline(config) if inline else self._shop.folder.link(self._input(config))
        dialect = Dialect(
            "gemini", GeminiReader(model), GeminiWording(model), no_room, shuffled=not inline
        )
        batch = await self._shop.admit("batches/" + uuid4().hex[:24], dialect, source, display)
        batch.model = model
        if batch.problems and (inline or batch.problems[0].code == QUEUE_FULL):
            code, message, *_ = batch.problems[0]
            raise Refused(
                Refusal(429, message, code) if code == QUEUE_FULL else refusals.invalid(message)
            )
        self._shop.keep(batch)
        made = self._batches[batch.id] = GeminiBatch(batch, inline)
        if self._shop.strikes("create", self._shop.config.batch_create_500_share):
            raise Refused(refusals.failed())
        return json(await self._shown(made))

    async def page(self, request: web.Request) -> web.StreamResponse:
        self._enter("batches.list", request)
        names, token = google.page(list(reversed(self._batches)), request, PAGE, MAX_PAGE)
        found = [await self._shown(self._batches[name]) for name in names]
        return json({"operations": found} | ({"nextPageToken": token} if token else {}))

    async def look(self, request: web.Request) -> web.StreamResponse:
        self._enter("batches.get", request)
        found = self._batch(request)
        self._shop.looked_at(found.batch)
        return json(await self._shown(found))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Answered at once, with nothing; one that is over stays as it is."""
        self._enter("batches.cancel", request)
        found = self._batch(request)
        if not self._shop.cancel(found.batch) and found.batch.course.is_over(self._shop.now()):
            raise Refused(
                refusals.invalid(f"{found.batch.id} is not running and cannot be cancelled.")
            )
        return json({})

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """The client is not interested any more; one that runs goes on unseen."""
        self._enter("batches.delete", request)
        found = self._batch(request)
        del self._batches[found.batch.id]
        found.batch.deleted = True
        if found.batch.course.is_over(self._shop.now()) and found.responses_file is None:
            self._shop.forget_results(found.batch)
        return json({})

    def _enter(self, call: str, request: web.Request, *, spends: bool = False) -> None:
        self._shop.enter(call, google.key_of(request), spends=spends)

    def _batch(self, request: web.Request) -> GeminiBatch:
        name = "batches/" + request.match_info["id"]
        if name not in self._batches:
            raise Refused(refusals.invalid(f"Batch {name} was not found.", status=404))
        return self._batches[name]

    async def _shown(self, found: GeminiBatch) -> dict[str, Any]:
        now = self._shop.now()
        output = None
        if (
            found.batch.course.status(now) is not Status.EXPIRED
        ):  # what was done by then is not given out
            results = await self._shop.results(found.batch, now)
            output = None if results is None else await self._output(found, results, now)
        return shown(found.batch, now, output)

    async def _output(self, found: GeminiBatch, results: Results, now: float) -> Mapping[str, Any]:
        if results.answers is None:
            return {}
        if found.inline:
            found.batch.reads += 1
            return {
                "inlinedResponses": {
                    "inlinedResponses": await asyncio.to_thread(_lines, results.answers)
                }
            }
        if found.responses_file is None:
            found.responses_file = "files/batch-" + found.batch.id.removeprefix("batches/")
            self._files.add(
                GeminiFile(
                    found.responses_file, results.answers, "", "application/jsonl", now, found.batch
                )
            )
        return {"responsesFile": found.responses_file}

    def _input(self, config: Mapping[str, Any]) -> Path:
        return self._files.get(str(config["fileName"])).path

    def _inline(self, config: Mapping[str, Any]) -> Path:
        """The requests of the call, a line for each. Raises Refused where there are none."""
        given = config.get("requests")
        requests = given.get("requests") if isinstance(given, dict) else None
        if not isinstance(requests, list) or not all(isinstance(one, dict) for one in requests):
            raise Refused(
                refusals.invalid(
                    "input_config: give file_name, or requests.requests, a list of requests."
                )
            )
        path = self._shop.folder.empty()
        with path.open("wb") as file:
            for one in requests:
                file.write(orjson.dumps(one) + b"\n")
        return path


def _given(raw: bytes) -> tuple[str, Mapping[str, Any]]:
    """The display name and the input. Raises Refused for a body that has none."""
    if len(raw) > MAX_INLINE_BYTES:
        told = f"Request payload size exceeds the limit: {MAX_INLINE_BYTES} bytes."
        raise Refused(refusals.invalid(told))
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refused(refusals.invalid(f"Invalid JSON payload received: {error}")) from None
    batch = given.get("batch") if isinstance(given, dict) else None
    config = (
        batch.get("inputConfig", batch.get("input_config")) if isinstance(batch, dict) else None
    )
    if not isinstance(batch, dict) or not isinstance(config, dict):
        raise Refused(refusals.invalid("batch.input_config: is required", "batch.inputConfig"))
    if "file_name" in config:
        config = {"fileName": config["file_name"]} | config
    return str(batch.get("displayName", batch.get("display_name", ""))), config


def _lines(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return [orjson.loads(line) for line in file]
