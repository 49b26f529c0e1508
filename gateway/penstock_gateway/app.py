"""The app: two tables say what it has, routers for requests and tasks for the work beside them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.backend import Backend
from penstock_gateway.background import running
from penstock_gateway.callers.admission import Admissions
from penstock_gateway.callers.gate import Gate
from penstock_gateway.callers.known_keys import KnownKeys
from penstock_gateway.checks.bodies import Bodies
from penstock_gateway.checks.paths import Paths
from penstock_gateway.checks.room import Room
from penstock_gateway.envelopes.errors import refused_for
from penstock_gateway.envelopes.shapes import answer_to
from penstock_gateway.jobs.watches import Watches
from penstock_gateway.metrics import DoorMetrics, metrics_of
from penstock_gateway.openapi import Doors
from penstock_gateway.refused import Refused
from penstock_gateway.request_ids import RequestIds, request_id_of, shown_path
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import PenstockError

log = logging.getLogger("penstock.gateway")

__all__ = ["ROUTERS", "TASKS", "create_app"]

# One line per room: module:name of a router. Their order is that of the OpenAPI document.
ROUTERS: Final[tuple[str, ...]] = (
    "penstock_gateway.health:router",
    "penstock_gateway.files.routes:router",
    "penstock_gateway.batches.routes:router",
    "penstock_gateway.messages.routes:router",
    "penstock_gateway.direct.routes:router",
    "penstock_gateway.direct.models:router",
    "penstock_gateway.jobs.routes:router",
    "penstock_gateway.limits.routes:router",
    "penstock_gateway.webhooks.routes:router",
    "penstock_gateway.keys.routes:router",
    "penstock_gateway.dashboard.routes:router",
    # metrics
    "penstock_gateway.metrics_page:router",
)

# One line per piece of background work: module:class, see background.py.
TASKS: Final[tuple[str, ...]] = (
    "penstock_gateway.files.cleaning:FileCleaning",
    "penstock_gateway.batches.states:BatchStates",
    "penstock_gateway.webhooks.sending:WebhookSending",
    "penstock_gateway.direct.tasks:FetchAnswers",
    "penstock_gateway.direct.tasks:CloseOldCalls",
    # callers
    "penstock_gateway.callers.admission:RenewAdmissions",
)


def create_app(settings: GatewaySettings, *, extra: Sequence[APIRouter] = ()) -> FastAPI:
    """The doors as an ASGI app; ``extra`` are routers on top."""
    app = Doors(
        title="Penstock",
        version="1",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan(settings),
        redirect_slashes=False,
    )
    app.state.metrics = DoorMetrics()
    for name in ROUTERS:
        app.include_router(_named(name))
    for router in extra:
        app.include_router(router)
    for kind in (PenstockError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer)
    app.add_middleware(
        Bodies, door=settings.gateway
    )  # the last one here is the first that a request passes
    app.add_middleware(Room, settings=settings)
    app.add_middleware(Gate)
    app.add_middleware(Paths)
    app.add_middleware(RequestIds)
    return app


def _lifespan(settings: GatewaySettings) -> Any:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        backend = app.state.backend = Backend(settings, app.state.metrics)
        app.state.keys, app.state.admissions = KnownKeys(backend), Admissions(backend)
        app.state.watches = Watches(backend)
        try:
            async with running([_named(name)() for name in TASKS], backend, app.state.metrics):
                yield
        finally:
            await backend.close()

    return lifespan


async def _answer(request: Request, error: Exception) -> Response:
    refused, request_id = refused_for(error), request_id_of(request)
    if refused.status >= 500 and not isinstance(error, Refused):
        log.error("%s %s: %s (%s)", request.method, shown_path(request.scope), error, request_id)
    metrics_of(request).refused(refused.code)
    return answer_to(refused, request.scope["path"], request_id)


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
