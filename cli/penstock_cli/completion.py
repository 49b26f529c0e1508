"""A shell offers on Tab what is found here; `penstock completion` prints the script that asks.

All of it is quiet: what cannot be found out is not offered, and never said in the middle of a line
that is being typed.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, Any

import typer

LONGEST_S = 5.0  # then a database that is away is given up: a person sits and waits
NEWEST = 200  # jobs that are looked through; nothing longer is chosen from
FIT = re.compile(r"[\w@%+,./-]+", re.ASCII)  # what every shell takes as it is, without quotes


class Shell(StrEnum):
    """The shells whose scripts are known and tested."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script that completes commands, options, their values and jobs in a shell."""
    from typer import completion as scripts

    made: Any = scripts  # which does not export it to type checkers
    asks = {"prog_name": "penstock", "complete_var": "_PENSTOCK_COMPLETE"}
    typer.echo(made.get_completion_script(**asks, shell=shell.value))


def job_keys(context: typer.Context, incomplete: str) -> list[str]:
    """Return the newest jobs that begin so, of the configured database or of ``--state``."""
    from penstock_cli.connect import books

    def look() -> Iterable[str]:
        with books(context.params.get("state")) as ledger:
            return [job.job_key for job in ledger.jobs.list(limit=NEWEST)]

    return [key for key in _quietly(look) if key.startswith(incomplete) and FIT.fullmatch(key)]


def values_of(field: str) -> Callable[[str], list[str]]:
    """Return what completes the flag of a job's option: the values that its schema lists."""

    def values(incomplete: str) -> list[str]:
        from penstock_producer.job.spec import JobSpec

        one: Any = JobSpec.model_json_schema()["properties"][field]
        listed = [value for form in (one, *one.get("anyOf", ())) for value in form.get("enum", ())]
        return [value for value in listed if value.startswith(incomplete)]

    return values


def _quietly(look: Callable[[], Iterable[str]]) -> Iterable[str]:
    """Return what is found in time; the process ends where it takes longer."""
    signal.signal(signal.SIGALRM, lambda _number, _frame: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        return look()
    except Exception:  # nothing is configured, or it is away: the command itself says so
        return ()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
