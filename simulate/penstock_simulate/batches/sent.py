"""How the answers of batch APIs leave: JSON, files whole or broken off, and refusals in the words of a dialect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from penstock_simulate.answers.dialects import Dialect
from penstock_simulate.batches.refused import Refused

JSON = {"Content-Type": "application/json"}
CHUNK_BYTES = 64 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def json(shown: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(shown), headers=JSON)


def in_words_of(write_error: Dialect, routes: Iterable[web.RouteDef]) -> list[web.RouteDef]:
    """The routes, with refusals answered as the dialect writes them."""
    return [web.route(route.method, route.path, _in_words_of(write_error, route.handler)) for route in routes]


def _in_words_of(write_error: Dialect, handler: Handler) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refused as refused:
            status, body = write_error(refused.refusal)
            return web.Response(status=status, body=body, headers=JSON)

    return answer


async def broken_off(request: web.Request, path: Path) -> web.StreamResponse:
    """The first half of a file; then the connection ends."""
    response = web.StreamResponse()
    response.content_length = size = path.stat().st_size
    await response.prepare(request)
    left = size // 2
    with path.open("rb") as file:
        while left > 0 and (chunk := file.read(min(CHUNK_BYTES, left))):
            await response.write(chunk)
            left -= len(chunk)
    if request.transport is not None:
        request.transport.close()
    return response
