"""The page that Prometheus reads: at /metrics with the key of an administrator, and without one at
metrics_port."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends
from prometheus_client import CONTENT_TYPE_LATEST, start_http_server
from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.callers.caller import Caller, caller_with
from penstock_gateway.metrics import DoorMetrics, metrics_of
from penstock_gateway.routing import Router
from penstock_gateway.settings import GatewaySettings

__all__ = ["metrics_served", "router"]

log = logging.getLogger("penstock.gateway")
router = Router()


@router.get("/metrics", include_in_schema=False)
async def metrics(
    request: Request, _caller: Annotated[Caller, Depends(caller_with("admin"))]
) -> Response:
    return Response(metrics_of(request).page(), media_type=CONTENT_TYPE_LATEST)


@contextlib.contextmanager
def metrics_served(settings: GatewaySettings, counted: DoorMetrics) -> Iterator[None]:
    """The same on a port of its own, where the settings name one."""
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
