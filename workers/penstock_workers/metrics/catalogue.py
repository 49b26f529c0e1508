"""Everything that is counted, by name.

docs/metrics.md is made from this; dashboards and alert rules may only name what is here.

Sources: `worker` is a process that runs items, `control` one that runs a control loop (a worker
does both, unless the fleet has control pools). Every control loop reports the same figures of the
fleet: take the ``max``, not the sum.
"""

from __future__ import annotations

from penstock_workers.metrics.samples import Metric

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
STORE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0)
PROMPT_SIZES = (64.0, 256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0)
GROUP_ITEMS = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0)


def _worker(name: str, help: str, *labels: str, unit: str = "") -> Metric:
    kind = "counter" if name.endswith("_total") else "gauge"
    return Metric(name, kind, help, labels, unit, "worker")  # type: ignore[arg-type]


def _control(name: str, help: str, *labels: str, unit: str = "") -> Metric:
    kind = "counter" if name.endswith("_total") else "gauge"
    return Metric(name, kind, help, labels, unit, "control")  # type: ignore[arg-type]


# -- items, as one worker settled them -------------------------------------------------------------
ITEMS = _worker("penstock_items_total", "Items settled, by what became of them.", "lane", "outcome")
DEAD = _worker("penstock_dead_total", "Items that failed for good, by reason.", "lane", "reason")
REUSED = _worker(
    "penstock_reused_total",
    "Items that took the answer to an equal request: `dedup` of their own job, `cache` of an "
    "earlier one.",
    "lane",
    "reason",
)
RETRIES = _worker(
    "penstock_retries_total",
    "Attempts that are followed by another; `counted` ones use up `max_attempts`.",
    "lane",
    "cause",
)
FAILED_TRIES = _worker(
    "penstock_failed_tries_total",
    "Attempts without an answer that were followed by another, or given back as their engine died, "
    "by reason.",
    "lane",
    "reason",
)
ASKED_AGAIN = _worker(
    "penstock_asked_again_total",
    "Requests beyond the first of an attempt: `repair` shows a model what the job's schema has "
    "against its answer, `fallback` goes to the next model, `escalation` to a better one.",
    "lane",
    "cause",
)
RATE_LIMITED = _worker(
    "penstock_rate_limited_total",
    "Answers with status 429 (too many requests).",
    "lane",
    "provider",
)
CALLS = _worker("penstock_calls_total", "Requests sent, failed ones included.", "lane", "provider")
TOKENS = _worker(
    "penstock_tokens_total",
    "Tokens of finished items.",
    "lane",
    "provider",
    "direction",
    unit="tokens",
)
COST = _worker(
    "penstock_cost_usd_total",
    "Cost of finished items, as far as prices are known; absent where none is.",
    "lane",
    "provider",
    unit="USD",
)
SAVINGS = _worker(
    "penstock_savings_usd_total",
    "What calls of finished items cost less (effect saved) or more (effect lost) by a service tier "
    "or the provider's prompt cache, as far as prices are known.",
    "lane",
    "provider",
    "cause",
    "effect",
    unit="USD",
)
CALL_SECONDS = Metric(
    "penstock_call_seconds",
    "histogram",
    "Time from sending a request to its complete answer, of finished items.",
    ("lane",),
    "seconds",
    bounds=SECONDS,
)
PROMPT_TOKENS = Metric(
    "penstock_prompt_tokens",
    "histogram",
    "Tokens of the prompt of finished items, for each call.",
    ("lane",),
    "tokens",
    bounds=PROMPT_SIZES,
)

