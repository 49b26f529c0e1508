"""Everything the command line refuses or gives up on, and the exit status of each.

CliError (a PenstockError)   1  failed
├── UsageProblem             2  bad usage or input
├── StateBusy                2  another `penstock run` holds the state folder
├── NoRedisServer            1  no usable redis-server binary
├── EmbeddedRedisFailed      1  the private Redis did not start, or did not stop
├── ForeignRedis             1  what answers on the private socket is another server
├── RedisNotRunning          1  the command needs a Redis that is not there
├── DatabaseAway             1  the database did not answer within the time given
├── WorkersKeepCrashing      1  worker processes end right after their start, again and again
├── JobStopped               1  the job is paused, cancelled or failed: says what to fix
├── PromiseBroken            4  `penstock chaos` saw the fleet break a promise: says how to see it again
└── Interrupted            130  Ctrl-C or SIGTERM; resumable
"""

from __future__ import annotations

from penstock_ledger.errors import EXIT_USAGE, PenstockError

__all__ = [
    "EXIT_BROKEN",
    "EXIT_DEAD_LETTERS",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_OK",
    "EXIT_USAGE",
    "CliError",
    "DatabaseAway",
    "EmbeddedRedisFailed",
    "ForeignRedis",
    "Interrupted",
    "JobStopped",
    "NoRedisServer",
    "PromiseBroken",
    "RedisNotRunning",
    "StateBusy",
    "UsageProblem",
    "WorkersKeepCrashing",
]

EXIT_OK = 0
EXIT_FAILED = PenstockError.exit_status  # of every error that names no other
EXIT_DEAD_LETTERS = 3
EXIT_BROKEN = 4
EXIT_INTERRUPTED = 130


class CliError(PenstockError):
    """A command could not do what it was asked. The message says what was seen and what to do."""


class UsageProblem(CliError):
    """A flag, a file or a setting is wrong: nothing was started and nothing was spent."""

    exit_status = EXIT_USAGE


class StateBusy(CliError):
    """Another process works on the same state folder."""

    exit_status = EXIT_USAGE


class NoRedisServer(CliError):
    """There is no redis-server that the one-machine mode could start."""


class EmbeddedRedisFailed(CliError):
    """The private redis-server did not start or did not stop."""


class ForeignRedis(CliError):
    """A server that we did not start answers at the address of our private Redis."""


class RedisNotRunning(CliError):
    """This command needs Redis, and no Redis answers."""


class DatabaseAway(CliError):
    """The database did not answer within the time given."""

    def __init__(self, shown: str, wait_s: float, why: str) -> None:
        super().__init__(
            f"{shown} did not answer within {wait_s:g} s ({why}): start it, correct database_url "
            "(PENSTOCK_DATABASE_URL), or wait longer with --wait"
        )


class WorkersKeepCrashing(CliError):
    """Worker processes end right after their start, so starting them again is no help."""


class JobStopped(CliError):
    """The job cannot go on by itself."""


class PromiseBroken(CliError):
    """`penstock chaos` saw the fleet break a promise."""

    exit_status = EXIT_BROKEN


class Interrupted(CliError):
    """Stopped by the user; the job resumes where it was."""

    exit_status = EXIT_INTERRUPTED
