"""Gemini's batches: create from a file or from requests in the call, list, cancel and delete."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web

from penstock_simulate.answers import refusals
from penstock_simulate.answers.calls import GENERATE, Call, misshapen
from penstock_simulate.answers.faults import document_of
from penstock_simulate.answers.prompt_cache import PromptCache
from penstock_simulate.answers.refusals import Refusal, gemini
from penstock_simulate.answers.replies import answer_body
from penstock_simulate.batches import gemini_files
from penstock_simulate.batches.batch import Batch, Dialect, Queue, Refused
from penstock_simulate.batches.batch_service import BatchService
from penstock_simulate.batches.gemini_files import GeminiFile, GeminiFiles, timestamp
from penstock_simulate.batches.intake import Asked, Problem, Span, renamed, spans_of_lines
from penstock_simulate.batches.results import Results, Undone
from penstock_simulate.batches.sent import in_words_of, json
from penstock_simulate.batches.timeline import OVER, Status
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.reply import Usage

QUEUE_FULL = "RESOURCE_EXHAUSTED"
CANCELLED, INTERNAL = 1, 13  # of google.rpc.Code
RPC_CODES = {
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "UNAVAILABLE": 14,
}


def rpc_code(status: str) -> int:
    """Return the number of a status of google.rpc.Code."""
    return RPC_CODES.get(status, INTERNAL)


def read_request(given: dict[str, Any], model: str) -> Asked:
    """Read a line; a document is known by its key or, without one, by what is asked."""
    key, body = given.get("key"), given["request"]
    if isinstance(key, str) and key:
        document = document_of(key)
    else:
        document = (
            "body-"
            + blake2b(orjson.dumps(body, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()
        )
    call = Call(GENERATE, b"", None, document, 1, document, model=model)
    echo: dict[str, Any] = {name: given[name] for name in ("key", "metadata") if name in given}
    return Asked(document, call, misshapen(call, body) is None, echo)


class GeminiReader:
    """A line that is no request fails the batch; a request that cannot be used fails alone."""

    def __init__(self, model: str) -> None:
        self.problems: list[Problem] = []
        self._model = model

    def spans(self, source: Path) -> Iterator[Span]:
        return spans_of_lines(source)

    def checked(self, raw: bytes, number: int) -> Asked | None:
        try:
            given = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            self.problems.append(
                Problem("INVALID_ARGUMENT", f"Line {number} is not valid JSON: {error}", number)
            )
            return None
        if not isinstance(given, dict) or not isinstance(given.get("request"), dict):
            self.problems.append(
                Problem("INVALID_ARGUMENT", f"Line {number} has no 'request'.", number)
            )
            return None
        return read_request(given, self._model)

    def whole(self, requests: int) -> None:
        if requests == 0:
            self.problems.append(Problem("INVALID_ARGUMENT", "The batch has no requests."))


class GeminiWording:
    """One line for each request.

    Those of inline requests repeat their metadata, which those of a file have not."""

    apart = False

    def __init__(self, model: str) -> None:
        self._model = model
        self._cache = PromptCache()

    def asked(self, raw: bytes) -> Asked:
        return read_request(orjson.loads(raw), self._model)

    def answered(self, asked: Asked, request_id: str) -> tuple[bytes, Usage]:
        asked.call.cache = self._cache.read_in_batch(asked.call.prefixes)
        body, usage = answer_body(asked.call)
        return orjson.dumps({**asked.echo, "response": orjson.Fragment(body)}), usage

    def refused(self, asked: Asked, refusal: Refusal, request_id: str) -> bytes:
        error = orjson.loads(gemini(refusal, request_id)[1])["error"]
        return _failed(asked, rpc_code(error["status"]), error["message"])

    def undone(self, asked: Asked, why: Undone, request_id: str) -> bytes:
        if why is Undone.TIMED_OUT:
            return _failed(
                asked,
                RPC_CODES["DEADLINE_EXCEEDED"],
                "The deadline expired before the request was done.",
            )
        return _failed(asked, CANCELLED, "The request was cancelled.")

    def unknown(self, line: bytes, asked: Asked) -> bytes:
        return renamed(line, "key")


def no_room(queue: Queue, config: SimulatorConfig) -> Problem | None:
    most = config.batch_enqueued_tokens
    if most is None or queue.tokens <= most:
        return None
    told = (
        f"You exceeded your current quota: {queue.model} may have {most:,} enqueued tokens in "
        "batches."
    )
    return Problem(QUEUE_FULL, told)


def _failed(asked: Asked, code: int, message: str) -> bytes:
    return orjson.dumps({**asked.echo, "error": {"code": code, "message": message}})


KIND = "type.googleapis.com/google.ai.generativelanguage.v1main."
STATES: Mapping[Status, str] = {
    Status.VALIDATING: "BATCH_STATE_PENDING",
    Status.FAILED: "BATCH_STATE_FAILED",
    Status.IN_PROGRESS: "BATCH_STATE_RUNNING",
    Status.FINALIZING: "BATCH_STATE_RUNNING",
    Status.CANCELLING: "BATCH_STATE_RUNNING",
    Status.COMPLETED: "BATCH_STATE_SUCCEEDED",
    Status.EXPIRED: "BATCH_STATE_EXPIRED",
    Status.CANCELLED: "BATCH_STATE_CANCELLED",
}
CODES = {Status.FAILED: 3, Status.EXPIRED: 4, Status.CANCELLED: 1}  # of google.rpc.Code
WORDS = {
    Status.EXPIRED: "The batch expired before it was done.",
    Status.CANCELLED: "The batch was cancelled.",
}


def shown(batch: Batch, now: float, output: Mapping[str, Any] | None) -> dict[str, Any]:
    """Show a batch.

    ``output`` is a file of results, or the results themselves, where there are any."""
    status, timeline = batch.timeline.status(now), batch.timeline
    moments = timeline.moments(now)
    over = status in OVER
    metadata: dict[str, Any] = {
        "@type": KIND + "GenerateContentBatch",
        "name": batch.id,
        "displayName": batch.tag,
        "model": f"models/{batch.model}",
        "createTime": timestamp(timeline.created_at),
        "updateTime": timestamp(moments[-1].at),
        "batchStats": _stats(batch, now),
        "state": STATES[status],
    }
    found: dict[str, Any] = {"name": batch.id, "metadata": metadata}
    if over:
        metadata["endTime"], found["done"] = timestamp(moments[-1].at), True
    if output is not None:
        metadata["output"] = output
        found["response"] = {"@type": KIND + "GenerateContentBatchOutput", **output}
    if status in CODES:
        why = batch.problems[0].message if status is Status.FAILED else WORDS[status]
        found["error"] = {"code": CODES[status], "message": why}
    return found


def _stats(batch: Batch, now: float) -> dict[str, str]:
    """Show the counts.

    64-bit numbers are texts in Google's JSON, and those that are 0 are left out."""
    counts = batch.counts(now)
    found = {
        "requestCount": counts.total,
        "successfulRequestCount": counts.good,
        "failedRequestCount": counts.bad + counts.undone,
        "pendingRequestCount": counts.total - counts.good - counts.bad - counts.undone,
    }
    return {name: str(number) for name, number in found.items() if number}


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

    def __init__(self, service: BatchService, files: GeminiFiles) -> None:
        self._service, self._files = service, files
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
        if inline:
            source = self._inline(config)
        else:
            given = self._files.get(str(config["fileName"]))
            source = self._service.folder.link(given.path)
        dialect = Dialect(
            "gemini", GeminiReader(model), GeminiWording(model), no_room, shuffled=not inline
        )
        batch = await self._service.admit("batches/" + uuid4().hex[:24], dialect, source, display)
        batch.model = model
        if batch.problems and (inline or batch.problems[0].code == QUEUE_FULL):
            code, message, *_ = batch.problems[0]
            raise Refused(
                Refusal(429, message, code) if code == QUEUE_FULL else refusals.invalid(message)
            )
        self._service.keep(batch)
        made = self._batches[batch.id] = GeminiBatch(batch, inline)
        if self._service.strikes("create", self._service.config.batch_create_500_share):
            raise Refused(refusals.failed())
        return json(await self._shown(made))

    async def page(self, request: web.Request) -> web.StreamResponse:
        self._enter("batches.list", request)
        names, token = gemini_files.page(list(reversed(self._batches)), request, PAGE, MAX_PAGE)
        found = [await self._shown(self._batches[name]) for name in names]
        return json({"operations": found} | ({"nextPageToken": token} if token else {}))

    async def look(self, request: web.Request) -> web.StreamResponse:
        self._enter("batches.get", request)
        found = self._batch(request)
        self._service.looked_at(found.batch)
        return json(await self._shown(found))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Cancel a batch; one that is over stays as it is.

        The call is answered at once, with nothing."""
        self._enter("batches.cancel", request)
        found = self._batch(request)
        if not self._service.cancel(found.batch) and found.batch.timeline.is_over(
            self._service.now()
        ):
            raise Refused(
                refusals.invalid(f"{found.batch.id} is not running and cannot be cancelled.")
            )
        return json({})

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Forget a batch that the client deletes; one that runs goes on unseen."""
        self._enter("batches.delete", request)
        found = self._batch(request)
        del self._batches[found.batch.id]
        found.batch.deleted = True
        if found.batch.timeline.is_over(self._service.now()) and found.responses_file is None:
            self._service.forget_results(found.batch)
        return json({})

    def _enter(self, call: str, request: web.Request, *, spends: bool = False) -> None:
        self._service.enter(call, gemini_files.key_of(request), spends=spends)

    def _batch(self, request: web.Request) -> GeminiBatch:
        name = "batches/" + request.match_info["id"]
        if name not in self._batches:
            raise Refused(refusals.invalid(f"Batch {name} was not found.", status=404))
        return self._batches[name]

    async def _shown(self, found: GeminiBatch) -> dict[str, Any]:
        now = self._service.now()
        output = None
        # what was done by then is not given out
        if found.batch.timeline.status(now) is not Status.EXPIRED:
            results = await self._service.results(found.batch, now)
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

    def _inline(self, config: Mapping[str, Any]) -> Path:
        """Return the requests of the call, a line for each. Raises Refused where there are none."""
        given = config.get("requests")
        requests = given.get("requests") if isinstance(given, dict) else None
        if not isinstance(requests, list) or not all(isinstance(one, dict) for one in requests):
            raise Refused(
                refusals.invalid(
                    "input_config: give file_name, or requests.requests, a list of requests."
                )
            )
        path = self._service.folder.empty()
        with path.open("wb") as file:
            for one in requests:
                file.write(orjson.dumps(one) + b"\n")
        return path


def _given(raw: bytes) -> tuple[str, Mapping[str, Any]]:
    """Return the display name and the input. Raises Refused for a body that has none."""
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


def gemini_routes(service: BatchService) -> list[web.RouteDef]:
    files = GeminiFiles(service)
    return in_words_of(refusals.gemini, [*files.routes(), *GeminiBatches(service, files).routes()])
