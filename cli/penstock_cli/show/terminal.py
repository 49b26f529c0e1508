"""Commands print through the console: tables, the ends of logs, command lines to repeat."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_cli.state import StateFolder, write_private
from penstock_ledger.texts import SetOption
from penstock_producer.reporting.advice import as_flag
from penstock_producer.reporting.text import safe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


PIPE_WIDTH = 200  # into a file or a pipe nothing wraps at 80 columns


def console() -> Console:
    """Return a console that is wide in files and pipes.

    It does not guess at numbers and paths, and takes no markup from foreign text.
    """
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def plain_table(*headings: str) -> Table:
    """Return a table without lines, its headings dim."""
    from rich.table import Table

    return Table(*headings, box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")


MAX_ALIGNED = 40  # columns
LOG_TAIL_BYTES = 8192  # enough for the traceback at the end of a log
LOG_TAIL_LINES = 12


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines, every cell whole, fit to be copied from a pipe.

    A cell longer than MAX_ALIGNED pushes the rest of its row to the right instead of widening its
    column for all.
    """
    from rich.cells import cell_len

    widths = [
        max(
            (
                cell_len(row[index])
                for row in (header, *rows)
                if cell_len(row[index]) <= MAX_ALIGNED
            ),
            default=0,
        )
        for index in range(len(header))
    ]
    return [
        "  ".join(
            cell + " " * max(0, width - cell_len(cell))
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in (header, *rows)
    ]


def last_lines(path: Path) -> str:
    """Return the end of a log, escaped; empty when there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(safe(line) for line in text.splitlines()[-LOG_TAIL_LINES:])


def this_command() -> str:
    """Return the command that is running, fit to be pasted into a shell."""
    return shlex.join(["penstock", *sys.argv[1:]])


def this_command_with(**changed: str) -> str:
    """Return this command with other values of some flags, or with flags added."""
    flags = {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    words, kept = list(sys.argv[1:]), []
    while words:
        word = words.pop(0)
        if word in flags:
            words[:1] = []
        elif word.partition("=")[0] not in flags:
            kept.append(word)
    return shlex.join(["penstock", *kept, *(word for flag in flags.items() for word in flag)])


class Repetition:
    """The way to repeat a run, in its caller's words: here a command, fit for a shell."""

    def unchanged(self) -> str:
        return this_command()

    def changed(self, **values: str) -> str:
        """Return it with other values of some options, or with options added."""
        return this_command_with(**values)

    def option(self, action: SetOption) -> str:
        """Return one option as it is added."""
        return as_flag(action)

    def later(self) -> str:
        """Return it for another day: with its folder."""
        return f"cd {shlex.quote(str(Path.cwd()))} && {this_command()}"


def remember(state: StateFolder, job_id: str, again: Repetition) -> None:
    """Keep how the run of a job is repeated: `dlq replay` prints it later."""
    write_private(_file(state, job_id), f"{again.later()}\n")


def remembered(state: StateFolder, job_id: str) -> str:
    """Return the `penstock run` command that goes on with this job."""
    try:
        command = _file(state, job_id).read_text().strip()
    except OSError:
        return "its `penstock run` command, repeated"
    here = f"cd {shlex.quote(str(Path.cwd()))} && "
    return command.removeprefix(here)


def _file(state: StateFolder, job_id: str) -> Path:
    return state.figures / f"{job_id}.command"


def print_aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with its header dimmed."""
    from rich.text import Text

    shown = console()
    first, *lines = aligned(header, rows)
    shown.print(Text(first), style="dim", soft_wrap=True)
    for line in lines:
        shown.print(Text(line), soft_wrap=True)
