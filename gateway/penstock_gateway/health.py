"""Whether work is accepted: SQL and Redis answer. And whether the process lives at all."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import redis
from sqlalchemy import text
from starlette.requests import Request
from starlette.responses import JSONResponse

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.routing import Router
from penstock_ledger import PenstockError

router = Router()

LOOK_S: Final = 2.0  # for each of the two: a probe that waits longer has its answer


@router.api_route("/livez", methods=["GET", "HEAD"], include_in_schema=False)
async def livez() -> dict[str, str]:
    """Answers as long as the process can."""
    return {"status": "ok"}


@router.head("/health", include_in_schema=False)
@router.get("/health", operation_id="get_health")
async def health(request: Request) -> JSONResponse:
    """200 while work is accepted, 503 with what is away."""
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
