"""Remember what is true: SQL tables and Redis keys, behind typed stores.

The names below are the public ones. They load on first use, so that an error class or a value costs no SQL toolkit.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_ledger.batches import (
        Begin,
        BeginVerdict,
        Begun,
        Depth,
        Drained,
        Drains,
        JobSeen,
        Memory,
        Publish,
        PublishReport,
        SettleBatch,
        SettledDead,
        SettledDone,
        SettledRetry,
        SettleReport,
        WorkerSeen,
    )
    from penstock_ledger.causes import Cause, CauseBook
    from penstock_ledger.database import Database, open_database
    from penstock_ledger.errors import (
        DatabaseUnavailable,
        DatabaseUnusable,
        FeedLost,
        JobClosed,
        JobConflict,
        JobError,
        JobNotFound,
        JobNotReplayable,
        LedgerError,
        NothingToReplay,
        PenstockError,
        RedisForgot,
        RedisUnfit,
        SchemaError,
        SchemaMissing,
        SchemaTooNew,
        SpoolConflict,
    )
    from penstock_ledger.jobs import JobStore
    from penstock_ledger.keys import bucket_count, buckets_for
    from penstock_ledger.live import LiveFeed, LiveJob, LiveJobs
    from penstock_ledger.meta import Meta
    from penstock_ledger.model import (
        Counts,
        DeadLetter,
        Feed,
        FeedKind,
        ItemKey,
        Job,
        JobState,
        NewJob,
        Result,
    )
    from penstock_ledger.outcomes import OutcomeStore
    from penstock_ledger.postgres import POOL_SIZE, Waits
    from penstock_ledger.redis_address import RedisAddress
    from penstock_ledger.redis_ledger import RedisLedger
    from penstock_ledger.spool import Spool, SpoolRow
    from penstock_ledger.storable import storable
    from penstock_ledger.store_errors import Trouble, in_words, trouble_of

__all__ = [
    "POOL_SIZE",
    "Begin",
    "BeginVerdict",
    "Begun",
    "Cause",
    "CauseBook",
    "Counts",
    "Database",
    "DatabaseUnavailable",
    "DatabaseUnusable",
    "DeadLetter",
    "Depth",
    "Drained",
    "Drains",
    "Feed",
    "FeedKind",
    "FeedLost",
    "ItemKey",
    "Job",
    "JobClosed",
    "JobConflict",
    "JobError",
    "JobNotFound",
    "JobNotReplayable",
    "JobSeen",
    "JobState",
    "JobStore",
    "LedgerError",
    "LiveFeed",
    "LiveJob",
    "LiveJobs",
    "Memory",
    "Meta",
    "NewJob",
    "NothingToReplay",
    "OutcomeStore",
    "PenstockError",
    "Publish",
    "PublishReport",
    "RedisAddress",
    "RedisForgot",
    "RedisLedger",
    "RedisUnfit",
    "Result",
    "SchemaError",
    "SchemaMissing",
    "SchemaTooNew",
    "SettleBatch",
    "SettleReport",
    "SettledDead",
    "SettledDone",
    "SettledRetry",
    "Spool",
    "SpoolConflict",
    "SpoolRow",
    "Trouble",
    "Waits",
    "WorkerSeen",
    "bucket_count",
    "buckets_for",
    "in_words",
    "open_database",
    "storable",
    "trouble_of",
]

_HOMES = {
    "POOL_SIZE": "postgres",
    "Begin": "batches",
    "BeginVerdict": "batches",
    "Begun": "batches",
    "Cause": "causes",
    "CauseBook": "causes",
    "Counts": "model",
    "Database": "database",
    "DatabaseUnavailable": "errors",
    "DatabaseUnusable": "errors",
    "DeadLetter": "model",
    "Depth": "batches",
    "Drained": "batches",
    "Drains": "batches",
    "Feed": "model",
    "FeedKind": "model",
    "FeedLost": "errors",
    "ItemKey": "model",
    "Job": "model",
    "JobClosed": "errors",
    "JobConflict": "errors",
    "JobError": "errors",
    "JobNotFound": "errors",
    "JobNotReplayable": "errors",
    "JobSeen": "batches",
    "JobState": "model",
    "JobStore": "jobs",
    "LedgerError": "errors",
    "LiveFeed": "live",
    "LiveJob": "live",
    "LiveJobs": "live",
    "Memory": "batches",
    "Meta": "meta",
    "NewJob": "model",
    "NothingToReplay": "errors",
    "OutcomeStore": "outcomes",
    "PenstockError": "errors",
    "Publish": "batches",
    "PublishReport": "batches",
    "RedisAddress": "redis_address",
    "RedisForgot": "errors",
    "RedisLedger": "redis_ledger",
    "RedisUnfit": "errors",
    "Result": "model",
    "SchemaError": "errors",
    "SchemaMissing": "errors",
    "SchemaTooNew": "errors",
    "SettleBatch": "batches",
    "SettleReport": "batches",
    "SettledDead": "batches",
    "SettledDone": "batches",
    "SettledRetry": "batches",
    "Spool": "spool",
    "SpoolConflict": "errors",
    "SpoolRow": "spool",
    "Waits": "postgres",
    "WorkerSeen": "batches",
    "bucket_count": "keys",
    "buckets_for": "keys",
    "in_words": "store_errors",
    "open_database": "database",
    "storable": "storable",
    "trouble_of": "store_errors",
    "Trouble": "store_errors",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
