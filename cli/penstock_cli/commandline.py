"""The command lines that we print for people to repeat."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from penstock_cli.state import StateFolder, write_private


def this_command() -> str:
    """The command that is running, fit to be pasted into a shell."""
    return shlex.join(["penstock", *sys.argv[1:]])


def this_command_with(**changed: str) -> str:
    """The same with other values of some flags, wherever they stand; added where they are not
    given."""
    flags = {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    words, kept = list(sys.argv[1:]), []
    while words:
        word = words.pop(0)
        if word in flags:
            words[:1] = []
        elif word.partition("=")[0] not in flags:
            kept.append(word)
    return shlex.join(["penstock", *kept, *(word for flag in flags.items() for word in flag)])


def remember(state: StateFolder, job_id: str) -> None:
    """Keep the `penstock run` command of a job, with its folder: `dlq replay` prints it later."""
    write_private(_file(state, job_id), f"cd {shlex.quote(str(Path.cwd()))} && {this_command()}\n")


def remembered(state: StateFolder, job_id: str) -> str:
    """The `penstock run` command that goes on with this job."""
    try:
        command = _file(state, job_id).read_text().strip()
    except OSError:
        return "its `penstock run` command, repeated"
    here = f"cd {shlex.quote(str(Path.cwd()))} && "
    return command.removeprefix(here)


def _file(state: StateFolder, job_id: str) -> Path:
    return state.figures / f"{job_id}.command"
