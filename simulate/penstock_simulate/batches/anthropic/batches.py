"""Anthropic's `/v1/messages/batches`: create, look, list, cancel, delete and results."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from aiohttp import web

from penstock_simulate.answers import refusals
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.batches import pages
from penstock_simulate.batches.anthropic.headers import key_of, version_fault
from penstock_simulate.batches.anthropic.lines import (
    QUEUE_FULL,
    AnthropicReader,
    AnthropicWording,
    no_room,
    split,
)
from penstock_simulate.batches.anthropic.shown import is_archived, shown
from penstock_simulate.batches.batch import Batch, Dialect
from penstock_simulate.batches.folder import TooLarge
from penstock_simulate.batches.refused import Refused
from penstock_simulate.batches.sent import CHUNK_BYTES, download, json
from penstock_simulate.batches.shop import BatchShop

PATH = "/v1/messages/batches"
MAX_BYTES = 256 * 1024 * 1024
PAGE, MAX_PAGE = 20, 1000


class AnthropicBatches:
    """Handlers of aiohttp."""

    def __init__(self, shop: BatchShop) -> None:
        self._shop = shop
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
        """Ids and sizes are checked at once."""
        self._enter("messages.batches.create", request, spends=True)
        ident, source = "msgbatch_" + uuid4().hex[:24], await self._requests(request)
        dialect = Dialect("anthropic", AnthropicReader(), AnthropicWording(), no_room)
        batch = await self._shop.admit(ident, dialect, source)
        if batch.problems:
            code, message, *_ = batch.problems[0]
            raise Refused(
                Refusal(429, message, code) if code == QUEUE_FULL else refusals.invalid(message)
            )
        self._shop.keep(batch)
        self._batches[ident] = batch
        if self._shop.strikes("create", self._shop.config.batch_create_500_share):
            raise Refused(refusals.failed())
        return json(self._shown(batch, request))

    async def page(self, request: web.Request) -> web.StreamResponse:
        self._enter("messages.batches.list", request)
        query, names = request.query, list(reversed(self._batches))
        limit = pages.limit_of(query, PAGE, MAX_PAGE)
        if "before_id" in query:
            found, more = pages.before(names, query["before_id"], limit)
        else:
            found, more = pages.after(names, query.get("after_id"), limit)
        return json(
            pages.listed([self._shown(self._batches[name], request) for name in found], more=more)
        )

    async def look(self, request: web.Request) -> web.StreamResponse:
        self._enter("messages.batches.retrieve", request)
        batch = self._batch(request)
        self._shop.looked_at(batch)
        return json(self._shown(batch, request))

    async def results(self, request: web.Request) -> web.StreamResponse:
        self._enter("messages.batches.results", request)
        batch, now = self._batch(request), self._shop.now()
        found = None if is_archived(batch, now) else await self._shop.results(batch, now)
        if found is None or found.answers is None:
            raise Refused(refusals.invalid(f"{batch.id} has no available results.", status=404))
        return await download(self._shop, request, batch, found.answers)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """One that has ended stays as it is."""
        self._enter("messages.batches.cancel", request)
        batch = self._batch(request)
        if not self._shop.cancel(batch) and batch.course.is_over(self._shop.now()):
            raise Refused(
                refusals.invalid(f"Batch {batch.id} has already ended and cannot be canceled.")
            )
        return json(self._shown(batch, request))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        self._enter("messages.batches.delete", request)
        batch = self._batch(request)
        if not batch.course.is_over(self._shop.now()):
            raise Refused(
                refusals.invalid(f"Batch {batch.id} cannot be deleted while it is in progress.")
            )
        del self._batches[batch.id]
        self._shop.forget_results(batch)
        return json({"id": batch.id, "type": "message_batch_deleted"})

    def _enter(self, call: str, request: web.Request, *, spends: bool = False) -> None:
        self._shop.enter(call, key_of(request.headers), spends=spends)
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
        return shown(batch, self._shop.now(), results_url)

    async def _requests(self, request: web.Request) -> Path:
        """A line for each, on disk. Raises Refused for a body that is too large or no batch."""
        folder, lines = self._shop.folder, self._shop.folder.new(".jsonl")
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
