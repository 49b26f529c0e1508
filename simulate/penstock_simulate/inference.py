"""Inference over HTTP in four APIs, which differ in where the key and the model are.

A reply leaves whole, late, in pieces, broken off, or as bytes that are not HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any

import orjson
from aiohttp import BodyPartReader, web

from penstock_simulate.answers import bedrock
from penstock_simulate.answers.calls import CONVERSE, GENERATE, MESSAGES, Call
from penstock_simulate.answers.media import FILES
from penstock_simulate.answers.replies import events_of, is_streamed
from penstock_simulate.batches.anthropic import key_of, version_fault
from penstock_simulate.batches.gemini_files import key_of as google_key_of
from penstock_simulate.provider import Provider
from penstock_simulate.reply import Manner, Reply

DRIP_S = 0.5  # between two bytes
HOLD_S = 0.01  # between two looks whether a stream may go on


async def delay(
    provider: Provider, request: web.Request, reply: Reply, closing: asyncio.Event
) -> None:
    """Wait for the turn, and then as long as the answer takes."""
    while (left := provider.wait_s(reply, time.monotonic())) > 0:  # noqa: ASYNC110 - see Turn
        await asyncio.sleep(left)
    if reply.manner is Manner.HUNG:
        await _hang(request, reply.delay_s, closing)
    elif reply.delay_s > 0:
        await asyncio.sleep(reply.delay_s)


async def send(request: web.Request, reply: Reply, closing: asyncio.Event) -> web.StreamResponse:
    match reply.manner:
        case Manner.WHOLE:
            return web.Response(status=reply.status, body=reply.body, headers=reply.headers)
        case Manner.MEASURED | Manner.CHUNKED:
            return await _repeat(request, reply)
        case Manner.DRIPPED:
            return await _drip(request, reply, closing)
        case Manner.RAW:
            return _write_raw(request, reply)
        case Manner.DROPPED | Manner.CUT | Manner.HUNG:
            return await _break_off(request, reply)


async def _hang(request: web.Request, longest_s: float, closing: asyncio.Event) -> None:
    """Say nothing until the client has gone, the time is up or the simulator ends."""
    end = time.monotonic() + longest_s
    while (
        request.transport is not None
        and not closing.is_set()
        and (left := end - time.monotonic()) > 0
    ):
        await _pause(closing, min(left, 1.0))


async def _pause(closing: asyncio.Event, longest_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(closing.wait(), longest_s)


async def _repeat(request: web.Request, reply: Reply) -> web.StreamResponse:
    """Return the body many times over, as fast as the client takes it, until it has had enough."""
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    if reply.manner is Manner.MEASURED:
        response.content_length = len(reply.body) * reply.times
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        for _ in range(reply.times):
            await response.write(reply.body)
    return response


async def _drip(request: web.Request, reply: Reply, closing: asyncio.Event) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        for at in range(len(reply.body)):
            if closing.is_set() or request.transport is None:
                return await _break_off(request, reply._replace(manner=Manner.DROPPED))
            await response.write(reply.body[at : at + 1])
            await _pause(closing, DRIP_S)
    return response


def _write_raw(request: web.Request, reply: Reply) -> web.StreamResponse:
    """Write bytes past the library, which would put them right."""
    transport = request.transport
    if transport is not None:
        transport.write(reply.body)
        transport.close()  # once all of it has left
    return web.StreamResponse()


async def _break_off(request: web.Request, reply: Reply) -> web.StreamResponse:
    """End the connection without an answer, or after half of one."""
    response = web.StreamResponse(
        status=reply.status, headers={**reply.headers, "Content-Length": str(len(reply.body))}
    )
    transport = request.transport
    if transport is None:
        return response
    if reply.manner is Manner.CUT:
        await response.prepare(request)
        await response.write(reply.body[: len(reply.body) // 2])
        transport.close()
    else:
        transport.abort()
    return response


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def inference(provider: Provider, endpoint: str, closing: asyncio.Event) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        headers = request.headers
        tag, authorization = headers.get("X-Client-Request-Id"), headers.get("Authorization")
        call = provider.open_call(endpoint, await request.read(), tag, authorization)
        return await _answered(provider, request, call, closing)

    return answer


def uploads(provider: Provider, endpoint: str, closing: asyncio.Event) -> Handler:
    """Handle requests that are forms with files, whose digests stand in the place of them."""

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = request.headers
        raw = await _read_form(request)
        tag, authorization = headers.get("X-Client-Request-Id"), headers.get("Authorization")
        call = provider.open_call(endpoint, raw, tag, authorization)
        return await _answered(provider, request, call, closing)

    return answer


async def _read_form(request: web.Request) -> bytes:
    """Return a form's fields as JSON; what is no form is returned as it is."""
    if not request.content_type.startswith("multipart/"):
        return await request.read()
    fields: dict[str, Any] = {FILES: []}
    parts = await request.multipart()
    while (part := await parts.next()) is not None:
        if isinstance(part, BodyPartReader):
            content = bytes(await part.read())
            if part.filename is None:
                fields[(part.name or "").removesuffix("[]")] = content.decode("utf-8", "replace")
            else:
                digest, kind = sha256(content).hexdigest(), part.headers.get("Content-Type", "")
                found = {"sha256": digest, "bytes": len(content), "type": kind}
                fields[FILES].append(found)
    return orjson.dumps(fields)


