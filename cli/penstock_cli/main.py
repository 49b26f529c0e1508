"""The `penstock` command: commands are mounted here, and every failure leaves through here."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType

import typer

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
from penstock_cli.simulate.command import simulate
from penstock_cli.text import safe

app = typer.Typer(
    name="penstock",
    help="LLM batch inference on a fleet of queue workers: one visible outcome for every document.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command(rich_help_panel="One machine")(run.run)
app.command(rich_help_panel="Jobs")(submit.submit)
app.command(rich_help_panel="Jobs")(jobs.status)
app.command(name="jobs", rich_help_panel="Jobs")(jobs.list_jobs)
app.command(rich_help_panel="Jobs")(results.report)
app.command(rich_help_panel="Jobs")(results.results)
app.command(rich_help_panel="Jobs")(jobs.pause)
app.command(rich_help_panel="Jobs")(jobs.resume)
app.command(rich_help_panel="Jobs")(jobs.cancel)
app.add_typer(dlq.app, name="dlq", rich_help_panel="Jobs")
app.command(rich_help_panel="Jobs")(purge.purge)
app.command(rich_help_panel="Fleet")(migrate.migrate)
app.command(rich_help_panel="Fleet")(worker.worker)
app.command(rich_help_panel="Fleet")(control.control)
app.command(rich_help_panel="Fleet")(flower.flower)
app.command(rich_help_panel="Fleet")(limits.limits)
app.command(rich_help_panel="Fleet")(refused.refused)
app.command(rich_help_panel="Fleet")(doctor.doctor)
app.command(rich_help_panel="One machine")(simulate)


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
