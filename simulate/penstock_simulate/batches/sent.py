"""The answers of batch APIs leave as JSON, whole or broken files, and refusals."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web

from penstock_simulate.answers import refusals
from penstock_simulate.answers.refusals import Dialect, Refusal
from penstock_simulate.batches.batch import Batch, Refused
from penstock_simulate.batches.batch_service import BatchService


def limit_of(query: Mapping[str, str], default: int, most: int) -> int:
    """Return the page's length. Raises Refused for one that cannot be used."""
    given = query.get("limit", str(default))
    if not given.isascii() or not given.isdecimal() or not 1 <= int(given) <= most:
        raise Refused(
            refusals.invalid(
                f"Invalid 'limit': {given!r}. Give a whole number from 1 to {most}.", "limit"
            )
        )
    return int(given)


def after(names: Sequence[str], name: str | None, limit: int) -> tuple[Sequence[str], bool]:
    """Return the page behind ``name`` (from the start without one), and whether more follow.

    Raises Refused for an unknown one."""
    start = 0 if name is None else _place(names, name, "after") + 1
    return names[start : start + limit], start + limit < len(names)


def before(names: Sequence[str], name: str, limit: int) -> tuple[Sequence[str], bool]:
    """Return the page that ends before ``name``, and whether more come before it."""
    end = _place(names, name, "before_id")
    start = max(0, end - limit)
    return names[start:end], start > 0


def listed(shown: Sequence[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """Return a page as OpenAI and Anthropic write it, but for the name of its kind."""
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return {"data": shown, "first_id": first, "last_id": last, "has_more": more}


def _place(names: Sequence[str], name: str, param: str) -> int:
    try:
        return names.index(name)
    except ValueError:
        raise Refused(
            refusals.invalid(f"No object with the id {name!r} found in this list.", param)
        ) from None


JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-jsonl"}
CHUNK_BYTES = 64 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def ids(request_id: str) -> dict[str, str]:
    """Return the id of a request in the headers of both providers that have one."""
    return {"x-request-id": request_id, "request-id": request_id}


def json(shown: Any, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=orjson.dumps(shown), headers={**JSON, **ids("req_" + uuid4().hex)}
    )


def in_words_of(
    write_error: Dialect,
    routes: Iterable[web.RouteDef],
    named: Callable[[Refusal], Mapping[str, str]] = lambda _: {},
) -> list[web.RouteDef]:
    """Return the routes, with refusals answered as the dialect writes them.

    ``named`` gives the headers that name an error, where they do."""
    return [
        web.route(one.method, one.path, _in_words_of(write_error, one.handler, named))
        for one in routes
    ]


def _in_words_of(
    write_error: Dialect, handler: Handler, named: Callable[[Refusal], Mapping[str, str]]
) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refused as refused:
            request_id = "req_" + uuid4().hex
            status, body = write_error(refused.refusal, request_id)
            headers = {**JSON, **ids(request_id), **named(refused.refusal)}
            return web.Response(status=status, body=body, headers=headers)

    return answer


async def download(
    service: BatchService, request: web.Request, batch: Batch, path: Path
) -> web.StreamResponse:
    """Send results: whole, broken off, or as long as a provider has written them.

    Ranges are answered, so a download can go on where it ended. Raises Refused."""
    is_whole = service.read(batch, path.name)
    if service.strikes("download", service.config.batch_cut_share):
        return await _broken_off(request, path)
    if not is_whole:
        return await _first_half(request, path)
    batch.reads += 1
    return web.FileResponse(path, headers=LINES)


MAX_RESULTS = 1_000  # of a page


async def results_page(
    service: BatchService, request: web.Request, batch: Batch, path: Path | None
) -> web.StreamResponse:
    """Send a page of results, whose token is the number of the line that comes next.

    A spoilt line is a text in it. Raises Refused."""
    limit, start = limit_of(request.query, 100, MAX_RESULTS), request.query.get("pagination_token")
    is_whole = path is None or service.read(batch, path.name)
    if service.strikes("download", service.config.batch_cut_share) and request.transport:
        request.transport.abort()
        return web.Response()
    lines = [] if path is None else await asyncio.to_thread(_lines, path)
    lines = lines if is_whole else lines[: len(lines) // 2]
    begins = int(start) if start and start.isdecimal() else 0
    page, ends = lines[begins : begins + limit], begins + limit
    batch.reads += is_whole
    token = str(ends) if ends < len(lines) else None
    return json({"results": [_result(line) for line in page], "pagination_token": token})


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def _result(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return line.decode("utf-8", "replace")


async def _broken_off(request: web.Request, path: Path) -> web.StreamResponse:
    """Return the first half of a file; then the connection ends."""
    response = web.StreamResponse()
    with path.open("rb") as file:
        response.content_length = size = os.fstat(file.fileno()).st_size
    await response.prepare(request)
    await _send(response, path, size // 2)
    if request.transport is not None:
        request.transport.close()
    return response


async def _first_half(request: web.Request, path: Path) -> web.StreamResponse:
    """Return the lines of the first half of a file, as if there were no more."""
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