def messages(provider: Provider, closing: asyncio.Event) -> Handler:
    """Handle messages as other inference, with the key and the version in headers of their own."""

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = request.headers
        call = provider.open_call(
            MESSAGES, await request.read(), headers.get("X-Client-Request-Id"), key_of(headers)
        )
        call.fault = version_fault(headers)
        return await _answered(provider, request, call, closing)

    return answer


def generate(provider: Provider, closing: asyncio.Event) -> Handler:
    """Handle Gemini's calls as other inference.

    The model is in the path, and the key in a header of its own."""

    async def answer(request: web.Request) -> web.StreamResponse:
        tag = request.headers.get("X-Client-Request-Id")
        call = provider.open_call(GENERATE, await request.read(), tag, google_key_of(request))
        call.model = request.match_info["model"]
        call.streams = request.match_info["method"] == "streamGenerateContent"
        return await _answered(provider, request, call, closing)

    return answer


def converse(provider: Provider, closing: asyncio.Event) -> Handler:
    """Handle Bedrock's calls as other inference: the model is in the path, and each is signed."""

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = request.headers
        tag = headers.get("X-Client-Request-Id")
        call = provider.open_call(CONVERSE, await request.read(), tag, bedrock.key_of(headers))
        call.model = request.match_info["model"]
        call.fault = bedrock.signing_fault(headers, "bedrock")
        return await _answered(provider, request, call, closing)

    return answer


async def _answered(
    provider: Provider, request: web.Request, call: Call, closing: asyncio.Event
) -> web.StreamResponse:
    call.host = request.headers.get("Host", "")
    reply = provider.decide(call, time.monotonic(), call.host)
    await delay(provider, request, reply, closing)
    if not (reply.good and reply.manner is Manner.WHOLE and is_streamed(call)):
        _leave(provider, request, call, reply)
        return await send(request, reply, closing)
    try:
        return await _stream(request, provider, events_of(call, reply.body), reply, closing)
    finally:
        _leave(provider, request, call, reply)


def _leave(provider: Provider, request: web.Request, call: Call, reply: Reply) -> None:
    unread = request.transport is None or request.transport.is_closing()
    provider.close_call(call, reply, unread=unread)


async def _stream(
    request: web.Request,
    provider: Provider,
    events: Sequence[bytes],
    reply: Reply,
    closing: asyncio.Event,
) -> web.StreamResponse:
    """Send an answer event by event, as far as the settings of the moment let it come."""
    headers = {**reply.headers, "Content-Type": "text/event-stream; charset=utf-8"}
    response = web.StreamResponse(status=reply.status, headers=headers)
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        for at, event in enumerate(events):
            while not closing.is_set() and _has_reached(provider.config.stream_hold_after, at):
                if _has_reached(provider.config.stream_cut_after, at):
                    break
                await _pause(closing, HOLD_S)
            if _has_reached(provider.config.stream_cut_after, at) and request.transport is not None:
                request.transport.abort()
                return response
            await response.write(event)
    return response


def _has_reached(limit: int | None, sent: int) -> bool:
    return limit is not None and sent >= limit
