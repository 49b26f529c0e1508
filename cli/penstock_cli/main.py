"""The `penstock` command: a table of commands, each imported when it is asked for.

Every failure leaves through here."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import FrameType
from typing import Annotated, NamedTuple

import typer

from penstock_cli import command_help
from penstock_cli.command_help import USUAL, Boxed
from penstock_cli.errors import EXIT_FAILED, Interrupted
from penstock_cli.failures import leave_with


def _print_version(wanted: bool) -> None:
    """Print the version of the distribution, and what it runs on.

    A question is answered with these first.
    """
    if wanted:
        from penstock_cli.version import version_line

        typer.echo(version_line())
        raise typer.Exit


class Command(NamedTuple):
    """The place of a command, and its entry in `penstock --help`."""

    panel: str
    home: str  # module:function, or module:app of a group
    epilog: str | None = None


JOBS, FLEET, ONE_MACHINE = "Jobs", "Fleet", "One machine"
COMMANDS: Mapping[str, Command] = {
    "run": Command(ONE_MACHINE, "penstock_cli.commands.run:run", command_help.RUN),
    "submit": Command(JOBS, "penstock_cli.commands.run:submit", command_help.SUBMIT),
    "preview": Command(JOBS, "penstock_cli.commands.run:preview", command_help.PREVIEW),
    "plan": Command(JOBS, "penstock_cli.commands.plan:plan", command_help.PLAN),
    "status": Command(JOBS, "penstock_cli.commands.jobs:status", command_help.STATUS),
    "jobs": Command(JOBS, "penstock_cli.commands.jobs:list_jobs", command_help.JOBS),
    "report": Command(JOBS, "penstock_cli.commands.results:report", command_help.REPORT),
    "costs": Command(JOBS, "penstock_cli.commands.results:costs", command_help.COSTS),
    "results": Command(JOBS, "penstock_cli.commands.results:results", command_help.RESULTS),
    "pause": Command(JOBS, "penstock_cli.commands.jobs:pause", command_help.PAUSE),
    "resume": Command(JOBS, "penstock_cli.commands.jobs:resume", command_help.RESUME),
    "cancel": Command(JOBS, "penstock_cli.commands.jobs:cancel", command_help.CANCEL),
    "move": Command(JOBS, "penstock_cli.commands.jobs:move", command_help.MOVE),
    "dlq": Command(JOBS, "penstock_cli.commands.dlq:app"),
    "schedule": Command(JOBS, "penstock_cli.commands.schedule:app"),
    "purge": Command(JOBS, "penstock_cli.commands.jobs:purge", command_help.PURGE),
    "migrate": Command(FLEET, "penstock_cli.commands.fleet:migrate", command_help.MIGRATE),
    "worker": Command(FLEET, "penstock_cli.commands.worker:worker", command_help.WORKER),
    "control": Command(FLEET, "penstock_cli.commands.fleet:control", command_help.CONTROL),
    "gateway": Command(FLEET, "penstock_cli.commands.fleet:gateway", command_help.GATEWAY),
    "keys": Command(FLEET, "penstock_cli.commands.keys:app"),
    "flower": Command(FLEET, "penstock_cli.commands.fleet:flower", command_help.FLOWER),
    "serve": Command(ONE_MACHINE, "penstock_cli.commands.run:serve", command_help.SERVE),
    "limits": Command(FLEET, "penstock_cli.commands.limits:limits", command_help.LIMITS),
    "refused": Command(FLEET, "penstock_cli.commands.fleet:refused", command_help.REFUSED),
    "doctor": Command(FLEET, "penstock_cli.commands.worker:doctor", command_help.DOCTOR),
    "chaos": Command(ONE_MACHINE, "penstock_cli.chaos.command:chaos", command_help.CHAOS),
    "completion": Command(
        ONE_MACHINE, "penstock_cli.completion:completion", command_help.COMPLETION
    ),
    "simulate": Command(ONE_MACHINE, "penstock_simulate.command:simulate", command_help.SIMULATE),
}
"""In the order of `penstock --help`."""
RENAMED: Mapping[str, str] = {"estimate": "preview"}
"""Commands by the names that they had; they are called so by scripts."""


def command_line(words: Sequence[str] = ()) -> typer.Typer:
    """Return the command line that reads ``words``.

    Only the command that they begin with is imported, else all of them."""
    app = typer.Typer(
        name="penstock",
        help=(
            "LLM batch inference on a fleet of queue workers: one visible outcome for every "
            "document."
        ),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(_options)
    for name in [words[0]] if words and words[0] in COMMANDS else COMMANDS:
        _mount(app, name, COMMANDS[name])
    return app


def _mount(app: typer.Typer, name: str, command: Command) -> None:
    module, _, attribute = command.home.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name, rich_help_panel=command.panel)
    else:
        kind = Boxed if name in USUAL else None
        app.command(name, cls=kind, rich_help_panel=command.panel, epilog=command.epilog)(found)


def _options(
    version_asked: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; every failure becomes a message on stderr and an exit status."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # commands that end in an orderly way bring their own
        signal.signal(signal.SIGINT, _interrupted)
    try:
        words = sys.argv[1:]
        if words and words[0] in RENAMED:
            new = RENAMED[words[0]]
            typer.echo(f"penstock: `{words[0]}` is `{new}` now", err=True)
            words[0] = new
        command_line(words)(words, prog_name="penstock")
    except SystemExit:
        raise
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted; without this the interpreter complains once more
        # at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except BaseException as error:
        leave_with(error)


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    """Leave through ``main``, with a line and the status of an interrupt.

    KeyboardInterrupt would not."""
    raise Interrupted("interrupted")
