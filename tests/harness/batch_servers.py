"""A provider of batches for tests, whose every answer a test writes itself: it can break off, lie,
and never end."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from penstock_workers.lanes.batch.apis import open_batches
from penstock_workers.lanes.batch.apis.http import Times
from penstock_workers.lanes.batch.apis.provider import (
    BatchAnswer,
    BatchProvider,
    BatchSeen,
    NewBatch,
    UnreadableLine,
)
from penstock_workers.settings import ProviderSettings

KEY_VARIABLE = "BATCH_TEST_KEY"
KEY = "sk-batch-test-0123456789abcdef"
TAG = "0b8e7a1c-52d4-4c1e-9a77-3f6d2c9e41ab"
VERTEX = {"project": "mine", "region": "europe-west4", "batch_bucket": "gs://batches/of/penstock"}
BEDROCK = {
    "region": "eu-central-1",
    "batch_bucket": "s3://batches/of/penstock",
    "batch_role": "arn:aws:iam::123456789012:role/batches",
    "batch_min_requests": 1,
}
CLOUDS: dict[str, dict[str, Any]] = {"bedrock": BEDROCK, "vertex": VERTEX}
SHORT = Times(connect_s=2.0, call_s=5.0, stall_s=0.3, pause_s=0.0)

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class BatchServer:
    """`asked` is every request that came, as "GET /v1/files?limit=1"."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    handle: Handle | None = None


@contextlib.asynccontextmanager
async def batch_server(handle: Handle | None = None) -> AsyncIterator[BatchServer]:
    server = BatchServer(handle=handle)

    async def take(request: web.Request) -> web.StreamResponse:
        server.asked.append(f"{request.method} {request.raw_path}")
        assert server.handle is not None, "the test says what is answered"
        return await server.handle(request)

    app = web.Application(client_max_size=1024**3)
    app.router.add_route("*", "/{path:.*}", take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def provider_at(
    url: str, kind: Any = "openai", times: Times = SHORT, profile: Any = None
) -> AsyncIterator[BatchProvider]:
    """Its key is read from KEY_VARIABLE, which the test has set."""
    given: dict[str, Any] = CLOUDS.get(kind, {}) | (
        {} if kind == "bedrock" else {"api_key_env": KEY_VARIABLE}
    )
    settings = ProviderSettings(kind=kind, base_url=url, profile=profile, **given)
    provider = open_batches("theirs", settings, times)
    try:
        yield provider
    finally:
        await provider.close()


def packed(
    folder: Path,
    provider: BatchProvider,
    ids: list[str],
    endpoint: str,
    body: bytes,
    model: str = "m",
) -> NewBatch:
    """A packed file of one request for each id."""
    path = folder / "packed.jsonl"
    path.write_bytes(b"".join(provider.line(one, endpoint, body) for one in ids))
    return NewBatch(TAG, path, endpoint, model, len(ids), None)


async def all_answers(
    provider: BatchProvider, seen: BatchSeen
) -> list[BatchAnswer | UnreadableLine]:
    return [one async for one in provider.answers(seen)]


def cut(response: web.StreamResponse, request: web.Request) -> web.StreamResponse:
    """The connection ends here."""
    assert request.transport is not None
    request.transport.abort()
    return response