# -- the worker ------------------------------------------------------------------------------------
INFO = _worker("penstock_worker_info", "1; which release runs which lane.", "lane", "version")
SLOTS = _worker("penstock_slots", "Items that may be in flight at once.", "lane")
SLOTS_TAKEN = _worker("penstock_slots_in_use", "Items in flight.", "lane")
HELD = _worker(
    "penstock_items_held", "Messages that the worker has claimed and not settled.", "lane"
)
ADMITTING = _worker(
    "penstock_items_admitting",
    "Items in a slot that wait for quota, or for room in the engine.",
    "lane",
)
BOUND = _worker(
    "penstock_bound",
    "1 for what limits the worker now: `queue` (too few items reach it), `quota`, `slots` (more "
    "could be in flight), `engine`, `memory` (its KV cache), `interactive` (others at the server "
    "go first) or `starting`.",
    "lane",
    "by",
)
COMMIT_ITEMS = Metric(
    "penstock_commit_items",
    "histogram",
    "Items settled together.",
    ("lane",),
    "items",
    bounds=GROUP_ITEMS,
)
STORE = Metric(
    "penstock_store_seconds",
    "histogram",
    "Time to settle a group in a store, waiting for one that is away included.",
    ("lane", "store"),
    "seconds",
    bounds=STORE_SECONDS,
)
UNSETTLED_OLDEST = _worker(
    "penstock_unsettled_oldest_seconds",
    "Age of the oldest start or outcome that waits to be stored. Beyond 900, a worker whose stores "
    "answer fails its liveness probe.",
    "lane",
    unit="seconds",
)

# -- spot notices, where `spot_notices` names a cloud ----------------------------------------------
SPOT_ANSWERS = _worker(
    "penstock_spot_service_answers",
    "1 while the metadata service of the cloud answers as documented, 0 while it does not and no "
    "notice could be seen.",
    "lane",
    "cloud",
)
SPOT_LEFT = _worker(
    "penstock_spot_notice_seconds",
    "Seconds until the machine of this worker ends, by the notice that it has seen; the worker "
    "drains.",
    "lane",
    "cloud",
    "event",
    unit="seconds",
)

# -- traces ----------------------------------------------------------------------------------------
SPANS = _worker(
    "penstock_trace_spans_total",
    "Spans of traced items: `delivered` to the collector, `failed` on the way, or `dropped` "
    "because too many waited.",
    "lane",
    "result",
)

# -- leases ----------------------------------------------------------------------------------------
LEASES_LOST = _worker(
    "penstock_leases_lost_total",
    "Messages whose lease ended while this worker held them; others may hold them now.",
    "lane",
)
LEASES_RESTORED = _worker(
    "penstock_leases_restored_total",
    "Messages of dead workers, returned to the queue by this one.",
    "lane",
)
DUPLICATES = _worker(
    "penstock_duplicates_dropped_total", "Copies of held messages, dropped at the claim.", "lane"
)

