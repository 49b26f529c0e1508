"""Anthropic's `/v1/messages/batches`: create, look, list, cancel, delete and results."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import orjson
from aiohttp import web

from penstock_simulate.answers import refusals
from penstock_simulate.answers.calls import MESSAGES, Call, misshapen
from penstock_simulate.answers.prompt_cache import PromptCache
from penstock_simulate.answers.refusals import Refusal, anthropic
from penstock_simulate.answers.replies import answer_body
from penstock_simulate.batches import sent
from penstock_simulate.batches.batch import Batch, Dialect, Queue, Refused
from penstock_simulate.batches.batch_service import BatchService
from penstock_simulate.batches.folder import TooLarge
from penstock_simulate.batches.intake import Asked, Problem, Span, renamed, spans_of_lines
from penstock_simulate.batches.results import Undone
from penstock_simulate.batches.sent import CHUNK_BYTES, download, in_words_of, json
from penstock_simulate.batches.timeline import OVER, Status
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.reply import Usage

VERSIONS = ("2023-06-01", "2026-10-21")  # what is answered here is the same in both


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the key as an Authorization header would have it, which is taken in its place."""
    key = headers.get("x-api-key")
    return headers.get("Authorization") if key is None else f"Bearer {key}"


def version_fault(headers: Mapping[str, str]) -> Refusal | None:
    given = headers.get("anthropic-version")
    if given in VERSIONS:
        return None
    if given is None:
        return refusals.invalid("anthropic-version: header is required")
    return refusals.invalid(
        f"anthropic-version: {given!r} is not a valid version; send {VERSIONS[-1]}"
    )


MAX_REQUESTS = 100_000
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
QUEUE_FULL = "rate_limit_error"


class _Body(msgspec.Struct):
    """The body that creates a batch; each request is left as the bytes that it came in."""

    requests: list[msgspec.Raw]


