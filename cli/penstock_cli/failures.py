"""The one place that turns an exception into a message and an exit status."""

from __future__ import annotations

import sys

from penstock_cli.errors import EXIT_FAILED, EXIT_INTERRUPTED
from penstock_cli.run.state import StateFolder
from penstock_ledger.errors import PenstockError, SchemaMissing
from penstock_simulate.errors import BadSetting


def exit_status(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    return error.exit_status if isinstance(error, PenstockError | BadSetting) else EXIT_FAILED


def message(error: BaseException) -> str:
    """One paragraph: what happened, and what to do."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SchemaMissing):
        return f"{error}.{StateFolder.nearby()}"
    if isinstance(error, PenstockError | BadSetting) or _of_the_limiter(error):
        return str(error)
    if _from(error, "redis"):
        return f"Redis: {_sentence(error)} Check redis_url (PENSTOCK_REDIS_URL); `penstock doctor` looks closer."
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


def _of_the_limiter(error: BaseException) -> bool:
    """``penstock_ratelimit`` is usable alone, so its errors have a root of their own; it is not imported to ask."""
    errors = sys.modules.get("penstock_ratelimit.errors")
    return errors is not None and isinstance(error, errors.RateLimitError)


def _from(error: BaseException, *packages: str) -> bool:
    return any(kind.__module__.split(".")[0] in packages for kind in type(error).__mro__)


def _sentence(error: BaseException) -> str:
    """The first line of what it says, ended by one full stop."""
    return (str(error).split("\n", 1)[0].rstrip(" .") or type(error).__name__) + "."
