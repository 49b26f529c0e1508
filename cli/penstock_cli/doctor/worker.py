"""Check before a worker starts that it can serve its lane, and that its stores let it in.

What is found here leaves as one line and an exit status. Celery would print a traceback, or try
without an end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock_cli.connect import refuse_without_database, without_password
from penstock_cli.errors import CliError
from penstock_producer.reporting.text import one_line, safe

if TYPE_CHECKING:
    from penstock_workers.settings import WorkerSettings
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# of a check: a server that takes longer does not answer, as far as a job is concerned
REDIS_TIMEOUT_S: Final = 5.0


class Verdict(StrEnum):
    GOOD = "ok"
    WARNING = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    verdict: Verdict
    subject: str
    seen: str
    fix: str = ""


# for servers that start at the same time; after it the worker ends, and its orchestrator starts
# another
WAIT_S = 60.0
ASK_AGAIN_S = 1.0
# PostgreSQL on a login or a database; waiting does not help
_FOR_GOOD = ("authentication failed", "does not exist")


def check(settings: WorkerSettings) -> None:
    """Check the lane's settings, the database and Redis, waiting for servers that start.

    Raises CliError for servers, UsageProblem where no database is configured, and the lane's own
    errors for its settings."""
    from penstock_workers.lanes.registry import check_settings
    from penstock_workers.settings import CONTROL_LANE

    if settings.lane != CONTROL_LANE:
        check_settings(settings)
    refuse_without_database(settings)
    _answers(
        f"the database {without_password(settings.database_url)}",
        "database_url",
        lambda: _ask_database(settings),
    )
    _answers(
        f"Redis at {without_password(settings.redis_url)}",
        "redis_url",
        lambda: _ask_redis(settings),
    )


class _NotYet(Exception):
    """It may answer later."""


def _answers(name: str, setting: str, ask: Callable[[], None]) -> None:
    """Ask until it answers, for at most ``WAIT_S``; say once that it does not. Raises CliError."""
    fix = (
        f"start it, or correct {setting} (PENSTOCK_{setting.upper()}); `penstock doctor` looks "
        "closer"
    )
    until, said = time.monotonic() + WAIT_S, False
    while True:
        try:
            ask()
            return
        except _NotYet as error:
            if time.monotonic() + ASK_AGAIN_S > until:
                raise CliError(
                    f"{name} did not answer within {WAIT_S:g} s ({error}): {fix}"
                ) from error
            if not said:
                sys.stderr.write(
                    f"{safe(name)} does not answer yet ({safe(str(error))}); asking for {WAIT_S:g} "
                    "s\n"
                )
                said = True
        time.sleep(ASK_AGAIN_S)


def _ask_database(settings: WorkerSettings) -> None:
    """Ask the database once.

    Raises _NotYet, CliError, and SchemaMissing when there are no tables.
    """
    from penstock_ledger import DatabaseUnavailable, Meta, open_database

    database = open_database(
        settings.database_url, pool_size=1, waits=settings.database_waits, role="worker"
    )
    try:
        Meta(database).epoch()
    except DatabaseUnavailable as error:
        if any(sign in error.why for sign in _FOR_GOOD):
            raise CliError(
                f"the database {error.where} refuses: {error.why}. Correct database_url "
                "(PENSTOCK_DATABASE_URL)"
            ) from error
        raise _NotYet(one_line(error.why, 200)) from error
    finally:
        database.close()


def _ask_redis(settings: WorkerSettings) -> None:
    """Ask Redis once.

    Raises _NotYet and CliError.
    """
    import redis
    from redis.exceptions import NoPermissionError

    from penstock_ledger import RedisAddress

    client = RedisAddress.parse(settings.redis_url).connect(
        socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S
    )
    try:
        client.ping()
    except (redis.AuthenticationError, NoPermissionError) as error:
        raise CliError(
            f"Redis refuses: {one_line(str(error), 200)}. Correct user and password in redis_url "
            f"(PENSTOCK_REDIS_URL), now {without_password(settings.redis_url)}"
        ) from error
    except (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError) as error:
        raise _NotYet(one_line(str(error), 200)) from error
    except redis.ResponseError:
        return  # it lets us in, and says what it is short of: workers wait for that by themselves
    finally:
        client.close()
