"""`penstock simulate`: the command. Its flags are the fields of SimulatorConfig."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

import typer

from penstock_simulate.config import SimulatorConfig
from penstock_simulate.flags import FLAGS, Flag

PORT = 8399  # fixed, so that the address can be guessed; the field's own default takes a free one


def simulate(**given: Any) -> None:
    """A local OpenAI-compatible provider with strict limits and seeded faults.

    It counts every call: GET /stats.

    It has the batch APIs of OpenAI, Anthropic and Gemini, too: GET /batches shows what became of
    each batch.

    While it runs, POST /control changes settings and refuses on demand: {"rpm": 600} or
    {"refuse": {"kind": "slow_down", "calls": 3}}. GET /metrics has vLLM's queue gauges.
    """
    if given["hostile"] == "list":
        from penstock_simulate.hostile import listing

        typer.echo(listing())
        return
    config = SimulatorConfig(**given)
    from penstock_simulate.web import serve

    serve(config)


def _parameters() -> list[inspect.Parameter]:
    """Each field as Typer reads a flag, in the order of the table."""
    types = get_type_hints(SimulatorConfig)
    defaults = {field.name: field.default for field in fields(SimulatorConfig)} | {"port": PORT}
    return [_parameter(name, types[name], defaults[name], flag) for name, flag in FLAGS.items()]


def _parameter(name: str, kind: Any, default: object, flag: Flag) -> inspect.Parameter:
    option = typer.Option(help=flag.help, rich_help_panel=flag.panel)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


simulate.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]  # what Typer reads
