"""The `penstock` command: commands are mounted here, and every failure leaves through here."""

from __future__ import annotations

import os
import platform
import signal
import sys
import traceback
from importlib.metadata import version
from types import FrameType
from typing import Annotated

import typer

from penstock_cli import examples
from penstock_cli.commands import (
    control,
    dlq,
    doctor,
    flower,
    jobs,
    limits,
    migrate,
    purge,
    refused,
    results,
    run,
    submit,
    worker,
)
from penstock_cli.errors import EXIT_FAILED, Interrupted
from penstock_cli.failures import exit_status, message
from penstock_cli.settings import debug
from penstock_cli.show.text import safe
from penstock_simulate.command import simulate


def _print_version(wanted: bool) -> None:
    """Of the distribution; what it runs on is what an answer to a question starts with."""
    if wanted:
        typer.echo(f"penstock {version('penstock')} (Python {platform.python_version()})")
        raise typer.Exit


app = typer.Typer(
    name="penstock",
    help="LLM batch inference on a fleet of queue workers: one visible outcome for every document.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback()
def _options(
    version_asked: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and exit.")
    ] = False,
) -> None:
    pass


app.command(rich_help_panel="One machine", epilog=examples.RUN)(run.run)
app.command(rich_help_panel="Jobs", epilog=examples.SUBMIT)(submit.submit)
app.command(rich_help_panel="Jobs", epilog=examples.STATUS)(jobs.status)
app.command(name="jobs", rich_help_panel="Jobs", epilog=examples.JOBS)(jobs.list_jobs)
app.command(rich_help_panel="Jobs", epilog=examples.REPORT)(results.report)
app.command(rich_help_panel="Jobs", epilog=examples.RESULTS)(results.results)
app.command(rich_help_panel="Jobs", epilog=examples.PAUSE)(jobs.pause)
app.command(rich_help_panel="Jobs", epilog=examples.RESUME)(jobs.resume)
app.command(rich_help_panel="Jobs", epilog=examples.CANCEL)(jobs.cancel)
app.add_typer(dlq.app, name="dlq", rich_help_panel="Jobs")
app.command(rich_help_panel="Jobs", epilog=examples.PURGE)(purge.purge)
app.command(rich_help_panel="Fleet", epilog=examples.MIGRATE)(migrate.migrate)
app.command(rich_help_panel="Fleet", epilog=examples.WORKER)(worker.worker)
app.command(rich_help_panel="Fleet", epilog=examples.CONTROL)(control.control)
app.command(rich_help_panel="Fleet", epilog=examples.FLOWER)(flower.flower)
app.command(rich_help_panel="Fleet", epilog=examples.LIMITS)(limits.limits)
app.command(rich_help_panel="Fleet", epilog=examples.REFUSED)(refused.refused)
app.command(rich_help_panel="Fleet", epilog=examples.DOCTOR)(doctor.doctor)
app.command(rich_help_panel="One machine", epilog=examples.SIMULATE)(simulate)


def main() -> None:
    """Run the command line; every failure becomes a message on stderr and an exit status."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupted)  # commands that end in an orderly way bring their own
    try:
        app(prog_name="penstock")
    except SystemExit:
        raise
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted; without this the interpreter complains once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except BaseException as error:
        from penstock_ledger.log_lines import several_lines
        from penstock_ledger.redaction import redact

        if debug():
            sys.stderr.write(several_lines(redact(traceback.format_exc())))
        sys.stderr.write(f"penstock: {safe(redact(message(error)))}\n")
        sys.exit(exit_status(error))


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    """Unlike KeyboardInterrupt, this leaves through ``main``, with a line and the status of an interrupt."""
    raise Interrupted("interrupted")
