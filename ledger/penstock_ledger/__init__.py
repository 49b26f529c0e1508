"""Remember what is true: SQL tables and Redis keys, behind typed stores.

The names below are the public ones. They load on first use, so that an error class or a value costs
no SQL toolkit. Other packages of this distribution may also import what `INTERNAL_SURFACE` in
tests/contract/test_boundaries.py lists, from each module what its `__all__` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_ledger.lazy_names import lazy_names

if TYPE_CHECKING:
    __all__: list[str]
    from penstock_ledger.door_stores.api_keys import DEFAULT_SCOPES as DEFAULT_SCOPES
    from penstock_ledger.door_stores.api_keys import KEY_NAME_CHARS as KEY_NAME_CHARS
    from penstock_ledger.door_stores.api_keys import KEYS_MAX as KEYS_MAX
    from penstock_ledger.door_stores.api_keys import SCOPES as SCOPES
    from penstock_ledger.door_stores.api_keys import ApiKey as ApiKey
    from penstock_ledger.door_stores.api_keys import ApiKeyStore as ApiKeyStore
    from penstock_ledger.door_stores.api_keys import EndedSessions as EndedSessions
    from penstock_ledger.door_stores.api_keys import KeyLimits as KeyLimits
    from penstock_ledger.door_stores.api_keys import LockedKeys as LockedKeys
    from penstock_ledger.door_stores.api_keys import NewApiKey as NewApiKey
    from penstock_ledger.door_stores.api_keys import digest_of_key as digest_of_key
    from penstock_ledger.door_stores.api_keys import is_tenant_of_key as is_tenant_of_key
    from penstock_ledger.door_stores.api_keys import looks_like_key as looks_like_key
    from penstock_ledger.door_stores.batches import BatchesAsked as BatchesAsked
    from penstock_ledger.door_stores.batches import BatchPage as BatchPage
    from penstock_ledger.door_stores.batches import DoorBatch as DoorBatch
    from penstock_ledger.door_stores.batches import DoorBatchState as DoorBatchState
    from penstock_ledger.door_stores.batches import DoorBatchStore as DoorBatchStore
    from penstock_ledger.door_stores.batches import LeasedBatch as LeasedBatch
    from penstock_ledger.door_stores.batches import NewDoorBatch as NewDoorBatch
    from penstock_ledger.door_stores.door_calls import CallClaim as CallClaim
    from penstock_ledger.door_stores.door_calls import DoorCall as DoorCall
    from penstock_ledger.door_stores.door_calls import DoorCallStore as DoorCallStore
    from penstock_ledger.door_stores.door_calls import PushedCall as PushedCall
    from penstock_ledger.door_stores.events import EVERY_EVENT as EVERY_EVENT
    from penstock_ledger.door_stores.events import EventType as EventType
    from penstock_ledger.door_stores.events import note_event as note_event
    from penstock_ledger.door_stores.files import DoorFile as DoorFile
    from penstock_ledger.door_stores.files import DoorFiles as DoorFiles
    from penstock_ledger.door_stores.files import FileDetails as FileDetails
    from penstock_ledger.door_stores.files import needed_by as needed_by
    from penstock_ledger.door_stores.job_pages import DeadLetterLine as DeadLetterLine
    from penstock_ledger.door_stores.job_pages import JobPage as JobPage
    from penstock_ledger.door_stores.job_pages import JobPages as JobPages
    from penstock_ledger.door_stores.job_pages import JobPlace as JobPlace
    from penstock_ledger.door_stores.job_pages import dead_letter_lines as dead_letter_lines
    from penstock_ledger.door_stores.spending import Month as Month
    from penstock_ledger.door_stores.spending import Spending as Spending
    from penstock_ledger.door_stores.spending import SpendingStore as SpendingStore
    from penstock_ledger.door_stores.spending import TenantAccounts as TenantAccounts
    from penstock_ledger.door_stores.spending import TenantBudgets as TenantBudgets
    from penstock_ledger.door_stores.spending import TenantCosts as TenantCosts
    from penstock_ledger.door_stores.spending import month_of as month_of
    from penstock_ledger.door_stores.spending import tenant_of_job as tenant_of_job
    from penstock_ledger.door_stores.webhooks import Delivery as Delivery
    from penstock_ledger.door_stores.webhooks import DueDelivery as DueDelivery
    from penstock_ledger.door_stores.webhooks import Endpoint as Endpoint
    from penstock_ledger.door_stores.webhooks import NewCallback as NewCallback
    from penstock_ledger.door_stores.webhooks import NewEndpoint as NewEndpoint
    from penstock_ledger.door_stores.webhooks import WebhookStore as WebhookStore
    from penstock_ledger.door_stores.whose import EVERYONE as EVERYONE
    from penstock_ledger.door_stores.whose import Whose as Whose
    from penstock_ledger.errors import BatchLost as BatchLost
    from penstock_ledger.errors import DatabaseUnavailable as DatabaseUnavailable
    from penstock_ledger.errors import DatabaseUnusable as DatabaseUnusable
    from penstock_ledger.errors import FeedLost as FeedLost
    from penstock_ledger.errors import FilesTaken as FilesTaken
    from penstock_ledger.errors import JobClosed as JobClosed
    from penstock_ledger.errors import JobConflict as JobConflict
    from penstock_ledger.errors import JobError as JobError
    from penstock_ledger.errors import JobNotFound as JobNotFound
    from penstock_ledger.errors import JobNotReplayable as JobNotReplayable
    from penstock_ledger.errors import LedgerError as LedgerError
    from penstock_ledger.errors import NothingToReplay as NothingToReplay
    from penstock_ledger.errors import OutcomesHeldBack as OutcomesHeldBack
    from penstock_ledger.errors import PenstockError as PenstockError
    from penstock_ledger.errors import PlaceLost as PlaceLost
    from penstock_ledger.errors import RedisForgot as RedisForgot
    from penstock_ledger.errors import RedisUnfit as RedisUnfit
    from penstock_ledger.errors import ScheduleExists as ScheduleExists
    from penstock_ledger.errors import ScheduleNotFound as ScheduleNotFound
    from penstock_ledger.errors import SchemaError as SchemaError
    from penstock_ledger.errors import SchemaMissing as SchemaMissing
    from penstock_ledger.errors import SchemaTooNew as SchemaTooNew
    from penstock_ledger.errors import SpoolConflict as SpoolConflict
    from penstock_ledger.errors import TablesInUse as TablesInUse
    from penstock_ledger.errors import TooManySchedules as TooManySchedules
    from penstock_ledger.in_redis.answer_book import AnswerBook as AnswerBook
    from penstock_ledger.in_redis.answer_book import Asked as Asked
    from penstock_ledger.in_redis.answer_book import InFlight as InFlight
    from penstock_ledger.in_redis.answer_book import RequestName as RequestName
    from penstock_ledger.in_redis.batches import FED_UP_TO as FED_UP_TO
    from penstock_ledger.in_redis.batches import AskedAgain as AskedAgain
    from penstock_ledger.in_redis.batches import Begin as Begin
    from penstock_ledger.in_redis.batches import BeginReply as BeginReply
    from penstock_ledger.in_redis.batches import Begun as Begun
    from penstock_ledger.in_redis.batches import Depth as Depth
    from penstock_ledger.in_redis.batches import Drained as Drained
    from penstock_ledger.in_redis.batches import Drains as Drains
    from penstock_ledger.in_redis.batches import JobSeen as JobSeen
    from penstock_ledger.in_redis.batches import Keep as Keep
    from penstock_ledger.in_redis.batches import Lately as Lately
    from penstock_ledger.in_redis.batches import MayCost as MayCost
    from penstock_ledger.in_redis.batches import Memory as Memory
    from penstock_ledger.in_redis.batches import Publish as Publish
    from penstock_ledger.in_redis.batches import PublishReport as PublishReport
    from penstock_ledger.in_redis.batches import SettleBatch as SettleBatch
    from penstock_ledger.in_redis.batches import SettledCrash as SettledCrash
    from penstock_ledger.in_redis.batches import SettledDead as SettledDead
    from penstock_ledger.in_redis.batches import SettledDone as SettledDone
    from penstock_ledger.in_redis.batches import SettledRetry as SettledRetry
    from penstock_ledger.in_redis.batches import SettleReport as SettleReport
    from penstock_ledger.in_redis.batches import WorkerSeen as WorkerSeen
    from penstock_ledger.in_redis.budget_book import BOUNDLESS as BOUNDLESS
    from penstock_ledger.in_redis.budget_book import Account as Account
    from penstock_ledger.in_redis.budget_book import BudgetBook as BudgetBook
    from penstock_ledger.in_redis.budget_book import TenantAccount as TenantAccount
    from penstock_ledger.in_redis.budget_book import TenantSeen as TenantSeen
    from penstock_ledger.in_redis.door_limits import Admission as Admission
    from penstock_ledger.in_redis.door_limits import Admitted as Admitted
    from penstock_ledger.in_redis.door_limits import DoorLimits as DoorLimits
    from penstock_ledger.in_redis.queue_book import QueueBook as QueueBook
    from penstock_ledger.in_redis.redis_address import (
        REDIS_CONNECT_TIMEOUT_S as REDIS_CONNECT_TIMEOUT_S,
    )
    from penstock_ledger.in_redis.redis_address import REDIS_TIMEOUT_S as REDIS_TIMEOUT_S
    from penstock_ledger.in_redis.redis_address import RedisAddress as RedisAddress
    from penstock_ledger.in_redis.redis_address import is_cluster as is_cluster
    from penstock_ledger.in_redis.redis_address import without_secrets as without_secrets
    from penstock_ledger.in_redis.redis_ledger import RedisLedger as RedisLedger
    from penstock_ledger.in_redis.seen import COUNTED as COUNTED
    from penstock_ledger.in_redis.seen import Cause as Cause
    from penstock_ledger.in_redis.seen import CauseBook as CauseBook
    from penstock_ledger.in_redis.seen import QuotaSeen as QuotaSeen
    from penstock_ledger.in_redis.seen import YieldsSeen as YieldsSeen
    from penstock_ledger.in_redis.seen import counted as counted
    from penstock_ledger.in_redis.seen import quotas_seen as quotas_seen
    from penstock_ledger.in_redis.seen import yields_of as yields_of
    from penstock_ledger.in_redis.warm_prefixes import Primed as Primed
    from penstock_ledger.in_redis.warm_prefixes import WarmPrefixes as WarmPrefixes
    from penstock_ledger.keys import RETRIED as RETRIED
    from penstock_ledger.keys import bucket_count as bucket_count
    from penstock_ledger.keys import buckets_for as buckets_for
    from penstock_ledger.model import RULE as RULE
    from penstock_ledger.model import Counts as Counts
    from penstock_ledger.model import DeadLetter as DeadLetter
    from penstock_ledger.model import Feed as Feed
    from penstock_ledger.model import FeedKind as FeedKind
    from penstock_ledger.model import ItemKey as ItemKey
    from penstock_ledger.model import Job as Job
    from penstock_ledger.model import JobState as JobState
    from penstock_ledger.model import LaneCounts as LaneCounts
    from penstock_ledger.model import NewJob as NewJob
    from penstock_ledger.model import Paid as Paid
    from penstock_ledger.model import PaidBeside as PaidBeside
    from penstock_ledger.model import Result as Result
    from penstock_ledger.model import Saving as Saving
    from penstock_ledger.provider_batch import CANCEL_WAIT_S as CANCEL_WAIT_S
    from penstock_ledger.provider_batch import BatchesOpen as BatchesOpen
    from penstock_ledger.provider_batch import BatchFailure as BatchFailure
    from penstock_ledger.provider_batch import BatchState as BatchState
    from penstock_ledger.provider_batch import BatchSum as BatchSum
    from penstock_ledger.provider_batch import BatchTrouble as BatchTrouble
    from penstock_ledger.provider_batch import EqualRequests as EqualRequests
    from penstock_ledger.provider_batch import KeptDocument as KeptDocument
    from penstock_ledger.provider_batch import Missing as Missing
    from penstock_ledger.provider_batch import NewProviderBatch as NewProviderBatch
    from penstock_ledger.provider_batch import ProviderBatch as ProviderBatch
    from penstock_ledger.provider_batch import Remainder as Remainder
    from penstock_ledger.provider_batch import Waiting as Waiting
    from penstock_ledger.provider_batch import kept_documents as kept_documents
    from penstock_ledger.schedules.model import CatchUp as CatchUp
    from penstock_ledger.schedules.model import Decision as Decision
    from penstock_ledger.schedules.model import DriftRule as DriftRule
    from penstock_ledger.schedules.model import Firing as Firing
    from penstock_ledger.schedules.model import FiringOutcome as FiringOutcome
    from penstock_ledger.schedules.model import NewSchedule as NewSchedule
    from penstock_ledger.schedules.model import OnDrift as OnDrift
    from penstock_ledger.schedules.model import Schedule as Schedule
    from penstock_ledger.schedules.noticed import Noted as Noted
    from penstock_ledger.schedules.noticed import NoticedFile as NoticedFile
    from penstock_ledger.schedules.noticed import NoticedStore as NoticedStore
    from penstock_ledger.schedules.runs import Run as Run
    from penstock_ledger.schedules.runs import RunFigures as RunFigures
    from penstock_ledger.schedules.runs import RunStore as RunStore
    from penstock_ledger.schedules.runs import Spread as Spread
    from penstock_ledger.schedules.store import ScheduleStore as ScheduleStore
    from penstock_ledger.sql.database import Database as Database
    from penstock_ledger.sql.database import open_database as open_database
    from penstock_ledger.sql.postgres import POOL_SIZE as POOL_SIZE
    from penstock_ledger.sql.postgres import Waits as Waits
    from penstock_ledger.sql.tables import HEAD as HEAD
    from penstock_ledger.store_errors import Trouble as Trouble
    from penstock_ledger.store_errors import in_words as in_words
    from penstock_ledger.store_errors import trouble_of as trouble_of
    from penstock_ledger.stored_values import FIGURE_MAX as FIGURE_MAX
    from penstock_ledger.stored_values import storable as storable
    from penstock_ledger.stores.batch_figures import BatchFigures as BatchFigures
    from penstock_ledger.stores.batch_journal import ProviderBatchStore as ProviderBatchStore
    from penstock_ledger.stores.batch_remainders import EqualRequestStore as EqualRequestStore
    from penstock_ledger.stores.batch_remainders import RemainderStore as RemainderStore
    from penstock_ledger.stores.batch_remainders import SentRequest as SentRequest
    from penstock_ledger.stores.commit_order import CommitOrder as CommitOrder
    from penstock_ledger.stores.commit_order import Place as Place
    from penstock_ledger.stores.jobs import JobStore as JobStore
    from penstock_ledger.stores.lane_moves import BY_HAND as BY_HAND
    from penstock_ledger.stores.lane_moves import MOVE_REASONS as MOVE_REASONS
    from penstock_ledger.stores.lane_moves import LaneMove as LaneMove
    from penstock_ledger.stores.lane_moves import LaneMoves as LaneMoves
    from penstock_ledger.stores.live import LiveFeed as LiveFeed
    from penstock_ledger.stores.live import LiveJob as LiveJob
    from penstock_ledger.stores.live import LiveJobs as LiveJobs
    from penstock_ledger.stores.meta import Meta as Meta
    from penstock_ledger.stores.meta import StepsTaken as StepsTaken
    from penstock_ledger.stores.meta import StepTaken as StepTaken
    from penstock_ledger.stores.outcomes import OutcomeStore as OutcomeStore
    from penstock_ledger.stores.outcomes import PromptSizes as PromptSizes
    from penstock_ledger.stores.provenance import RENOTED_S as RENOTED_S
    from penstock_ledger.stores.provenance import InUse as InUse
    from penstock_ledger.stores.provenance import MadeWith as MadeWith
    from penstock_ledger.stores.provenance import Provenance as Provenance
    from penstock_ledger.stores.provenance import made_by as made_by
    from penstock_ledger.stores.provenance import purge_job as purge_job
    from penstock_ledger.stores.source_keys import SourceKeys as SourceKeys
    from penstock_ledger.stores.spool import Spool as Spool
    from penstock_ledger.stores.spool import SpoolRow as SpoolRow
    from penstock_ledger.vectors import Vectors as Vectors
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "penstock_ledger.door_stores.api_keys": (
                "ApiKey ApiKeyStore DEFAULT_SCOPES EndedSessions KEYS_MAX KEY_NAME_CHARS "
                "KeyLimits LockedKeys NewApiKey SCOPES digest_of_key is_tenant_of_key "
                "looks_like_key"
            ),
            "penstock_ledger.door_stores.batches": (
                "BatchPage BatchesAsked DoorBatch DoorBatchState DoorBatchStore LeasedBatch "
                "NewDoorBatch"
            ),
            "penstock_ledger.door_stores.door_calls": "CallClaim DoorCall DoorCallStore PushedCall",
            "penstock_ledger.door_stores.events": "EVERY_EVENT EventType note_event",
            "penstock_ledger.door_stores.files": "DoorFile DoorFiles FileDetails needed_by",
            "penstock_ledger.door_stores.job_pages": (
                "JobPage JobPages JobPlace DeadLetterLine dead_letter_lines"
            ),
            "penstock_ledger.door_stores.spending": (
                "Month Spending SpendingStore TenantAccounts TenantBudgets TenantCosts month_of "
                "tenant_of_job"
            ),
            "penstock_ledger.door_stores.webhooks": (
                "Delivery DueDelivery Endpoint NewCallback NewEndpoint WebhookStore"
            ),
            "penstock_ledger.door_stores.whose": "EVERYONE Whose",
            "penstock_ledger.errors": (
                "BatchLost DatabaseUnavailable DatabaseUnusable FeedLost FilesTaken JobClosed "
                "JobConflict JobError JobNotFound JobNotReplayable LedgerError NothingToReplay "
                "OutcomesHeldBack PenstockError PlaceLost RedisForgot RedisUnfit ScheduleExists "
                "ScheduleNotFound SchemaError SchemaMissing SchemaTooNew SpoolConflict "
                "TablesInUse TooManySchedules"
            ),
            "penstock_ledger.in_redis.answer_book": "AnswerBook Asked InFlight RequestName",
            "penstock_ledger.in_redis.warm_prefixes": "Primed WarmPrefixes",
            "penstock_ledger.in_redis.batches": (
                "AskedAgain Begin BeginReply Begun Depth Drained Drains FED_UP_TO JobSeen Keep "
                "Lately MayCost Memory Publish PublishReport SettleBatch SettleReport "
                "SettledCrash SettledDead SettledDone SettledRetry WorkerSeen"
            ),
            "penstock_ledger.in_redis.budget_book": (
                "Account BOUNDLESS BudgetBook TenantAccount TenantSeen"
            ),
            "penstock_ledger.in_redis.door_limits": "Admission Admitted DoorLimits",
            "penstock_ledger.in_redis.queue_book": "QueueBook",
            "penstock_ledger.in_redis.redis_address": (
                "REDIS_CONNECT_TIMEOUT_S REDIS_TIMEOUT_S RedisAddress is_cluster without_secrets"
            ),
            "penstock_ledger.in_redis.redis_ledger": "RedisLedger",
            "penstock_ledger.in_redis.seen": (
                "COUNTED Cause CauseBook QuotaSeen YieldsSeen counted quotas_seen yields_of"
            ),
            "penstock_ledger.keys": "RETRIED bucket_count buckets_for",
            "penstock_ledger.model": (
                "Counts DeadLetter Feed FeedKind ItemKey Job JobState LaneCounts NewJob Paid "
                "PaidBeside RULE Result Saving"
            ),
            "penstock_ledger.provider_batch": (
                "BatchFailure BatchState BatchSum BatchTrouble BatchesOpen CANCEL_WAIT_S "
                "EqualRequests KeptDocument Missing NewProviderBatch ProviderBatch Remainder "
                "Waiting kept_documents"
            ),
            "penstock_ledger.schedules.model": (
                "CatchUp Decision DriftRule Firing FiringOutcome NewSchedule OnDrift Schedule"
            ),
            "penstock_ledger.sql.database": "Database open_database",
            "penstock_ledger.sql.postgres": "POOL_SIZE Waits",
            "penstock_ledger.sql.tables": "HEAD",
            "penstock_ledger.store_errors": "Trouble in_words trouble_of",
            "penstock_ledger.stored_values": "FIGURE_MAX storable",
            "penstock_ledger.stores.batch_figures": "BatchFigures",
            "penstock_ledger.stores.batch_journal": "ProviderBatchStore",
            "penstock_ledger.stores.batch_remainders": (
                "EqualRequestStore RemainderStore SentRequest"
            ),
            "penstock_ledger.stores.commit_order": "CommitOrder Place",
            "penstock_ledger.stores.jobs": "JobStore",
            "penstock_ledger.stores.lane_moves": "BY_HAND LaneMove LaneMoves MOVE_REASONS",
            "penstock_ledger.stores.live": "LiveFeed LiveJob LiveJobs",
            "penstock_ledger.stores.meta": "Meta StepTaken StepsTaken",
            "penstock_ledger.schedules.noticed": "Noted NoticedFile NoticedStore",
            "penstock_ledger.stores.outcomes": "OutcomeStore PromptSizes",
            "penstock_ledger.stores.provenance": (
                "InUse MadeWith Provenance RENOTED_S made_by purge_job"
            ),
            "penstock_ledger.schedules.runs": "Run RunFigures RunStore Spread",
            "penstock_ledger.schedules.store": "ScheduleStore",
            "penstock_ledger.stores.source_keys": "SourceKeys",
            "penstock_ledger.stores.spool": "Spool SpoolRow",
            "penstock_ledger.vectors": "Vectors",
        },
    )
