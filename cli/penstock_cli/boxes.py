"""Which options a command's help shows, and in which box: a table by intent.

`--help` has the usual ones of a command, `--help-all` has every one. A command that takes the
flags of a table (job/flags.py) stands in ``USUAL`` and is made with ``cls=Boxed``; all its flags
work, whichever its help shows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperOption

# In this order; each with the flags that it shows, by their names without dashes.
BOXES: Final[Mapping[str, str]] = {
    "Documents": "spec format sheet table query query-file encoding id-field from-job "
    "from-schedule where max-bad-rows image-field audio-field messages-field dedup",
    "The request": "prompt prompt-file template system system-file examples truncate tokenizer "
    "compress-prompt model endpoint param param-field max-prompt-tokens on-overflow "
    "response-format response-schema schema-repairs embedding-dtype preprocess postprocess",
    "Answers": "out output-format keep-columns order escape-formulas into into-table into-id",
    "Money and time": "budget-usd over-budget usd-per-mtok-in usd-per-mtok-out deadline "
    "stop-at-dead stop-at-usd-per-doc cache tier",
    "Failures": "max-attempts timeout fallback fallback-on degrade escalate",
    "The provider": "api base-url api-key-env rpm tpm itpm otpm profile provider",
    "How it is inferred": "lane lanes batch-max-requests batch-poll batch-files prefix-order",
    "Shares of a fleet": "priority weight tenant feeders",
    "When": "name timezone catch-up overlap new-files events",
    "The plan": "documents within job-workers tokens-in tokens-out latency seed",
    "What is shown": "dry-run rows first json",
    "This machine": "job state workers concurrency sample no-progress port host",
}
HELP: Final = "Help"
ALL: Final = "help-all"
USUAL_BOX: Final = "The usual options"

# Ten at most: what a first job of one's own takes, in the order in which it is thought of.
USUAL: Final[Mapping[str, str]] = {
    "run": "prompt model base-url api-key-env id-field out output-format budget-usd sample dry-run",
    "submit": "prompt model id-field job deadline budget-usd output-format lane provider priority",
    "preview": "prompt model id-field param usd-per-mtok-in usd-per-mtok-out rpm rows first json",
    "plan": "documents within model prompt rpm tpm tokens-in tokens-out from-job workers",
    "add": "name prompt model id-field timezone catch-up new-files from-schedule output-format "
    "deadline",
    "serve": "port state base-url api-key-env api rpm tpm lane model host",
}


def box_of(flag: str) -> str | None:
    """Return the box in which `--help-all` shows a flag."""
    return next((box for box, flags in BOXES.items() if flag in flags.split()), None)


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        context.meta[ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        f"--{ALL}",
        is_eager=True,
        callback=_show_all,
        help="Show every option, in boxes by what they are for, and exit.",
    ),
]


class Boxed(TyperCommand):
    """A command whose help has the usual options, and with `--help-all` all of them in boxes."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of a copy that has the options to show, in their order."""
        shown = copy.copy(self)
        shown.params = list(_arranged(str(self.name), self.get_params(ctx), ALL in ctx.meta))
        shown.add_help_option = False  # it is among them
        TyperCommand.format_help(shown, ctx, formatter)


def _arranged(command: str, given: Sequence[Any], show_all: bool) -> Iterator[Any]:
    """Yield the arguments, the usual options, all others box by box, and the help's own."""
    usual = USUAL[command].split()
    options = {_name(one): one for one in given if isinstance(one, TyperOption)}
    yield from (one for one in given if not isinstance(one, TyperOption))
    yield from (_put(options[name], USUAL_BOX) for name in usual)
    if show_all:
        order = [*BOXES, None]
        rest = (name for name in options if name not in (*usual, ALL, "help"))
        for name in sorted(rest, key=lambda name: order.index(box_of(name))):
            yield _put(options[name], box_of(name))
    yield from (_put(options[name], HELP) for name in (ALL, "help"))


def _name(option: TyperOption) -> str:
    return max(option.opts, key=len).removeprefix("--")


def _put(option: TyperOption, box: str | None) -> TyperOption:
    placed = copy.copy(option)
    placed.rich_help_panel = box
    return placed
