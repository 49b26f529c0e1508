"""The SQL tables, as queries see them. The migrations create them; a test holds both equal.

Times are Unix seconds (UTC) as doubles. JSON travels as text: it is never searched. Ids compare
byte by byte in both databases, so that sort orders agree with Python's.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    text,
)

from penstock_ledger.stored_values import Words

HEAD: Final = "0023"  # the newest migration; revisions sort by their number

metadata = MetaData()

Id = Words().with_variant(Words(collation="C"), "postgresql")
# SQLite numbers only INTEGER keys by itself
Serial = BigInteger().with_variant(Integer(), "sqlite")

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", Id, primary_key=True),
    Column("job_key", Id, nullable=False),
    Column("spec", Words, nullable=False),
    Column("source", Words, nullable=False),
    Column("digest", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("reason", Words),
    Column("generation", Integer, nullable=False),
    Column("total", BigInteger),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("resume_at", Double),  # of a paused job that goes on by itself
    Column("lane", Words),  # where its documents go now; NULL: as its spec says
    # how often that was decided: rows of lane_moves
    Column("moves", Integer, nullable=False, server_default=text("0")),
    Column("tenant", Id),  # as its spec says: what the HTTP doors search by
    # JSON: why it is paused or was stopped, see reasons.py; NULL: the reason is all there is
    Column("pause", Words),
    # JSON: what a person has accepted of a job that a stop-loss had paused
    Column("stop_accepted", Words),
    Column("tier", Words),  # that control has chosen for it; NULL: as its spec says
    UniqueConstraint("job_key", name="jobs_job_key"),
    Index("jobs_created", "created_at", "job_id"),
    Index("jobs_state", "state", "created_at", "job_id"),
    Index("jobs_tenant", "tenant", "created_at", "job_id"),
)

feeds = Table(
    "feeds",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("kind", Words, nullable=False),
    Column("cursor", Words, nullable=False),
    Column("exhausted", Boolean, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("owner", Words),  # written by the leader; read by the others
    Column("lease_until", Double),  # on the database server's clock
    Column("selection", Words, nullable=False),
    Column("overrides", Words, nullable=False),
    PrimaryKeyConstraint("job_id", "generation", name="feeds_pkey"),
)

# Parts of a source that several processes read at once. The feed's own row then has a leader, too,
# who reads nothing of it.
shards = Table(
    "shards",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("shard", Integer, nullable=False),  # from 1 on
    Column("starts_at", Words, nullable=False),  # a cursor, and so are the next two
    Column("ends_at", Words),  # NULL: at the end of the source
    Column("cursor", Words, nullable=False),
    Column("exhausted", Boolean, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("owner", Words),
    Column("lease_until", Double),  # on the database server's clock
    PrimaryKeyConstraint("job_id", "generation", "shard", name="shards_pkey"),
)

# One row per item that has ended: the primary key is what makes "one terminal state" true. In
# PostgreSQL there is a column `seq` more, which the database fills, with an index: see
# stores/commit_order.py, which alone reads it.
outcomes = Table(
    "outcomes",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("doc_id", Id, nullable=False),
    Column("kind", Words, nullable=False),  # 'result' or 'dead'
    # the generation that replays this dead letter; NULL = visible
    Column("superseded_by", Integer),
    Column("reason", Words),  # of a result: `dedup` or `cache` where no call was made for it
    Column("attempts", Integer, nullable=False),
    Column("calls", Integer, nullable=False),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("cost_microusd", BigInteger, nullable=False),
    Column("latency_ms", BigInteger, nullable=False),
    Column("status_code", Integer),
    Column("request_id", Words),
    Column("model", Words),
    Column("finish_reason", Words),
    Column("last_error", Words),
    Column("line", BigInteger),
    Column("created_at", Double, nullable=False),
    Column("request", LargeBinary),  # dead letters only
    Column("body", LargeBinary),  # a result's response, or the excerpt that a dead letter keeps
    # that answered; NULL: nothing was asked, or a release wrote it that did not say
    Column("lane", Words),
    Column("endpoint", Words),  # the path of its request; NULL: the job's
    # of its answers those of which no price is known; NULL: a release wrote it that did not say
    Column("unpriced", Integer),
    PrimaryKeyConstraint("job_id", "generation", "doc_id", name="outcomes_pkey"),
    Index(
        "outcomes_dead",
        "job_id",
        "generation",
        "doc_id",
        sqlite_where=text("kind = 'dead'"),
        postgresql_where=text("kind = 'dead'"),
    ),
    Index(
        "outcomes_superseded",
        "job_id",
        "superseded_by",
        "doc_id",
        sqlite_where=text("superseded_by IS NOT NULL"),
        postgresql_where=text("superseded_by IS NOT NULL"),
    ),
)

# Sums over visible outcomes, written in the same transaction as they are. See tallies.py.
tallies = Table(
    "tallies",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("shard", Integer, nullable=False),
    Column("kind", Words, nullable=False),
    Column("reason", Words, nullable=False),  # of results as in `outcomes`, "" for none
    Column("number", BigInteger, nullable=False),
    Column("after_retry", BigInteger, nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cost_microusd", BigInteger, nullable=False),
    # answers of which no price is known
    Column("unpriced", BigInteger, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("job_id", "shard", "kind", "reason", name="tallies_pkey"),
)

# The same by the lane that answered, since a job may change its lane while it runs. What has no
# lane is not in here.
lane_tallies = Table(
    "lane_tallies",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("shard", Integer, nullable=False),
    Column("lane", Id, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("dead", BigInteger, nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cost_microusd", BigInteger, nullable=False),
    # answers of which no price is known
    Column("unpriced", BigInteger, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("job_id", "shard", "lane", name="lane_tallies_pkey"),
)

spool = Table(
    "spool",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    Column("job_id", Id, nullable=False),
    Column("doc_id", Id, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("fed", Boolean, nullable=False),
    UniqueConstraint("job_id", "doc_id", name="spool_doc"),
    Index(
        "spool_unfed",
        "job_id",
        "seq",
        sqlite_where=text("fed = 0"),
        postgresql_where=text("NOT fed"),
    ),
)

# Which rows of a table in a database a job has: their keys as they were at submit, in pages. See
# stores/source_keys.py.
source_keys = Table(
    "source_keys",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("page", Integer, nullable=False),
    Column("packed", LargeBinary, nullable=False),
    PrimaryKeyConstraint("job_id", "page", name="source_keys_pkey"),
)

# Nothing writes or reads it any more. Processes of the release before, which go on through an
# upgrade, do both, so the table is dropped one release later; until then purging a job empties it
# of what they wrote.
outbox = Table(
    "outbox",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("kind", Words, nullable=False),
    Column("job_id", Id, nullable=False),
    Column("payload", Words, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("sent_at", Double),
    Index(
        "outbox_pending",
        "id",
        sqlite_where=text("sent_at IS NULL"),
        postgresql_where=text("sent_at IS NULL"),
    ),
)

meta = Table(
    "meta",
    metadata,
    Column("name", Words, primary_key=True),
    Column("value", Words, nullable=False),
)

# Jobs that start themselves. The control process that starts a job holds the row by a lease, as
# with feeds.
schedules = Table(
    "schedules",
    metadata,
    Column("schedule_id", Id, primary_key=True),
    Column("name", Id, nullable=False),
    Column("cron", Words, nullable=False),
    Column("timezone", Words, nullable=False),
    Column("spec", Words, nullable=False),
    Column("source", Words, nullable=False),
    Column("catch_up", Words, nullable=False),
    Column("overlap", Boolean, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("next_at", Double, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("retry_at", Double),
    Column("waits_for", Words),
    Column("owner", Words),
    Column("lease_until", Double),  # on the database server's clock
    Column("drift", Words),  # JSON, see DriftRule; NULL: its runs are not compared
    UniqueConstraint("name", name="schedules_name"),
)

# One row per planned time that was decided. The job is not in a column `job_id`: what a purge
# deletes by that name.
firings = Table(
    "firings",
    metadata,
    Column("schedule_id", Id, nullable=False),
    Column("planned_at", Double, nullable=False),
    Column("outcome", Words, nullable=False),
    Column("started_job", Id),
    Column("reason", Words),
    Column("noted_at", Double, nullable=False),
    Column("drift", Words),  # JSON: how its run compares with the one before; NULL: not compared
    PrimaryKeyConstraint("schedule_id", "planned_at", name="firings_pkey"),
)

# Files of a watched folder that jobs of a schedule have: 16 bytes for the place and version of
# each.
taken_files = Table(
    "taken_files",
    metadata,
    Column("schedule_id", Id, nullable=False),
    Column("file", LargeBinary, nullable=False),
    PrimaryKeyConstraint("schedule_id", "file", name="taken_files_pkey"),
)

# One batch at a provider, of the `batch` lane: its journal. Rows with a cursor were packed from the
# source between two cursors of it, of one model; those without were packed from batch_remainders.
provider_batches = Table(
    "provider_batches",
    metadata,
    Column("tag", Id, primary_key=True),  # our own name of it, which goes to the provider with it
    Column("job_id", Id, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("provider", Words, nullable=False),
    Column("kind", Words, nullable=False),
    Column("model", Words),
    Column("endpoint", Words, nullable=False),
    Column("state", Words, nullable=False),  # packed, uploaded, created, ended, collected, settled
    Column("cursor_before", Words),
    Column("cursor_behind", Words),
    Column("requests", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),  # bytes of the packed file
    Column("tokens", BigInteger, nullable=False),  # of its prompts, as estimated
    # all of it, as estimated; 0 where no price is known
    Column("may_cost_microusd", BigInteger, nullable=False),
    Column("file_id", Words),
    Column("remote_id", Words),  # the provider's own name of it
    Column("status", Words),  # in the provider's words
    Column("succeeded", BigInteger),  # NULL: the provider does not tell
    Column("failed", BigInteger),
    Column("why", Words),  # what it waits for, or why it gave no answers
    Column("packed_at", Double, nullable=False),
    Column("uploading_at", Double),  # written before the call, as creating_at is
    Column("uploaded_at", Double),
    Column("creating_at", Double),
    Column("created_at", Double),
    Column("ended_at", Double),
    Column("collected_at", Double),
    Column("settled_at", Double),
    Column("fence", BigInteger, nullable=False),
    Column("owner", Words),
    Column("lease_until", Double),  # on the database server's clock
    # when all its documents went on to another lane, whatever the provider still answers
    Column("handed_at", Double),
    Column("trouble", Words),  # why its step does not get on, as JSON (BatchTrouble); NULL: it does
    # since when the provider does not show it or its answers, as JSON (Missing)
    Column("missing", Words),
    # good ones of its outputs, the most that a reading has brought
    Column("answers_read", BigInteger),
    Column("unread", BigInteger),  # answers that were paid for and could not be read
    Column("unread_microusd", BigInteger),  # their estimated cost; NULL: no price is known
    # why it gave no answers, as JSON (BatchFailure); NULL: it waits, or ``why`` is all there is
    Column("failure", Words),
    # of the job's `degrade`, by which its documents are asked; 0 before the first
    Column("step", Integer, nullable=False, server_default=text("0")),
    Index("provider_batches_state", "state"),
    Index("provider_batches_job", "job_id", "packed_at"),
)

# Documents that a provider batch has left without an outcome: they go into a later one. `tag` names
# the batch that has them now, NULL where they wait. A row goes in the transaction that writes the
# document's outcome.
batch_remainders = Table(
    "batch_remainders",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("doc_id", Id, nullable=False),
    Column("position", Words, nullable=False),  # where the source has it
    Column("tag", Id),
    Column("attempts", Integer, nullable=False),  # that counted
    Column("calls", Integer, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cost_microusd", BigInteger, nullable=False),
    Column("reason", Words, nullable=False),
    Column("since", Double, nullable=False),
    Column("most", Integer),  # documents in its next batch; NULL: as many as in any other
    # answers of which no price is known
    Column("unpriced", BigInteger, nullable=False, server_default=text("0")),
    # the document whose answer it waits for, as their requests are equal; NULL: it is packed
    Column("same_as", Id),
    # answers that went on to the better model of the job's `escalate`: 1 from then on
    Column("escalations", Integer, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("job_id", "generation", "doc_id", name="batch_remainders_pkey"),
    Index("batch_remainders_tag", "tag"),
)

# Requests that provider batches of a job have had, of jobs whose equal requests are sent once: the
# document whose answer serves the others. See stores/batch_remainders.py.
batch_requests = Table(
    "batch_requests",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("digest", Id, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("doc_id", Id, nullable=False),
    PrimaryKeyConstraint("job_id", "digest", name="batch_requests_pkey"),
)

# Which documents a provider batch has, until it is settled, so that its answers find them where its
# files and its source are gone: one compressed text, see the worker's packing. A table of its own,
# since batches are read every second.
provider_batch_ids = Table(
    "provider_batch_ids",
    metadata,
    Column("tag", Id, primary_key=True),
    Column("job_id", Id, nullable=False),
    Column("ids", LargeBinary, nullable=False),
    Index("provider_batch_ids_job", "job_id"),
)

# Files that notifications have named, until a job takes them: 16 bytes of a hash of the name, which
# may be long.
noticed_files = Table(
    "noticed_files",
    metadata,
    Column("schedule_id", Id, nullable=False),
    Column("file", LargeBinary, nullable=False),
    Column("name", Words, nullable=False),
    Column("noticed_at", Double, nullable=False),
    PrimaryKeyConstraint("schedule_id", "file", name="noticed_files_pkey"),
)

# Each choice and change of a job's lane, with its reason.
lane_moves = Table(
    "lane_moves",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("number", Integer, nullable=False),  # from 1 on
    Column("at", Double, nullable=False),
    Column("before", Words),  # NULL: the first choice
    Column("lane", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Column("why", Words, nullable=False),
    Column("figures", Words, nullable=False),
    # when the lane before held nothing more that has to go on; NULL: it may
    Column("left_at", Double),
    PrimaryKeyConstraint("job_id", "number", name="lane_moves_pkey"),
)

# What was paid for documents besides what their outcomes say.
paid_beside = Table(
    "paid_beside",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("doc_id", Id, nullable=False),
    Column("answer", Id, nullable=False),  # names it: the same one that comes again is counted once
    Column("why", Words, nullable=False),  # of account.py: 'second_answer', say
    Column("calls", Integer, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cost_microusd", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
    # answers of which no price is known
    Column("unpriced", BigInteger, nullable=False, server_default=text("0")),
    # of these answers, those that went on to the better model of the job's `escalate`
    Column("escalations", Integer, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("job_id", "generation", "doc_id", "answer", name="paid_beside_pkey"),
)

# What a job has spent that its visible outcomes do not say. Together with them, `paid_beside` and
# `batch_remainders` it is the job's account, which only grows and stays when the job is purged. See
# stores/account.py.
spending = Table(
    "spending",
    metadata,
    Column("job_id", Id, nullable=False),
    # for which it was spent; of dead letters that were replayed: the one that did
    Column("generation", Integer, nullable=False),
    # how it came here: 'superseded', 'unread', 'forgotten', 'purged'
    Column("kind", Id, nullable=False),
    Column("lane", Id, nullable=False),  # that was paid; "" where it is not known
    Column("shard", Integer, nullable=False),
    Column("tenant", Id),  # of the job, which may be gone, as when it was accepted
    Column("accepted_at", Double, nullable=False),
    Column("documents", BigInteger, nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cost_microusd", BigInteger, nullable=False),
    Column("unpriced", BigInteger, nullable=False),
    PrimaryKeyConstraint("job_id", "generation", "kind", "lane", "shard", name="spending_pkey"),
    Index("spending_accepted", "tenant", "accepted_at"),
)

# What answers of a job cost less than they would have without a cause (below 0: more), as a service
# tier or the provider's prompt cache. It only grows, and stays when the job is purged. See
# stores/account.py.
savings = Table(
    "savings",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("cause", Id, nullable=False),
    Column("lane", Id, nullable=False),  # that was paid; "" where it is not known
    Column("shard", Integer, nullable=False),
    Column("answers", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),  # of them that the cause is about
    Column("saved_microusd", BigInteger, nullable=False),  # of those whose prices are known
    Column("unpriced", BigInteger, nullable=False),  # answers of which a price is not known
    PrimaryKeyConstraint("job_id", "cause", "lane", "shard", name="savings_pkey"),
)

# What jobs of tenants have cost that releases before have purged: their jobs are not known any
# more.
purged_costs = Table(
    "purged_costs",
    metadata,
    Column("tenant", Id, nullable=False),
    Column("month", Id, nullable=False),  # in which the jobs were accepted, as 2026-11 (UTC)
    Column("cost_microusd", BigInteger, nullable=False),
    PrimaryKeyConstraint("tenant", "month", name="purged_costs_pkey"),
)

# Who may come through the HTTP doors. Of a key only the SHA-256 is here: it is shown once, when it
# is made.
api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", Id, primary_key=True),
    Column("tenant", Id),  # NULL: of the operator, who has no tenant
    Column("name", Words, nullable=False),
    Column("made_by", Id),  # the key that has made it; NULL: the command line
    Column("counted_as", Id),  # the key whose requests count with those of this one; NULL: itself
    Column("digest", LargeBinary, nullable=False),
    Column("scopes", Words, nullable=False),  # names with commas between
    Column("limits", Words, nullable=False),  # JSON: requests_per_minute, concurrency, budget_usd
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    Column("last_used_at", Double),  # written once a minute at most
    UniqueConstraint("digest", name="api_keys_digest"),
)

# Files of the HTTP doors: what was uploaded, and what batches have written. The bytes lie at
# `place`, below gateway.files.
door_files = Table(
    "door_files",
    metadata,
    Column("file_id", Id, primary_key=True),
    Column("tenant", Id),
    Column("filename", Words, nullable=False),
    Column("purpose", Words, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", Words, nullable=False),
    Column("place", Words, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("deleted_at", Double),
    Column("job_id", Id),  # whose answers it holds; NULL: it was uploaded
    Column("lines", BigInteger),
    Index("door_files_created", "tenant", "created_at", "file_id"),
    Index("door_files_expires", "expires_at"),
    Index("door_files_deleted", "deleted_at"),
    Index("door_files_job", "job_id"),
)

# Batches as clients of OpenAI's and Anthropic's batch APIs see them; each is a job.
door_batches = Table(
    "door_batches",
    metadata,
    Column("batch_id", Id, primary_key=True),
    Column("kind", Words, nullable=False),  # 'openai' or 'anthropic'
    Column("tenant", Id),
    Column("job_id", Id),  # NULL: not accepted yet, or never
    Column("endpoint", Words, nullable=False),
    Column("input_file_id", Id),
    Column("window_s", Double, nullable=False),
    Column("output_expires_s", Double),  # after which the files that it writes expire
    Column("metadata", Words),  # JSON
    Column("state", Words, nullable=False),
    Column("errors", Words),  # JSON
    Column("counts", Words),  # JSON: those shown last, which never go back
    Column("usage", Words),  # JSON
    Column("model", Words),
    Column("output_file_id", Id),
    Column("error_file_id", Id),
    Column("created_at", Double, nullable=False),
    Column("in_progress_at", Double),
    Column("finalizing_at", Double),
    Column("completed_at", Double),
    Column("failed_at", Double),
    Column("expired_at", Double),
    Column("cancelling_at", Double),
    Column("cancelled_at", Double),
    Column("expires_at", Double),
    Column("fence", BigInteger, nullable=False, server_default=text("0")),
    Column("owner", Words),
    Column("lease_until", Double),  # on the database server's clock
    Index("door_batches_created", "tenant", "kind", "created_at", "batch_id"),
    Index("door_batches_state", "state"),
)

# Calls of the synchronous doors that came with an Idempotency-Key. The answer itself is the outcome
# of the document.
door_calls = Table(
    "door_calls",
    metadata,
    Column("tenant", Id, nullable=False),  # "" for callers without one
    Column("idem_key", Id, nullable=False),
    Column("request_digest", Words, nullable=False),
    Column("job_id", Id),
    Column("doc_id", Id),
    Column("state", Words, nullable=False),
    Column("status_code", Integer),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    PrimaryKeyConstraint("tenant", "idem_key", name="door_calls_pkey"),
    Index("door_calls_expires", "expires_at"),
)

# Where tenants want to hear of what happened, and what is on its way there.
webhook_endpoints = Table(
    "webhook_endpoints",
    metadata,
    Column("endpoint_id", Id, primary_key=True),
    Column("tenant", Id),
    Column("url", Words, nullable=False),
    # what deliveries are signed with, so it cannot be a digest
    Column("secret", Words, nullable=False),
    # those before it, with spaces between, which sign as well until old_until
    Column("old_secret", Words),
    Column("old_until", Double),
    Column("events", Words, nullable=False),  # names with commas between
    Column("created_at", Double, nullable=False),
    Column("failing_since", Double),  # NULL: the last try arrived, or none was made
    Column("disabled_at", Double),
    Column("why", Words),
    Index("webhook_endpoints_created", "tenant", "created_at", "endpoint_id"),
)
webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("event_id", Id, nullable=False),
    Column("endpoint_id", Id, nullable=False),
    Column("type", Words, nullable=False),
    Column("payload", Words, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("next_at", Double),  # NULL: nothing more is tried
    Column("delivered_at", Double),
    Column("gave_up_at", Double),
    Column("last_error", Words),
    Column("owner", Words),
    Column("lease_until", Double),  # on the database server's clock
    PrimaryKeyConstraint("event_id", "endpoint_id", name="webhook_deliveries_pkey"),
    Index("webhook_deliveries_next", "next_at"),
    Index("webhook_deliveries_endpoint", "endpoint_id", "created_at"),
)
