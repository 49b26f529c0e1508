"""The ledger's errors name what was found and what to do about it.

PenstockError               root of what any package of Penstock raises on purpose (`penstock_ratelimit`, usable alone, apart)
└── LedgerError
    ├── DatabaseUnusable        the URL, the driver or the folder of the database cannot be used
    ├── DatabaseUnavailable     the database does not answer now
    ├── TablesInUse             a migration did not get a table that other transactions hold
    ├── SchemaError             the tables are not those that this release works with
    │   ├── SchemaMissing       this database was not migrated yet, or a newer release is installed
    │   └── SchemaTooNew        a newer release has migrated it: going on could write wrong rows
    ├── JobError
    │   ├── JobNotFound         no job has that id or key
    │   ├── JobConflict         the job key is taken by a job with another spec or source
    │   ├── JobClosed           a closed job takes no more documents
    │   └── JobNotReplayable    it was cancelled or failed
    ├── NothingToReplay         no dead letter matches
    ├── ScheduleNotFound        no schedule has that name
    ├── ScheduleExists          a schedule has that name already
    ├── TooManySchedules        there are as many as one database may have
    ├── PlaceLost               a reader's place is not one of this job in this database
    ├── OutcomesHeldBack        outcomes of the job cannot be read yet: a transaction that may have some is open
    ├── FeedLost                another feeder holds the feed: stop, and do not move its cursor
    ├── SpoolConflict           the same document id was pushed with another body
    ├── RedisForgot             Redis lost what it held; it is rebuilt from SQL first
    └── RedisUnfit              this Redis would lose work

``exit_status`` is what the command line ends with when the error ends a command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from penstock_ledger.texts import Command, Run, SetOption, Text

__all__ = [
    "EXIT_FAILED",
    "EXIT_USAGE",
    "DatabaseUnavailable",
    "DatabaseUnusable",
    "FeedLost",
    "JobClosed",
    "JobConflict",
    "JobError",
    "JobNotFound",
    "JobNotReplayable",
    "LedgerError",
    "NothingToReplay",
    "OutcomesHeldBack",
    "PenstockError",
    "PlaceLost",
    "RedisForgot",
    "RedisUnfit",
    "ScheduleExists",
    "ScheduleNotFound",
    "SchemaError",
    "SchemaMissing",
    "SchemaTooNew",
    "SpoolConflict",
    "TablesInUse",
    "TooManySchedules",
    "shown_ids",
]

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2  # bad usage or input: another argument, file or setting is needed


_IDS_SHOWN: Final = 3


def shown_ids(doc_ids: Sequence[str]) -> str:
    """Return document ids for a message: the first few, and how many more there are."""
    shown = ", ".join(map(repr, doc_ids[:_IDS_SHOWN]))
    return f"{shown} and {len(doc_ids) - _IDS_SHOWN} more" if len(doc_ids) > _IDS_SHOWN else shown


class PenstockError(Exception):
    """Root of everything that Penstock raises on purpose.

    The message says what was seen and what to do."""

    exit_status: ClassVar[int] = EXIT_FAILED

    @property
    def text(self) -> str:
        """Return the message, as a `Text` where it names actions: each surface writes these."""
        return self.args[0] if self.args and isinstance(self.args[0], Text) else str(self)

    @property
    def public_message(self) -> str:
        """Return the message as a remote door may show it.

        It has nothing of documents, prompts and other tenants' jobs."""
        return self.text


class LedgerError(PenstockError):
    """Root of everything that the ledger raises on purpose."""


class DatabaseUnusable(LedgerError):
    """The database cannot be opened as configured."""

    exit_status = EXIT_USAGE


class DatabaseUnavailable(LedgerError):
    """The database does not answer now: the same call may succeed later."""

    def __init__(self, where: str, why: str) -> None:
        # host and database, without a password; the driver's words
        self.where, self.why = (where, why)
        super().__init__(
            Text(
                f"the database {where} does not answer ({why}): start it, or correct database_url "
                "(PENSTOCK_DATABASE_URL); ",
                Run(Command.DOCTOR),
                " looks closer",
            )
        )


class TablesInUse(LedgerError):
    """A migration did not get the lock on a table; the same call may succeed later.

    It has changed nothing."""

    def __init__(self, where: str, tries: int, lock_s: float, held_by: Sequence[str]) -> None:
        self.why = f"other transactions hold tables: {'; '.join(held_by) or 'they have ended now'}"
        super().__init__(
            Text(
                f"the tables of {where} were not changed: {tries} times no lock came within "
                f"{lock_s:g} s ({self.why}). Jobs go on as before. Repeat ",
                Run(Command.MIGRATE),
                " once those have ended (reports, exports and dumps read for long), or end them: "
                "SELECT pg_terminate_backend(PID)",
            )
        )


class SchemaError(LedgerError):
    """The tables are not those that this release works with."""

    exit_status = EXIT_USAGE


class SchemaMissing(SchemaError):
    """The tables are missing or older than this release."""

    def __init__(self, found: str | None, expected: str) -> None:
        has = f"schema {found}" if found else "no Penstock tables"
        super().__init__(
            Text(
                f"the database has {has}, this release needs schema {expected}: ",
                Run(Command.MIGRATE),
                " creates or upgrades the tables",
            )
        )


class SchemaTooNew(SchemaError):
    """A newer release of Penstock has migrated this database."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(
            f"the database has schema {found}, this release knows none after {expected}: a newer "
            "Penstock has migrated it; upgrade this one, or restore the database from before"
        )


class JobError(LedgerError):
    """Something about one job."""

    exit_status = EXIT_USAGE


class JobNotFound(JobError):
    """No job has that id or key."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            Text(f"no job has the id or key {name!r}; ", Run(Command.JOBS), " lists them")
        )


