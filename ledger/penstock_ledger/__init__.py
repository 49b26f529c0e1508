"""Remember what is true: SQL tables and Redis keys, behind typed stores."""

from __future__ import annotations

from penstock_ledger.batches import (
    Begin,
    BeginVerdict,
    Begun,
    Depth,
    Drained,
    Drains,
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
    DatabaseUnusable,
    FeedLost,
    JobConflict,
    JobError,
    JobNotFound,
    JobNotReplayable,
    JobSealed,
    LedgerError,
    NothingToReplay,
    RedisForgot,
    RedisUnfit,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SpoolConflict,
)
from penstock_ledger.jobs import JobStore
from penstock_ledger.keys import bucket_count, buckets_for
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
from penstock_ledger.outbox import Outbox, OutboxRow
from penstock_ledger.outcomes import OutcomeStore
from penstock_ledger.postgres import POOL_SIZE, Waits
from penstock_ledger.redis_address import RedisAddress
from penstock_ledger.redis_ledger import RedisLedger
from penstock_ledger.spool import Spool, SpoolRow

__all__ = [
    "POOL_SIZE",
    "Begin",
    "BeginVerdict",
    "Begun",
    "Cause",
    "CauseBook",
    "Counts",
    "Database",
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
    "JobConflict",
    "JobError",
    "JobNotFound",
    "JobNotReplayable",
    "JobSealed",
    "JobState",
    "JobStore",
    "LedgerError",
    "Memory",
    "Meta",
    "NewJob",
    "NothingToReplay",
    "Outbox",
    "OutboxRow",
    "OutcomeStore",
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
    "Waits",
    "WorkerSeen",
    "bucket_count",
    "buckets_for",
    "open_database",
]
