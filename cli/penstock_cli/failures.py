"""The one place that turns an exception into a message and an exit status."""

from __future__ import annotations

from penstock_cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, CliError
from penstock_cli.state import StateFolder

_USAGE = {  # raised by our other packages; by name, so that reading this table imports none of them
    "SpecError",
    "TemplateError",
    "SettingsError",
    "SourceError",
    "SourceUnavailable",
    "SourceChanged",
    "TooManyBadRows",
    "InvalidDocument",
    "SinkError",
    "JobClosed",
    "JobNotFound",
    "JobConflict",
    "JobNotReplayable",
    "NothingToReplay",
    "SpoolConflict",
    "JobSealed",
    "DatabaseUnusable",
    "SchemaError",
    "UnknownLane",
    "UnknownProvider",
    "MissingApiKey",
    "InvalidFailpoint",
    "TracingMissing",
}
_OUR_ROOTS = {"ProducerError", "LedgerError", "WorkerError", "RatelimitError", "RateLimitError"}


def exit_status(error: BaseException) -> int:
    if isinstance(error, CliError):
        return error.exit_status
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    return EXIT_USAGE if _names(error) & _USAGE else EXIT_FAILED


def message(error: BaseException) -> str:
    """One paragraph: what happened, and what to do."""
    names = _names(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if "SchemaMissing" in names:
        return (
            f"{str(error).partition(':')[0]}: `penstock migrate` creates or upgrades the tables.{StateFolder.nearby()}"
        )
    if isinstance(error, CliError) or names & _OUR_ROOTS:
        return str(error)
    if _from(error, "redis"):
        return f"Redis: {error}. Check redis_url (PENSTOCK_REDIS_URL); `penstock doctor` looks closer."
    if _from(error, "sqlalchemy", "psycopg", "sqlite3"):
        first = _first_line(error)
        return f"the database: {first}. Check database_url (PENSTOCK_DATABASE_URL); `penstock doctor` looks closer."
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        return f"the operating system says:{where} {error.strerror or error}"
    return (
        f"unexpected {type(error).__name__}: {_first_line(error)}. This is a bug in Penstock: "
        "PENSTOCK_DEBUG=1 shows where; nothing that was finished is lost."
    )


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("penstock_")}


def _from(error: BaseException, *packages: str) -> bool:
    return any(kind.__module__.split(".")[0] in packages for kind in type(error).__mro__)


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0] or type(error).__name__
