"""What probes and Prometheus read: whether work is accepted, whether the process lives, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Annotated, Any, Final

import redis
from fastapi import Depends
from prometheus_client import CONTENT_TYPE_LATEST, start_http_server
from sqlalchemy import text
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller, caller_with
from penstock_gateway.metrics import DoorMetrics, metrics_of
from penstock_gateway.routing import Router
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import PenstockError

__all__ = ["metrics_served", "router"]

router = Router()

LOOK_S: Final = 2.0  # for each of the two: a probe that waits longer has its answer


@router.api_route("/livez", methods=["GET", "HEAD"], include_in_schema=False)
async def livez() -> dict[str, str]:
    """Answer as long as the process can."""
    return {"status": "ok"}


@router.head("/health", include_in_schema=False)
@router.get("/health", operation_id="get_health")
async def health(request: Request) -> JSONResponse:
    """Answer 200 while work is accepted, else 503 with what is away."""
    backend = backend_of(request)
    database, redis_is = await asyncio.gather(_database(backend), _redis(backend))
    ready = database == redis_is == "ok" and not backend.closing
    told: dict[str, Any] = {
        "status": "ok" if ready else "unavailable",
        "database": database,
        "redis": redis_is,
    }
    if backend.closing:
        told["status"] = "closing"
    return JSONResponse(told, 200 if ready else 503)


async def _database(backend: Backend) -> str:
    try:
        async with asyncio.timeout(LOOK_S):
            await backend.run(
                backend.database.read,
                lambda connection: connection.execute(text("SELECT 1")).scalar_one(),
            )
    except (TimeoutError, PenstockError):
        return "away"
    return "ok"


async def _redis(backend: Backend) -> str:
    try:
        async with asyncio.timeout(LOOK_S):
            await backend.redis.ping()
    except (TimeoutError, redis.RedisError, OSError):
        return "away"
    return "ok"


log = logging.getLogger("penstock.gateway")


@router.get("/metrics", include_in_schema=False)
async def metrics(
    request: Request, _caller: Annotated[Caller, Depends(caller_with("admin"))]
) -> Response:
    return Response(metrics_of(request).page(), media_type=CONTENT_TYPE_LATEST)


@contextlib.contextmanager
def metrics_served(settings: GatewaySettings, counted: DoorMetrics) -> Iterator[None]:
    """Serve the metrics on a port of their own, where the settings name one."""
    if settings.metrics_port is None:
        yield
        return
    try:
        server, thread = start_http_server(
            settings.metrics_port, settings.metrics_host, counted.registry
        )
    except OSError as error:
        log.error(
            "no metrics: metrics_port=%d on metrics_host=%s cannot be opened (%s); give each "
            "process of a machine its own",
            settings.metrics_port,
            settings.metrics_host,
            error,
        )
        yield
        return
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