# -- engines in the worker -------------------------------------------------------------------------
LOAD_READ = _worker(
    "penstock_engine_load_bytes", "Bytes of its model read, while it loads.", "lane", unit="bytes"
)
LOAD_TOTAL = _worker(
    "penstock_engine_load_total_bytes",
    "Bytes of weights to read; 0: unknown.",
    "lane",
    unit="bytes",
)
ENGINE_DEATHS = _worker(
    "penstock_engine_deaths_total",
    "Engines that died, hung or lost their device, and servers beside workers that went away.",
    "lane",
)
ENGINE_RUNNING = _worker("penstock_engine_running", "Requests that the engine computes.", "lane")
ENGINE_WAITING = _worker(
    "penstock_engine_waiting", "Requests that wait in the engine's queue.", "lane"
)
KV_USAGE = _worker(
    "penstock_engine_kv_cache_ratio", "Share of the KV cache in use.", "lane", unit="ratio"
)
PREFIX_HITS = _worker(
    "penstock_engine_prefix_hit_ratio",
    "Share of prompt tokens found in the cache.",
    "lane",
    unit="ratio",
)
PREEMPTIONS = _worker(
    "penstock_engine_preemptions_total", "Requests put back because the KV cache was full.", "lane"
)
QUEUE_WAIT = _worker(
    "penstock_engine_wait_seconds",
    "Recent mean time in the engine's queue.",
    "lane",
    unit="seconds",
)
PROMPT_RATE = _worker(
    "penstock_engine_prompt_tokens_per_second", "Recent rate of prompt tokens computed.", "lane"
)
GENERATION_RATE = _worker(
    "penstock_engine_generation_tokens_per_second", "Recent rate of tokens generated.", "lane"
)
ENGINE_BUSY = _worker(
    "penstock_engine_busy_seconds_total",
    "Time in which the worker computed at least one item.",
    "lane",
    unit="seconds",
)
ENGINE_COST = _worker(
    "penstock_engine_cost_usd_total",
    "What items cost by the price of the worker's hour and the time that they computed.",
    "lane",
    unit="USD",
)
EMBED_RATE = _worker("penstock_embed_tokens_per_second", "Recent rate of tokens embedded.", "lane")
EMBED_BATCH = _worker("penstock_embed_batch_items", "Recent mean of texts per batch.", "lane")
EMBED_PADDING = _worker(
    "penstock_embed_padding_efficiency_ratio",
    "Share of a batch's tokens that are not padding.",
    "lane",
    unit="ratio",
)
EMBED_BUDGET = _worker(
    "penstock_embed_token_budget", "Padded tokens that a batch may hold.", "lane", unit="tokens"
)

# -- the fleet, as a control loop sees it ----------------------------------------------------------
LOOKED = _control(
    "penstock_looked_timestamp_seconds",
    "When a control loop last read the fleet's figures.",
    unit="seconds",
)
QUEUED = _control(
    "penstock_queue_depth",
    "Messages that wait in the lane's queues, of all models together.",
    "lane",
)
UNACKED = _control(
    "penstock_unacked", "Messages that workers of the lane hold, or that are in RabbitMQ.", "lane"
)
RELAYED = _control(
    "penstock_relayed",
    "The part of `penstock_unacked` that is in RabbitMQ and taken by no worker yet.",
    "lane",
)
DELAYED = _control("penstock_delayed", "Retries that wait for their time.", "lane")
PARKED = _control("penstock_parked", "Messages of paused jobs, outside the queue.", "lane")
UNREADABLE = _control(
    "penstock_parked_unknown", "Messages set aside because no worker could read them."
)
OLDEST = _control(
    "penstock_oldest_item_age_seconds",
    "Time since the next message of the queue was fed; 0 for an empty queue.",
    "lane",
    unit="seconds",
)
WORKERS = _control("penstock_workers", "Workers that sent a heartbeat within 15 s.", "lane")
MODEL_QUEUED = _control(
    "penstock_model_queue_depth",
    "Messages that wait in the queue of one model, by any of its names.",
    "lane",
    "queue",
)
MODEL_UNACKED = _control(
    "penstock_model_unacked",
    "Messages that workers of the model hold, or that are in RabbitMQ.",
    "lane",
    "queue",
)
MODEL_WORKERS = _control(
    "penstock_model_workers",
    "Workers whose heartbeats say that they take items from this queue.",
    "lane",
    "queue",
)
UNSERVED = _control(
    "penstock_unserved_items",
    "Messages of models that no worker of the lane serves, retries included.",
    "lane",
)
JOBS = _control("penstock_jobs", "Live jobs by state.", "state")
OUTSTANDING = _control("penstock_window_items", "Documents fed and not finished.", "lane")
WINDOW = _control(
    "penstock_window_target_items", "Documents that may be outstanding at once.", "lane"
)
DRAINED = _control(
    "penstock_drained_items_total",
    "Items held when a worker got SIGTERM: finished in time, or requeued.",
    "lane",
    "result",
)
DRAINS = _control(
    "penstock_drains_total", "Workers that ended by a drain, by how it went.", "lane", "result"
)
REDIS_USED = _control("penstock_redis_memory_bytes", "Memory that Redis uses.", unit="bytes")
REDIS_LIMIT = _control(
    "penstock_redis_memory_limit_bytes", "Redis's maxmemory; 0 = none.", unit="bytes"
)

