"""`penstock gateway`: serve the HTTP doors."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from penstock_cli.errors import UsageProblem
from penstock_cli.processes.orphan import end_with_parent
from penstock_cli.settings import parent_pid

NEEDED = ("fastapi", "uvicorn")


def gateway(
    host: Annotated[
        str | None, typer.Option(help="Default 127.0.0.1. Any other needs an API key to be there.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Default 8600; 0 takes a free one.")
    ] = None,
) -> None:
    """Serve files, batches, jobs and the dashboard over HTTP; SIGTERM ends it.

    Requests that have begun may go on for gateway.drain_s seconds then, while
    /health says already that no more are taken. docs/gateway.md has all
    settings; `penstock keys create` makes a key.
    """
    parent = parent_pid()
    if parent is not None:
        end_with_parent(parent)
    for name in NEEDED:
        if find_spec(name) is None:
            raise UsageProblem(f"{name} is not installed here: pip install 'penstock[gateway]'")
    from penstock_gateway import GatewaySettings, serve_door
    from penstock_ledger.log_lines import log_to_stderr

    settings = GatewaySettings.load()
    given: dict[str, Any] = {"host": host, "port": port}
    flags = {name: value for name, value in given.items() if value is not None}
    log_to_stderr()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(0)
    )  # what the server restores, and calls once it has ended
    serve_door(settings.model_copy(update={"gateway": settings.gateway.model_copy(update=flags)}))