class JobConflict(JobError):
    """The job key is taken by a job with another spec or another source.

    ``differences`` says in what they differ."""

    def __init__(self, job_key: str, job_id: str, differences: Sequence[str] = ()) -> None:
        self.job_key, self.job_id, self.differences = job_key, job_id, tuple(differences)
        shown = "; ".join(self.differences)
        super().__init__(
            f"job key {job_key!r} belongs to job {job_id}, which has another spec or "
            f"source{f' ({shown})' if shown else ''}: repeat the first submit unchanged, or choose "
            "another key"
        )

    @property
    def public_message(self) -> str:
        return str(JobConflict(self.job_key, self.job_id))


class JobClosed(JobError):
    """A closed job takes no more documents, and cannot be closed with another total."""

    def __init__(self, job_id: str, total: int, doc_ids: Sequence[str] = ()) -> None:
        # of documents that were not accepted
        self.job_id, self.total, self.doc_ids = (job_id, total, tuple(doc_ids))
        refused = f", and {shown_ids(self.doc_ids)} not accepted" if self.doc_ids else ""
        super().__init__(
            f"job {job_id} was closed with {total} documents{refused}: open another job for more"
        )


class JobNotReplayable(JobError):
    """Nothing leaves a cancelled or failed job."""

    def __init__(self, job_id: str, state: str) -> None:
        self.job_id, self.state = job_id, state
        super().__init__(
            f"job {job_id} is {state}: only running, paused and completed jobs can be replayed"
        )


class NothingToReplay(LedgerError):
    """No visible dead letter with a usable request matches."""

    exit_status = EXIT_USAGE

    def __init__(self, job_id: str, reason: str | None) -> None:
        which = f" with the reason {reason!r}" if reason else ""
        super().__init__(
            Text(
                f"job {job_id} has no dead letter{which} that can be sent again "
                "(rows that never parsed have no request): ",
                Run(Command.DEAD_LETTERS),
                " shows what there is",
            )
        )


class ScheduleNotFound(LedgerError):
    """No schedule has that name."""

    exit_status = EXIT_USAGE

    def __init__(self, name: str) -> None:
        super().__init__(
            Text(f"no schedule has the name {name!r}; ", Run(Command.SCHEDULES), " shows them")
        )


class ScheduleExists(LedgerError):
    """The name is taken."""

    exit_status = EXIT_USAGE

    def __init__(self, name: str) -> None:
        super().__init__(
            Text(
                f"there is a schedule {name!r} already: choose another ",
                SetOption("name"),
                ", or remove it first: ",
                Run(Command.UNSCHEDULE),
            )
        )


class FilesTaken(LedgerError):
    """Another job of the schedule took one of these new files meanwhile."""

    def __init__(self) -> None:
        super().__init__(
            "another job of this schedule has taken these files meanwhile; the next time looks "
            "again"
        )


class TooManySchedules(LedgerError):
    """There are as many schedules as the control loop looks after."""

    exit_status = EXIT_USAGE

    def __init__(self, most: int) -> None:
        super().__init__(
            f"there are {most} schedules, and no database may have more: remove those that have "
            "had their time"
        )


class PlaceLost(LedgerError):
    """A reader wants to go on after an outcome that is not there, or not in that place."""

    exit_status = EXIT_USAGE

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(
            f"the place to go on from is not one of job {job_id} in this database (the job is "
            "another one, or the database was copied or restored): read its results again from the "
            "start"
        )


class OutcomesHeldBack(LedgerError):
    """A transaction in the database may still commit outcomes of the job."""

    def __init__(self, job_id: str, waited_s: float) -> None:
        super().__init__(
            f"outcomes of job {job_id} are held back: a transaction in the database has been "
            f"writing outcomes for more than {waited_s:g} s; read again once it has ended"
        )


class BatchLost(LedgerError):
    """Another process leads this provider batch now."""

    def __init__(self, tag: str) -> None:
        super().__init__(
            f"provider batch {tag} is led by another process now: a lease ran out, or was handed "
            "over"
        )


class FeedLost(LedgerError):
    """Another feeder has taken the feed over, or it was rewound."""

    def __init__(self, job_id: str, generation: int, fence: int) -> None:
        super().__init__(
            f"feed {job_id}/{generation} is no longer led here at fence {fence}: stop feeding it; "
            "its new owner goes on"
        )


class SpoolConflict(LedgerError):
    """Document ids were pushed again with another body.

    The first one counts; all other documents were stored."""

    exit_status = EXIT_USAGE

    def __init__(self, job_id: str, doc_ids: Sequence[str], stored: int = 0) -> None:
        self.job_id, self.doc_ids = job_id, tuple(doc_ids)
        self.stored = stored  # documents of the same call that are new and stored
        super().__init__(
            f"job {job_id} holds another body for {shown_ids(self.doc_ids)}: the first one stays, "
            "all other documents are stored; give new documents new ids"
        )


class RedisForgot(LedgerError):
    """Redis was emptied, replaced or restored: its sentinel is missing or of another epoch."""

    def __init__(self, found: str | None, expected: str) -> None:
        super().__init__(
            f"Redis has epoch {found or 'none'}, the database has {expected}: it forgot what is "
            "finished; nothing is published until the control loop has rebuilt it from SQL"
        )


class RedisUnfit(LedgerError):
    """This Redis would lose work."""