# -- providers' quotas, which the fleet shares -----------------------------------------------------
QUOTA_LIMIT = _control(
    "penstock_quota_limit_per_second", "What the provider allows.", "quota", "dimension"
)
QUOTA_USE = _control(
    "penstock_quota_use_ratio",
    "Charged per second since the last reading, as a share of the limit.",
    "quota",
    "dimension",
    unit="ratio",
)
QUOTA_WAITING = _control(
    "penstock_quota_waiting", "Items that wait for a ticket, in all processes.", "quota"
)
QUOTA_IN_FLIGHT = _control(
    "penstock_quota_in_flight", "Requests in flight, in all processes.", "quota"
)
QUOTA_GRANTED = _control("penstock_quota_granted_total", "Tickets given out.", "quota")
QUOTA_THROTTLED = _control(
    "penstock_quota_throttled_total", "Answers with status 429, in all processes.", "quota"
)
QUOTA_FAILURES = _control(
    "penstock_quota_failures_total", "Failures of the provider: 5xx, overload, timeouts.", "quota"
)
QUOTA_OPEN = _control(
    "penstock_quota_breaker_open",
    "1 while the breaker is open because the provider fails.",
    "quota",
)
QUOTA_HELD = _control(
    "penstock_quota_held", "1 while the quota is held: no credit, or a refused key.", "quota"
)
QUOTA_CEILING = _control(
    "penstock_quota_interactive_calls",
    "Requests that may be in flight beside interactive traffic at the same server.",
    "quota",
)
QUOTA_TTFT = _control(
    "penstock_quota_interactive_ttft_seconds",
    "The 95th percentile of the time to the first token there; no sample while it is unknown.",
    "quota",
    unit="seconds",
)
QUOTA_TARGET = _control(
    "penstock_quota_interactive_target_seconds",
    "What that is to stay under (interactive_ttft_s).",
    "quota",
    unit="seconds",
)

# -- batches at providers --------------------------------------------------------------------------
PROVIDER_BATCHES = _worker(
    "penstock_provider_batches",
    "Provider batches that this worker leads, by how far they are.",
    "lane",
    "provider",
    "state",
)

# -- one control loop's own work -------------------------------------------------------------------
FED = _control("penstock_fed_total", "Documents published from their source.", "lane")
RECONCILES = _control("penstock_reconciles_total", "Reconciliation rounds of feeds.", "lane")
REPUBLISHED = _control(
    "penstock_republished_total", "Documents whose messages were lost, published again.", "lane"
)
PROMOTED = _control("penstock_promoted_total", "Retries whose time had come.", "lane")
LEADS = _control("penstock_feeds_led", "Feeds that this process leads, and shards of feeds.")
REBUILDS = _control(
    "penstock_redis_rebuilds_total", "Times that Redis had lost its data and was rebuilt from SQL."
)
TICKS = _control(
    "penstock_control_ticks_total", "Rounds over all live jobs, by how they ended.", "result"
)
TICK_SECONDS = _control(
    "penstock_control_tick_seconds", "How long the last round took.", unit="seconds"
)
SCHEDULES = _control(
    "penstock_schedules",
    "Schedules: active, paused, or late: a time that came minutes ago has no job yet.",
    "state",
)
FIRINGS = _control(
    "penstock_schedule_firings_total",
    "Planned times of schedules that this process decided, by what came of them.",
    "outcome",
)
COMPARED = _control(
    "penstock_schedule_compared_total",
    "Runs of schedules that this process compared with the run before: moved, same, or skipped "
    "where one of them had too few documents or did not complete.",
    "result",
)

CATALOGUE: tuple[Metric, ...] = tuple(
    value for value in globals().values() if isinstance(value, Metric)
)
