"""The simulated provider over HTTP: aiohttp without middlewares and access log, and one process."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import orjson
from aiohttp import web

from penstock_cli.errors import UsageProblem
from penstock_cli.simulate.calls import CHAT, COMPLETIONS, EMBEDDINGS
from penstock_cli.simulate.config import SimulatorConfig
from penstock_cli.simulate.provider import MODELS, Provider
from penstock_cli.simulate.replies import Manner, Reply

MAX_REQUEST_BYTES = 32 * 1024 * 1024
BACKLOG = 4096  # connections waiting to be accepted: a fleet opens all of its at once
GRACE_S = 5.0  # for calls in flight at the end
JSON = {"Content-Type": "application/json"}

PROVIDER: web.AppKey[Provider] = web.AppKey("provider", Provider)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(config: SimulatorConfig) -> web.Application:
    """The application; its shutdown ends hanging calls and closes the call log."""
    provider, closing = Provider(config), asyncio.Event()

    async def ending(_: web.Application) -> None:
        closing.set()

    async def ended(_: web.Application) -> None:
        provider.book.close()

    app = web.Application(client_max_size=MAX_REQUEST_BYTES)
    app[PROVIDER] = provider
    for endpoint in (CHAT, COMPLETIONS, EMBEDDINGS):
        app.router.add_post(endpoint, _inference(provider, endpoint, closing))
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/stats", _stats)
    app.router.add_get("/calls", _calls)
    app.router.add_post("/reset", _reset)
    app.router.add_get("/control", _controls)
    app.router.add_post("/control", _control)
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/health", _health)
    app.on_shutdown.append(ending)
    app.on_cleanup.append(ended)
    return app


def _inference(provider: Provider, endpoint: str, closing: asyncio.Event) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        headers = request.headers
        tag, authorization = headers.get("X-Client-Request-Id"), headers.get("Authorization")
        call = provider.open_call(endpoint, await request.read(), tag, authorization)
        reply = provider.decide(call, time.monotonic())
        if reply.manner is Manner.HUNG:
            await _hang(request, reply.delay_s, closing)
        elif reply.delay_s > 0:
            await asyncio.sleep(reply.delay_s)
        provider.close_call(call, reply, unread=request.transport is None or request.transport.is_closing())
        if reply.manner is Manner.WHOLE:
            return web.Response(status=reply.status, body=reply.body, headers=reply.headers)
        return await _break_off(request, reply)

    return answer


async def _hang(request: web.Request, longest_s: float, closing: asyncio.Event) -> None:
    """Say nothing until the client has gone, the time is up or the simulator ends."""
    end = time.monotonic() + longest_s
    while request.transport is not None and not closing.is_set() and (left := end - time.monotonic()) > 0:
        try:
            await asyncio.wait_for(closing.wait(), min(left, 1.0))
        except TimeoutError:
            continue


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


async def _models(_: web.Request) -> web.Response:
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "penstock"} for name in MODELS]
    return web.Response(body=orjson.dumps({"object": "list", "data": data}), headers=JSON)


async def _stats(request: web.Request) -> web.Response:
    return web.Response(body=orjson.dumps(request.app[PROVIDER].stats(time.monotonic())), headers=JSON)


async def _calls(request: web.Request) -> web.Response:
    least = request.query.get("min_calls", "1")
    if not least.isdecimal():
        raise web.HTTPBadRequest(text=f"min_calls: {least!r} is not a whole number")
    return web.Response(body=orjson.dumps(request.app[PROVIDER].book.calls(int(least))), headers=JSON)


async def _reset(request: web.Request) -> web.Response:
    request.app[PROVIDER].reset()
    return web.Response(status=204)


async def _controls(request: web.Request) -> web.Response:
    return web.Response(body=orjson.dumps(request.app[PROVIDER].controls()), headers=JSON)


async def _control(request: web.Request) -> web.Response:
    """What is in force after the change; 400 with the reason when it cannot be made."""
    try:
        request.app[PROVIDER].control(await request.read(), time.monotonic())
    except UsageProblem as problem:
        return web.Response(status=400, body=orjson.dumps({"error": {"message": str(problem)}}), headers=JSON)
    return await _controls(request)


async def _metrics(request: web.Request) -> web.Response:
    text = request.app[PROVIDER].metrics(time.monotonic())
    return web.Response(text=text, content_type="text/plain", charset="utf-8")


async def _health(_: web.Request) -> web.Response:
    """As vLLM's server has it, for probes."""
    return web.Response()


@asynccontextmanager
async def running(config: SimulatorConfig) -> AsyncIterator[str]:
    """The provider on its address while the context lasts; yields the URL with the real port."""
    runner = web.AppRunner(make_app(config), access_log=None, shutdown_timeout=GRACE_S)
    await runner.setup()
    try:
        site = web.TCPSite(runner, config.host, config.port, backlog=BACKLOG)
        try:
            await site.start()
        except OSError as error:
            raise UsageProblem(
                f"--host {config.host} --port {config.port}: cannot listen there: {error.strerror or error}; "
                "give --port 0 for a free port"
            ) from error
        yield _url(config.host, runner)
    finally:
        await runner.cleanup()


def serve(config: SimulatorConfig) -> None:
    asyncio.run(_serve(config))


async def _serve(config: SimulatorConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(config) as url:
        sys.stdout.write(f"penstock simulate: serving {url}/v1\n")
        sys.stdout.flush()
        await stop.wait()


def _url(host: str, runner: web.AppRunner) -> str:
    port = runner.addresses[0][1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