def split(body: Path, into: Path) -> None:
    """Put each request of a body on a line of its own.

    Raises msgspec.DecodeError for a body that is none."""
    with into.open("wb") as lines:
        for raw in msgspec.json.decode(body.read_bytes(), type=_Body).requests:
            # Between the tokens of JSON a space is as good as a line end, and within a text there
            # is none.
            lines.write(bytes(raw).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n")


def read_request(given: dict[str, Any]) -> Asked:
    """Read a request.

    A document is known by what is asked about it, as in real time where a client gives no name to
    it."""
    params, custom_id = given["params"], given["custom_id"]
    document = (
        "body-"
        + blake2b(orjson.dumps(params, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()
    )
    call = Call(MESSAGES, b"", None, document, 1, document)
    return Asked(custom_id, call, usable=misshapen(call, params) is None)


class AnthropicReader:
    """Checks what is found at once; the params of each request are found wrong by its result."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._seen: set[str] = set()

    def spans(self, source: Path) -> Iterator[Span]:
        return spans_of_lines(source)

    def checked(self, raw: bytes, number: int) -> Asked | None:
        given, at = orjson.loads(raw), f"requests.{number - 1}"
        fault = self._fault(given)
        if fault is not None:
            self.problems.append(Problem("invalid_request_error", f"{at}.{fault}", number))
            return None
        self._seen.add(given["custom_id"])
        return read_request(given)

    def whole(self, requests: int) -> None:
        if requests == 0:
            self.problems.append(
                Problem("invalid_request_error", "requests: List should have at least 1 item")
            )
        elif requests > MAX_REQUESTS:
            told = f"requests: List should have at most {MAX_REQUESTS} items, not {requests}"
            self.problems = [Problem("invalid_request_error", told)]

    def _fault(self, given: Any) -> str | None:
        if not isinstance(given, dict) or not isinstance(given.get("params"), dict):
            return "params: Field required"
        custom_id = given.get("custom_id")
        if not isinstance(custom_id, str) or CUSTOM_ID.fullmatch(custom_id) is None:
            return "custom_id: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'"
        return (
            f"custom_id: {custom_id!r} is used more than once" if custom_id in self._seen else None
        )


class AnthropicWording:
    """One line for each request, whatever became of it.

    A batch writes its prompts to a cache once and reads them after."""

    apart = False

    def __init__(self) -> None:
        self._cache = PromptCache()

    def asked(self, raw: bytes) -> Asked:
        return read_request(orjson.loads(raw))

    def answered(self, asked: Asked, request_id: str) -> tuple[bytes, Usage]:
        call = asked.call
        call.cache = self._cache.read_in_batch(call.prefixes)
        body, usage = answer_body(call, tier="batch")
        return _line(asked, {"type": "succeeded", "message": orjson.Fragment(body)}), usage

    def refused(self, asked: Asked, refusal: Refusal, request_id: str) -> bytes:
        _, body = anthropic(refusal, request_id)
        return _line(asked, {"type": "errored", "error": orjson.Fragment(body)})

    def undone(self, asked: Asked, why: Undone, request_id: str) -> bytes:
        match why:
            case Undone.EXPIRED:
                return _line(asked, {"type": "expired"})
            case Undone.CANCELLED:
                return _line(asked, {"type": "canceled"})
            case Undone.TIMED_OUT:
                refusal = Refusal(
                    504, "The request timed out while it was processed.", "timeout_error"
                )
                return self.refused(asked, refusal, request_id)

    def unknown(self, line: bytes, asked: Asked) -> bytes:
        return renamed(line, "custom_id")


def no_room(queue: Queue, config: SimulatorConfig) -> Problem | None:
    most = config.batch_enqueued_requests
    if most is None or queue.requests <= most:
        return None
    told = (
        f"This batch would exceed the limit of {most:,} batch requests in the processing queue. "
        "Try again later."
    )
    return Problem(QUEUE_FULL, told)


def _line(asked: Asked, result: dict[str, Any]) -> bytes:
    return orjson.dumps({"custom_id": asked.custom_id, "result": result})


KEPT_S = 29 * 86_400  # results, from the creation of the batch


def is_archived(batch: Batch, now: float) -> bool:
    return now >= batch.timeline.created_at + KEPT_S


def shown(batch: Batch, now: float, results_url: str) -> dict[str, Any]:
    """Return a batch as Anthropic shows it.

    All requests are processing until the batch has ended: only then it shows what became of them.
    """
    status, at = (
        batch.timeline.status(now),
        {moment.status: moment.at for moment in batch.timeline.moments(now)},
    )
    over, archived = status in OVER, is_archived(batch, now)
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": _word(status),
        "request_counts": _counts(batch, now) if over else _counted(processing=batch.requests),
        "created_at": rfc3339(batch.timeline.created_at),
        "expires_at": rfc3339(batch.timeline.expires_at),
        "ended_at": rfc3339(at[status]) if over else None,
        "cancel_initiated_at": rfc3339(at[Status.CANCELLING]) if Status.CANCELLING in at else None,
        "archived_at": rfc3339(batch.timeline.created_at + KEPT_S) if archived else None,
        "results_url": results_url if over and not archived else None,
    }


def rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()


def _word(status: Status) -> str:
    if status in OVER:
        return "ended"
    return "canceling" if status is Status.CANCELLING else "in_progress"


def _counts(batch: Batch, now: float) -> dict[str, int]:
    counts = batch.counts(now)
    undone = "canceled" if batch.timeline.cancel_at is not None else "expired"
    return _counted(succeeded=counts.good, errored=counts.bad) | {undone: counts.undone}


def _counted(processing: int = 0, succeeded: int = 0, errored: int = 0) -> dict[str, int]:
    return {
        "processing": processing,
        "succeeded": succeeded,
        "errored": errored,
        "canceled": 0,
        "expired": 0,
    }


PATH = "/v1/messages/batches"
MAX_BYTES = 256 * 1024 * 1024
PAGE, MAX_PAGE = 20, 1000


class AnthropicBatches:
    """Handlers of aiohttp."""

    def __init__(self, service: BatchService) -> None:
        self._service = service
        self._batches: dict[str, Batch] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(PATH, self.create),
            web.get(PATH, self.page),
            web.get(PATH + "/{id}", self.look),
            web.get(PATH + "/{id}/results", self.results),
            web.post(PATH + "/{id}/cancel", self.cancel),
            web.delete(PATH + "/{id}", self.delete),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Create a batch; ids and sizes are checked at once."""
        self._enter("messages.batches.create", request, spends=True)
        ident, source = "msgbatch_" + uuid4().hex[:24], await self._requests(request)
        dialect = Dialect("anthropic", AnthropicReader(), AnthropicWording(), no_room)
        batch = await self._service.admit(ident, dialect, source)
        if batch.problems:
            code, message, *_ = batch.problems[0]
            raise Refused(
                Refusal(429, message, code) if code == QUEUE_FULL else refusals.invalid(message)
            )
        self._service.keep(batch)
        self._batches[ident] = batch
        if self._service.strikes("create", self._service.config.batch_create_500_share):
            raise Refused(refusals.failed())
        return json(self._shown(batch, request))

    async def page(self, request: web.Request) -> web.StreamResponse:
        self._enter("messages.batches.list", request)
        query, names = request.query, list(reversed(self._batches))
        limit = sent.limit_of(query, PAGE, MAX_PAGE)
        if "before_id" in query:
            found, more = sent.before(names, query["before_id"], limit)
        else:
            found, more = sent.after(names, query.get("after_id"), limit)
        return json(
            sent.listed([self._shown(self._batches[name], request) for name in found], more=more)
        )

    async def look(self, request: web.Request) -> web.StreamResponse:
        self._enter("messages.batches.retrieve", request)
        batch = self._batch(request)
        self._service.looked_at(batch)
        return json(self._shown(batch, request))

    async def results(self, request: web.Request) -> web.StreamResponse:
        self._enter("messages.batches.results", request)
        batch, now = self._batch(request), self._service.now()
        found = None if is_archived(batch, now) else await self._service.results(batch, now)
        if found is None or found.answers is None:
            raise Refused(refusals.invalid(f"{batch.id} has no available results.", status=404))
        return await download(self._service, request, batch, found.answers)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Cancel a batch; one that has ended stays as it is."""
        self._enter("messages.batches.cancel", request)
        batch = self._batch(request)
        if not self._service.cancel(batch) and batch.timeline.is_over(self._service.now()):
            raise Refused(
                refusals.invalid(f"Batch {batch.id} has already ended and cannot be canceled.")
            )
        return json(self._shown(batch, request))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        self._enter("messages.batches.delete", request)
        batch = self._batch(request)
        if not batch.timeline.is_over(self._service.now()):
            raise Refused(
                refusals.invalid(f"Batch {batch.id} cannot be deleted while it is in progress.")
            )
        del self._batches[batch.id]
        self._service.forget_results(batch)
        return json({"id": batch.id, "type": "message_batch_deleted"})

    def _enter(self, call: str, request: web.Request, *, spends: bool = False) -> None:
        self._service.enter(call, key_of(request.headers), spends=spends)
        fault = version_fault(request.headers)
        if fault is not None:
            raise Refused(fault)

    def _batch(self, request: web.Request) -> Batch:
        ident = request.match_info["id"]
        if ident not in self._batches:
            raise Refused(refusals.invalid(f"Message Batch {ident} not found.", status=404))
        return self._batches[ident]

    def _shown(self, batch: Batch, request: web.Request) -> dict[str, Any]:
        results_url = f"{request.url.origin()}{PATH}/{batch.id}/results"
        return shown(batch, self._service.now(), results_url)

    async def _requests(self, request: web.Request) -> Path:
        """Return a line for each, on disk.

        Raises Refused for a body that is too large or no batch.
        """
        folder, lines = self._service.folder, self._service.folder.new(".jsonl")
        try:
            body = await folder.write(request.content.iter_chunked(CHUNK_BYTES), MAX_BYTES)
        except TooLarge:
            told = f"Request exceeds the maximum size of {MAX_BYTES // 1024**2} MB."
            raise Refused(refusals.invalid(told, status=413)) from None
        try:
            await asyncio.to_thread(split, body, lines)
        except msgspec.DecodeError as error:
            lines.unlink(missing_ok=True)
            raise Refused(refusals.invalid(f"The request body is not valid: {error}")) from None
        finally:
            folder.remove(body)
        return lines


def anthropic_routes(service: BatchService) -> list[web.RouteDef]:
    return in_words_of(refusals.anthropic, AnthropicBatches(service).routes())
