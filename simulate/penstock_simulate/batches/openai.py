"""OpenAI's `/v1/batches`: create, look, list and cancel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web

from penstock_simulate.answers import refusals
from penstock_simulate.batches.batch import Batch, Dialect, Refused
from penstock_simulate.batches.batch_service import BatchService
from penstock_simulate.batches.openai_files import (
    CLIENT_EXPIRES_S,
    EXPIRES_S,
    OUTPUT,
    FileStore,
    OpenAIFiles,
    key_in,
)
from penstock_simulate.batches.openai_lines import ENDPOINTS, OpenAIReader, no_room
from penstock_simulate.batches.relatives import OPENAI, RELATIVES, Relative
from penstock_simulate.batches.sent import in_words_of, json, results_page
from penstock_simulate.batches.timeline import Status
from penstock_simulate.reply import Usage

WINDOW = "24h"  # the only one that there is; how long it lasts here is a setting
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512  # of metadata


def given_in(raw: bytes, relative: Relative) -> Mapping[str, Any]:
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        told = f"We could not parse the JSON body of your request: {error}"
        raise Refused(refusals.invalid(told)) from None
    if not isinstance(given, dict):
        raise Refused(refusals.invalid("The body of your request must be a JSON object."))
    given = relative.asked(given)
    if given.get("completion_window") != WINDOW:
        told = (
            f"Invalid value: {given.get('completion_window')!r}. Supported values are: '{WINDOW}'."
        )
        raise Refused(refusals.invalid(told, "completion_window", "invalid_value"))
    return given


def endpoint_of(given: Mapping[str, Any]) -> str:
    endpoint = given.get("endpoint")
    if isinstance(endpoint, str) and endpoint in ENDPOINTS:
        return endpoint
    told = f"Invalid value: {endpoint!r}. This simulator answers: {', '.join(ENDPOINTS)}."
    raise Refused(refusals.invalid(told, "endpoint", "invalid_value"))


def metadata_of(given: object) -> dict[str, str] | None:
    if given is None:
        return None
    fits = isinstance(given, dict) and len(given) <= MAX_PAIRS
    if (
        not isinstance(given, dict)
        or not fits
        or not all(_pair_fits(key, given[key]) for key in given)
    ):
        told = (
            f"metadata: give up to {MAX_PAIRS} pairs, keys up to {MAX_KEY} and texts up to "
            f"{MAX_VALUE} characters."
        )
        raise Refused(refusals.invalid(told, "metadata"))
    return given


def _pair_fits(key: str, value: object) -> bool:
    return len(key) <= MAX_KEY and isinstance(value, str) and len(value) <= MAX_VALUE


def outputs_expire_s(given: Mapping[str, Any]) -> float:
    wanted = given.get("output_expires_after")
    if wanted is None:
        return EXPIRES_S
    seconds = wanted.get("seconds") if isinstance(wanted, dict) else None
    least, most = CLIENT_EXPIRES_S
    if (
        not isinstance(seconds, int)
        or not least <= seconds <= most
        or wanted.get("anchor") != "created_at"
    ):
        told = f"output_expires_after: give the anchor 'created_at' and {least} to {most} seconds."
        raise Refused(refusals.invalid(told, "output_expires_after"))
    return seconds


PAGE, MAX_PAGE = 20, 100


@dataclass(slots=True)
class OpenAIBatch:
    """A batch with what was said when it was created, and the ids of its files once it is over."""

    batch: Batch
    input_file_id: str
    endpoint: str
    metadata: dict[str, str] | None
    outputs_expire_s: float = EXPIRES_S
    output_file_id: str | None = None
    error_file_id: str | None = None
    filed: bool = False  # whether its results have become files

    def shown(self, now: float) -> dict[str, Any]:
        """Return the object as OpenAI has it. Times that have not come are null."""
        batch, counts = self.batch, self.batch.counts(now)
        timeline, usage = batch.timeline, batch.results.usage if batch.results else None
        at = {moment.status: int(moment.at) for moment in timeline.moments(now)}
        failed = timeline.status(now) is Status.FAILED
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": batch.model or None,
            "errors": self._errors() if failed else None,
            "input_file_id": self.input_file_id,
            "completion_window": WINDOW,
            "status": timeline.status(now),
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": int(timeline.created_at),
            "in_progress_at": at.get(Status.IN_PROGRESS),
            "expires_at": int(timeline.expires_at),
            "finalizing_at": at.get(Status.FINALIZING),
            "completed_at": at.get(Status.COMPLETED),
            "failed_at": at.get(Status.FAILED),
            "expired_at": at.get(Status.EXPIRED),
            "cancelling_at": at.get(Status.CANCELLING),
            "cancelled_at": at.get(Status.CANCELLED),
            "request_counts": {
                "total": counts.total,
                "completed": counts.good,
                "failed": counts.bad + counts.undone,
            },
            "usage": None if usage is None else _usage(usage),
            "metadata": self.metadata,
        }

    def _errors(self) -> dict[str, Any]:
        return {"object": "list", "data": [problem._asdict() for problem in self.batch.problems]}


class OpenAIBatches:
    """Handlers of aiohttp."""

    def __init__(self, service: BatchService, store: FileStore, relative: Relative) -> None:
        self._service, self._store, self._relative = service, store, relative
        self._batches: dict[str, OpenAIBatch] = {}

    def routes(self) -> list[web.RouteDef]:
        relative = self._relative
        return [
            route
            for root in relative.roots
            for path in [root + relative.batches]
            for route in (
                web.post(path, self.create),
                web.get(path, self.page),
                web.get(path + "/{id}", self.look),
                web.post(path + "/{id}" + relative.cancel, self.cancel),
                *((web.get(path + "/{id}/results", self.results),) if relative.results else ()),
            )
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Create a batch; faults of its input are found later, and then it fails."""
        self._enter("batches.create", request, spends=True)
        relative, now = self._relative, self._service.now()
        given = given_in(await request.read(), relative)
        endpoint, metadata = endpoint_of(given), metadata_of(given.get("metadata"))
        source = self._store.get_input(
            given.get("input_file_id"), now, relative, self._service.config.batch_step_s
        )
        added = {"method": "POST", "url": endpoint} if relative.bare_lines else {}
        dialect = Dialect("openai", OpenAIReader(endpoint, added), relative.wording(added), no_room)
        # the client may delete its file while the batch runs
        kept = self._service.folder.link(source.path)
        batch = self._service.submit("batch_" + uuid4().hex, dialect, kept, metadata)
        made = OpenAIBatch(batch, source.id, endpoint, metadata, outputs_expire_s(given))
        self._batches[batch.id] = made
        if self._service.strikes("create", self._service.config.batch_create_500_share):
            raise Refused(refusals.failed())
        shown = await self._shown(made)
        return json(shown if relative.made_in is None else {relative.made_in: shown})

    async def page(self, request: web.Request) -> web.StreamResponse:
        self._enter("batches.list", request)
        names, more = self._relative.page(
            list(reversed(self._batches)), request.query, PAGE, MAX_PAGE
        )
        return json(
            self._relative.frame([await self._shown(self._batches[name]) for name in names], more)
        )

    async def look(self, request: web.Request) -> web.StreamResponse:
        self._enter("batches.retrieve", request)
        found = self._batch(request)
        self._service.looked_at(found.batch)
        return await self._answer(found)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        self._enter("batches.cancel", request)
        found = self._batch(request)
        if not self._service.cancel(found.batch):
            status = found.batch.timeline.status(self._service.now())
            raise Refused(
                refusals.invalid(f"Cannot cancel a batch with status '{status}'.", status=409)
            )
        return await self._answer(found)

    async def results(self, request: web.Request) -> web.StreamResponse:
        """Return a page of results, where they are no files."""
        self._enter("batches.results", request)
        batch = self._batch(request).batch
        results = await self._service.results(batch, self._service.now())
        path = None if results is None else results.answers
        return await results_page(self._service, request, batch, path)

    def _enter(self, call: str, request: web.Request, *, spends: bool = False) -> None:
        self._service.enter(call, key_in(request, self._relative), spends=spends)

    def _batch(self, request: web.Request) -> OpenAIBatch:
        ident = request.match_info["id"]
        found = self._batches.get(ident)
        if found is None:
            raise Refused(
                refusals.invalid(f"No batch found with id '{ident}'.", "batch_id", status=404)
            )
        return found

    async def _answer(self, found: OpenAIBatch) -> web.Response:
        return json(await self._shown(found))

    async def _shown(self, found: OpenAIBatch) -> dict[str, Any]:
        """Show a batch; one that is over shows its files, so they are there by then."""
        now = self._service.now()
        results = await self._service.results(found.batch, now)
        if results is not None and not found.filed and not self._relative.results:
            found.filed = True
            found.output_file_id = self._file(found, results.answers, "output", now)
            found.error_file_id = self._file(found, results.errors, "error", now)
        return self._relative.shown(found.shown(now))

    def _file(self, found: OpenAIBatch, path: Path | None, kind: str, now: float) -> str | None:
        """Store a file, but none where there is nothing to put in it, so never an empty one."""
        if path is None:
            return None
        name = f"{found.batch.id}_{kind}.jsonl"
        file = self._store.add(path, now, name, OUTPUT, found.outputs_expire_s)
        file.of = found.batch
        return file.id


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }


def openai_routes(service: BatchService) -> list[web.RouteDef]:
    relative = RELATIVES.get(service.config.like or "", OPENAI)
    store = FileStore(service.folder)
    made = [
        *OpenAIFiles(service, store, relative).routes(),
        *OpenAIBatches(service, store, relative).routes(),
    ]
    return in_words_of(refusals.openai, made)
