"""`penstock flower`: watch workers, tasks and queues in a browser."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

import typer

from penstock_cli.errors import UsageProblem


def flower(
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Default 5555; 0 takes a free port.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Default 127.0.0.1. Any other address needs a login.")
    ] = None,
    url_prefix: Annotated[
        str | None, typer.Option(help="The path under which a proxy serves Flower.")
    ] = None,
) -> None:
    """Serve Flower for this fleet; SIGTERM ends it.

    The login is PENSTOCK_FLOWER__AUTH=user:password (or FLOWER_BASIC_AUTH), never a flag: command
    lines are not secret. Everything else is read from penstock.toml, PENSTOCK_FLOWER__* and
    Flower's own FLOWER_* variables.
    """
    if find_spec("flower") is None:
        raise UsageProblem("Flower is not installed here: pip install 'penstock[flower]'")
    from penstock_cli.flower import FlowerRole, serve

    role = FlowerRole.load()
    given: dict[str, Any] = {"port": port, "address": address, "url_prefix": url_prefix}
    flags = {name: value for name, value in given.items() if value is not None}
    serve(role.model_copy(update={"flower": role.flower.model_copy(update=flags)}))
