"""The one place that turns an exception into a message and an exit status."""

from __future__ import annotations

import sys
import traceback
from typing import Any, NoReturn

from penstock_cli.errors import EXIT_FAILED, EXIT_INTERRUPTED
from penstock_cli.settings import debug
from penstock_cli.state import StateFolder
from penstock_ledger.errors import EXIT_USAGE, PenstockError, SchemaMissing
from penstock_ledger.texts import Command, Run, Text
from penstock_producer.errors import JobRefused, Refusal
from penstock_producer.reporting.advice import on_terminal
from penstock_producer.reporting.text import argument, safe

# Packages that are usable alone, so that their errors have roots of their own.
_ROOTS_OF_THEIR_OWN = (
    ("penstock_ratelimit.errors", "RateLimitError"),
    ("penstock_simulate.choices", "BadSetting"),
)


def leave_with(error: BaseException) -> NoReturn:
    """End the process with the message of ``error`` on stderr and its exit status.

    Its traceback comes first where one is wanted."""
    from penstock_ledger.redaction import redact, several_lines

    if debug():
        sys.stderr.write(several_lines(redact("".join(traceback.format_exception(error)))))
    sys.stderr.write(f"penstock: {safe(redact(message(error)))}\n")
    sys.exit(exit_status(error))


def exit_status(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, PenstockError):
        return error.exit_status
    return EXIT_USAGE if _is(error, "penstock_simulate.choices", "BadSetting") else EXIT_FAILED


def message(error: BaseException) -> str:
    """Return one paragraph: what happened, and what to do."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SchemaMissing):
        return f"{on_terminal(error.text)}.{StateFolder.nearby()}"
    if isinstance(error, JobRefused):
        return f"{error}{_fix(error)}"
    if _is(error, "penstock_ratelimit.errors", "QuotaHeld"):
        held: Any = error
        return f"{error} ({on_terminal(Text(Run(Command.LIFT, (held.quota_id,))))})"
    if isinstance(error, PenstockError):
        return on_terminal(error.text)
    if any(_is(error, *root) for root in _ROOTS_OF_THEIR_OWN):
        return str(error)
    if _from(error, "redis"):
        return (
            f"Redis: {_sentence(error)} Check redis_url (PENSTOCK_REDIS_URL); `penstock doctor` "
            "looks closer."
        )
    if _from(error, "sqlalchemy", "psycopg", "sqlite3"):
        return (
            f"the database: {_sentence(error)} Check database_url (PENSTOCK_DATABASE_URL); "
            "`penstock doctor` looks closer."
        )
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        return f"the operating system says:{where} {error.strerror or error}"
    return (
        f"unexpected {type(error).__name__}: {_sentence(error)} This is a bug in Penstock: "
        "PENSTOCK_DEBUG=1 shows where; nothing that was finished is lost."
    )


def _fix(refused: JobRefused) -> str:
    """Return what a command can do about it, where the sentence does not say so."""
    key = argument(refused.job_key)
    if refused.code is Refusal.SEVERAL_FEEDERS:
        return ", or submit it with --feeders 1"
    if refused.code is Refusal.OPEN_BATCHES:
        return (
            f" (penstock status {key} says what they wait for); or forget them with "
            "--leave-batches and cancel them at the provider yourself"
        )
    goes_on = refused.params.get("state") in ("running", "paused")
    if refused.params.get("operation") == "purge" and goes_on:
        return f"; cancel it first: penstock cancel {key}"
    return ""


def _is(error: BaseException, module: str, name: str) -> bool:
    """Return whether it is an error of a package that is usable alone.

    The package is not imported to ask.
    """
    found = sys.modules.get(module)
    return found is not None and isinstance(error, getattr(found, name))


def _from(error: BaseException, *packages: str) -> bool:
    return any(kind.__module__.split(".")[0] in packages for kind in type(error).__mro__)


def _sentence(error: BaseException) -> str:
    """Return the first line of what it says, ended by one full stop."""
    return (str(error).split("\n", 1)[0].rstrip(" .") or type(error).__name__) + "."
