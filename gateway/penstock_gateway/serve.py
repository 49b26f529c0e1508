"""The doors as a process: uvicorn, with our limits, and what probes and Prometheus read of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any, Final

import redis
import uvicorn
from fastapi import APIRouter, Depends, FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import text
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock_gateway.app import create_app
from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller, caller_with
from penstock_gateway.connections import PROBE_PLACES, ConnectionBook
from penstock_gateway.metrics import metrics_of
from penstock_gateway.protocol import bounded_http
from penstock_gateway.routing import Router
from penstock_gateway.settings import GatewayFields, GatewaySettings
from penstock_ledger import ApiKeyStore, PenstockError, open_database
from penstock_ledger.errors import EXIT_USAGE
from penstock_ledger.redaction import log_to_stderr
from penstock_ledger.telemetry.metrics import serve_page
from penstock_ledger.texts import Command, Run, SetOption, Text

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


@router.get("/metrics", include_in_schema=False)
async def metrics(
    request: Request, _caller: Annotated[Caller, Depends(caller_with("admin"))]
) -> Response:
    return Response(metrics_of(request).page(), media_type=CONTENT_TYPE_LATEST)


__all__ = ["DoorOpen", "door_server", "refuse_open_door", "router", "serve_door"]

log = logging.getLogger("penstock.gateway")

OTHER_FILES: Final = 200  # that a process has open besides connections: SQL, Redis, uploads, logs
# between two looks at what uvicorn keeps: the date in answers has whole seconds
TICK_S: Final = 1.0
BACKLOG: Final = 2048  # connections that the kernel holds until they are accepted


class DoorOpen(PenstockError):
    """The doors would be open to a network, and to all that can reach it."""

    exit_status = EXIT_USAGE


class DoorServer(uvicorn.Server):
    """The server, which says that it accepts no more work before it stops listening.

    It also says where it listens, and when it has ended."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, door: GatewayFields) -> None:
        super().__init__(config)
        self.app = app
        self._door = door
        self._ends = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # once it serves

    async def main_loop(self) -> None:
        """Turn once a second, for the date of answers, and at once when asked to end.

        uvicorn itself turns ten times a second, and an idle process is woken each time."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ends.wait(), TICK_S)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.end()

    def end(self) -> None:
        """Stop serving; any thread, and any time."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ends.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                log.info(
                    "the HTTP API listens at http://%s:%d",
                    f"[{host}]" if ":" in host else host,
                    port,
                )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        backend: Backend = self.app.state.backend
        backend.closing = True
        if self._door.leave_s and not self.force_exit:
            await asyncio.sleep(self._door.leave_s)
        await super().shutdown(sockets)
        log.info("the HTTP API has stopped listening")


def door_server(settings: GatewaySettings, *, extra: Sequence[APIRouter] = ()) -> DoorServer:
    """Return a server that is not started yet."""
    door = settings.gateway
    app = create_app(settings, extra=extra)
    book = ConnectionBook(
        _fitting(door.max_connections), app.state.metrics, of_address=door.connections_of_address
    )
    config = uvicorn.Config(
        app,
        host=door.host,
        port=door.port,
        http=bounded_http(door, book),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=round(door.keep_alive_s),
        timeout_graceful_shutdown=round(door.drain_s),
    )
    return DoorServer(config, app, door)


def serve_door(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT, as all that this process does.

    Raises DoorOpen, and SettingsError where jobs could read other tenants' files."""
    log_to_stderr()
    # what the server restores, and calls once it has ended
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    settings.refuse_shared_roots()
    refuse_open_door(settings)
    server = door_server(settings)
    registry = server.app.state.metrics.registry
    with serve_page(settings.metrics_host, settings.metrics_port, registry):
        server.run()


def refuse_open_door(settings: GatewaySettings) -> None:
    """Raise DoorOpen where a network could reach the fleet without a key."""
    if settings.only_this_machine:
        return
    database = open_database(settings.database_url, role="gateway")
    try:
        if settings.database_url.startswith("sqlite:"):
            database.migrate()
        made = ApiKeyStore(database).any_made()
    finally:
        database.close()
    if not made:
        raise DoorOpen(
            Text(
                f"gateway.host is {settings.gateway.host!r}, which other machines can reach, and "
                "there is no API key: make the first one with ",
                Run(Command.MAKE_KEY, ("NAME", SetOption("scope", "admin"))),
                ", or listen on 127.0.0.1",
            )
        )


def _fitting(connections: int) -> int:
    """Return how many connections the process may have files for.

    Its soft limit is raised where that is enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = OTHER_FILES + PROBE_PLACES
    wanted = connections + others
    if soft < wanted and (hard == resource.RLIM_INFINITY or hard > soft):
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < wanted and soft != resource.RLIM_INFINITY:
        fitting = max(1, soft - others)
        log.warning(
            "max_connections is %d, but this process may open %d files: %d fit",
            connections,
            soft,
            fitting,
        )
        return fitting
    return connections
