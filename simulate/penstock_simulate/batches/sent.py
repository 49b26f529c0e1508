"""How the answers of batch APIs leave: JSON, files whole or broken off, and refusals in the words
of a dialect."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web

from penstock_simulate.answers.dialects import Dialect
from penstock_simulate.batches.batch import Batch
from penstock_simulate.batches.refused import Refused
from penstock_simulate.batches.shop import BatchShop

JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-jsonl"}
CHUNK_BYTES = 64 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def ids(request_id: str) -> dict[str, str]:
    """The id of a request in the headers of both providers that have one."""
    return {"x-request-id": request_id, "request-id": request_id}


def json(shown: Any, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=orjson.dumps(shown), headers={**JSON, **ids("req_" + uuid4().hex)}
    )


def in_words_of(write_error: Dialect, routes: Iterable[web.RouteDef]) -> list[web.RouteDef]:
    """The routes, with refusals answered as the dialect writes them."""
    return [
        web.route(route.method, route.path, _in_words_of(write_error, route.handler))
        for route in routes
    ]


def _in_words_of(write_error: Dialect, handler: Handler) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refused as refused:
            request_id = "req_" + uuid4().hex
            status, body = write_error(refused.refusal, request_id)
            return web.Response(status=status, body=body, headers={**JSON, **ids(request_id)})

    return answer


async def download(
    shop: BatchShop, request: web.Request, batch: Batch, path: Path
) -> web.StreamResponse:
    """Send results: whole, broken off, or as long as a provider has written them.

    Ranges are answered, so a download can go on where it ended. Raises Refused."""
    is_whole = shop.read(batch, path.name)
    if shop.strikes("download", shop.config.batch_cut_share):
        return await _broken_off(request, path)
    if not is_whole:
        return await _first_half(request, path)
    batch.reads += 1
    return web.FileResponse(path, headers=LINES)


async def _broken_off(request: web.Request, path: Path) -> web.StreamResponse:
    """The first half of a file; then the connection ends."""
    response = web.StreamResponse()
    with path.open("rb") as file:
        response.content_length = size = os.fstat(file.fileno()).st_size
    await response.prepare(request)
    await _send(response, path, size // 2)
    if request.transport is not None:
        request.transport.close()
    return response


async def _first_half(request: web.Request, path: Path) -> web.StreamResponse:
    """The lines of the first half of a file, as if there were no more."""
    with path.open("rb") as file:
        lines = sum(1 for _ in file) // 2
        file.seek(0)
        size = sum(len(line) for line in islice(file, lines))
    response = web.StreamResponse(headers=LINES)
    response.content_length = size
    await response.prepare(request)
    await _send(response, path, size)
    return response


async def _send(response: web.StreamResponse, path: Path, left: int) -> None:
    with path.open("rb") as file:
        while left > 0 and (chunk := file.read(min(CHUNK_BYTES, left))):
            await response.write(chunk)
            left -= len(chunk)
