"""Inference over HTTP in the APIs of three providers: they differ in where the key and the model
are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from penstock_simulate.answers.calls import GENERATE, MESSAGES, Call
from penstock_simulate.batches.anthropic.headers import key_of, version_fault
from penstock_simulate.batches.gemini.google import key_of as google_key_of
from penstock_simulate.provider import Provider
from penstock_simulate.sending import delay, send

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def inference(provider: Provider, endpoint: str, closing: asyncio.Event) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        headers = request.headers
        tag, authorization = headers.get("X-Client-Request-Id"), headers.get("Authorization")
        call = provider.open_call(endpoint, await request.read(), tag, authorization)
        return await _answered(provider, request, call, closing)

    return answer


def messages(provider: Provider, closing: asyncio.Event) -> Handler:
    """As other inference, with the key and the version in headers of its own."""

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = request.headers
        call = provider.open_call(
            MESSAGES, await request.read(), headers.get("X-Client-Request-Id"), key_of(headers)
        )
        call.fault = version_fault(headers)
        return await _answered(provider, request, call, closing)

    return answer


def generate(provider: Provider, closing: asyncio.Event) -> Handler:
    """As other inference, with the model in the path and the key in a header of its own."""

    async def answer(request: web.Request) -> web.StreamResponse:
        tag = request.headers.get("X-Client-Request-Id")
        call = provider.open_call(GENERATE, await request.read(), tag, google_key_of(request))
        call.model = request.match_info["model"]
        return await _answered(provider, request, call, closing)

    return answer


async def _answered(
    provider: Provider, request: web.Request, call: Call, closing: asyncio.Event
) -> web.StreamResponse:
    reply = provider.decide(call, time.monotonic(), request.headers.get("Host", ""))
    await delay(request, reply, closing)
    provider.close_call(
        call, reply, unread=request.transport is None or request.transport.is_closing()
    )
    return await send(request, reply, closing)
