"""The table of faults: `play.play` does each row to a fleet.

Those with ``quick`` are in `make test`, all in `penstock chaos`, and in `make test-long` those that
need no proxy and nothing of their own."""

from __future__ import annotations

from functools import partial

from penstock_cli.chaos import strikes
from penstock_cli.chaos.bucket import Failing
from penstock_cli.chaos.proxy import Way
from penstock_cli.chaos.stage import HOOKS, Fault

BOTH = ("api", "batch")
CALLING = ("api", "gpu", "embed")  # a call for each document
EVERY = (*CALLING, "batch")

ONE_DOCUMENT = frozenset(
    {"bad_request", "http_400", "forbidden", "not_found", "invalid_answer", "answer_too_large"}
)
REDIRECTS = frozenset({"redirected", "http_302", "http_307", "http_308", "redirect"})
CRASHED = frozenset({"worker_crashed"})
MANY_TRIES = (("max_attempts", 20), ("timeout_s", 3))
TEXTS = (
    "nul,surrogate,surrogate-bytes,log-injection,echo-key,long-message,nul-answer,surrogate-answer"
)
NONSENSE = "retry-after-negative,retry-after-past,retry-after-garbage,retry-after-endless"
SIZES = "large,large-chunked,gzip-bomb,gzip-twice,gzip-half,gzip-lie,deflate-lie"
WIRES = "hang,close,close-after-headers,length-long,length-twice,huge-header,no-http"
BODIES = (
    "error-200,empty,array,no-choices,nan,huge-number,deep,text-plain,usage-negative,usage-absurd,"
    "usage-text"
)
OWN_REDIS = frozenset({"own Redis"})
OWN_DISK = frozenset({"own disk"})
OWN_POSTGRES = frozenset({"own PostgreSQL"})


def _lines() -> list[Fault]:
    workers = partial(Fault, "workers")
    redis = partial(Fault, "redis")
    sql = partial(Fault, "sql")
    net = partial(Fault, "net", lanes=EVERY, needs=frozenset({"proxies"}))
    bucket = partial(Fault, "bucket", documents=1_000, needs=frozenset({"bucket"}))
    provider = partial(Fault, "provider")
    batch = partial(Fault, "batch", lanes=("batch",))
    return [
        workers("kill", "a worker is killed", strikes.kill, lanes=EVERY),
        workers("freeze", "a worker stands still", strikes.freeze, lanes=EVERY),
        workers("drain", "a worker gets SIGTERM", strikes.drain, lanes=EVERY),
        workers("spot", "a machine goes after a short notice", strikes.spot, lanes=EVERY),
        workers(
            "two-kills-of-all",
            "all workers are killed, twice in a row",
            strikes.two_kills_of_all,
            lanes=CALLING,
        ),
        workers(
            "wrong-clocks",
            "one worker's clock is an hour ahead, the other's an hour behind",
            strikes.wrong_clocks,
            lanes=EVERY,
        ),
        workers(
            "times-that-pass",
            "no process is there at two planned times of a schedule",
            strikes.times_that_pass,
            honest=False,  # of several jobs
        ),
        workers(
            "postprocess-ends-its-process",
            "a document kills its process after the call",
            strikes.hooks_at_work,
            lanes=CALLING,
            spec=(("postprocess", f"{HOOKS}:die_after"),),
            dead=CRASHED,
            most_dead=1,
        ),
        workers(
            "preprocess-ends-its-process",
            "a document kills its process before the call",
            strikes.hooks_at_work,
            lanes=CALLING,
            spec=(("preprocess", f"{HOOKS}:die_before"),),
            dead=CRASHED,
            most_dead=1,
        ),
        workers(
            "thawed-after-a-purge",
            "a worker stands still while a job is cancelled and purged",
            strikes.thawed_after_a_purge,
            honest=False,  # of two jobs
        ),
        redis("flushall", "Redis forgets all", strikes.flushall, lanes=EVERY),
        redis(
            "redis-restart",
            "Redis is killed and comes back with its file",
            strikes.redis_restart,
            lanes=EVERY,
            needs=OWN_REDIS,
        ),
        redis(
            "redis-wiped",
            "Redis is killed and comes back empty",
            strikes.redis_wiped,
            lanes=EVERY,
            needs=OWN_REDIS,
        ),
        redis(
            "stale-redis",
            "Redis comes back as it was 4 s ago",
            strikes.redis_stale,
            lanes=BOTH,
            needs=OWN_REDIS,
        ),
        redis("slow-redis", "Redis pauses twice for 6 s", strikes.slow_redis),
        redis(
            "stopped-redis", "Redis stands still for 12 s", strikes.stopped_redis, needs=OWN_REDIS
        ),
        redis(
            "read-only-redis", "Redis takes no writes for 10 s", strikes.read_only_redis, lanes=BOTH
        ),
        redis(
            "full-disk-of-redis",
            "Redis cannot save for 8 s",
            strikes.full_disk_of_redis,
            needs=OWN_REDIS,
        ),
        redis(
            "full-memory-of-redis",
            "Redis has no memory for 8 s",
            strikes.full_memory_of_redis,
            lanes=BOTH,
        ),
        redis(
            "clock-of-redis-steps-back",
            "the clock of Redis steps back an hour, and a worker is killed",
            strikes.clock_of_redis_steps_back,
        ),
        redis(
            "strays",
            "messages come that no producer sends",
            strikes.strays,
            documents=160,
            quick=True,
        ),
        sql("database-away", "the database takes nothing", strikes.database_away, lanes=BOTH),
        sql(
            "full-disk",
            "the disk of the ledger is full for 8 s",
            strikes.disk_full,
            lanes=BOTH,
            needs=OWN_DISK,
        ),
        sql(
            "read-only-disk",
            "the disk of the ledger takes no new files for 8 s, and a worker is killed",
            strikes.read_only_disk,
            lanes=BOTH,
            needs=OWN_DISK,
        ),
        sql(
            "postgres-killed",
            "PostgreSQL is killed and comes back",
            strikes.postgres_killed,
            lanes=BOTH,
            needs=OWN_POSTGRES,
        ),
        sql(
            "connection-of-postgres-killed",
            "a process of PostgreSQL is killed, and it ends all others, three times",
            strikes.connection_of_postgres_killed,
            lanes=BOTH,
            needs=OWN_POSTGRES,
        ),
        net(
            "partition-from-redis",
            "nothing passes to or from Redis for 8 s",
            strikes.behind("redis", Way.STALLED, 8),
        ),
        net(
            "lost-answers-of-redis",
            "Redis does what is asked and its answers are lost, three times",
            strikes.lost_answers("redis", 3),
        ),
        net(
            "partition-from-the-database",
            "nothing passes to or from the database for 8 s",
            strikes.behind("sql", Way.STALLED, 8),
            needs=frozenset({"proxies", "PostgreSQL"}),
        ),
        net(
            "committed-and-reply-lost",
            "the database commits and its answers are lost, three times",
            strikes.lost_answers("sql", 3),
            needs=frozenset({"proxies", "PostgreSQL"}),
        ),
        net(
            "partition-from-the-provider",
            "nothing passes to or from the provider for 8 s",
            strikes.behind("provider", Way.STALLED, 8, tries=3),  # of 3 s
            spec=MANY_TRIES,
        ),
        net(
            "provider-out-of-reach",
            "connections to the provider are refused for 8 s",
            strikes.behind("provider", Way.REFUSED, 8),
            spec=MANY_TRIES,
        ),
        net(
            "lost-answers-of-the-provider",
            "the provider answers and its answers are lost, three times",
            strikes.lost_answers("provider", 3),
            spec=MANY_TRIES,
        ),
        bucket(
            "bucket-refuses",
            "the bucket of source and results answers 503",
            strikes.bucket_made(Failing.BUSY, 30),
            from_bucket=True,
        ),
        bucket(
            "bucket-does-it-and-fails",
            "the bucket of the results does what is asked and answers 500",
            strikes.bucket_made(Failing.DONE, 30),
        ),
        provider(
            "texts",
            "errors and answers with odd characters for 3 s",
            strikes.answers(TEXTS, share=0.4, seconds=3),
            documents=160,
            spec=MANY_TRIES,
            dead=ONE_DOCUMENT,
            most_dead=160,
            quick=True,
            honest=False,  # its odd answers name other tokens than it counts
        ),
        provider(
            "account-error-with-a-nul",
            "the key is refused until a person resumes",
            strikes.account_error,
            documents=120,
            waits_for="unauthorized",
            quick=True,
        ),
        provider(
            "provider-restart",
            "the provider is gone for 4 s",
            strikes.provider_restart,
            lanes=CALLING,
            spec=MANY_TRIES,
            honest=False,  # it has forgotten what it billed
        ),
        provider(
            "one-page-of-403",
            "three in a hundred calls get a firewall's page",
            strikes.answers("html-403", share=0.03, seconds=4),
            spec=MANY_TRIES,
            dead=ONE_DOCUMENT,
            most_dead=20,
        ),
        provider(
            "403-for-all",
            "every call gets a firewall's page, until a person resumes",
            strikes.answers("html-403"),
            spec=MANY_TRIES,
            dead=ONE_DOCUMENT,
            most_dead=40,
            waits_for="403|forbidden|refused",
        ),
        provider(
            "pages",
            "four in ten calls get pages of HTML for 4 s",
            strikes.answers("html-200,html-502", share=0.4),
            spec=MANY_TRIES,
            dead=ONE_DOCUMENT,
            most_dead=40,
        ),
        provider(
            "retry-after-an-hour",
            "the provider wants an hour's rest, until a person resumes",
            strikes.answers("retry-after-hour", share=0.05, seconds=4),
            spec=MANY_TRIES,
            waits_for="rate_limited|wait",
        ),
        provider(
            "retry-after-nonsense",
            "429 with times that are none for 4 s",
            strikes.answers(NONSENSE, share=0.3),
            spec=MANY_TRIES,
        ),
        provider(
            "limits-of-one",
            "answers name one request per minute as the limit",
            strikes.answers("limit-requests", seconds=5),
            documents=400,
        ),
        provider(
            "limits-of-ten-tokens",
            "answers name ten tokens per minute as the limit",
            strikes.answers("limit-tokens", seconds=5),
            documents=400,
        ),
        provider(
            "limits-of-nonsense",
            "answers name limits that are none",
            strikes.answers("limit-nonsense", seconds=5),
        ),
        provider(
            "redirects",
            "every call is sent elsewhere, until a person resumes",
            strikes.answers("redirect-302,redirect-307,redirect-308,redirect-host", seconds=5),
            dead=ONE_DOCUMENT | REDIRECTS,
            most_dead=60,
            waits_for="redirect|30[278]|base-url|base_url",
            quick=True,
        ),
        provider(
            "not-found",
            "every call gets 404, until a person resumes",
            strikes.answers("not-found", seconds=10),
            documents=400,
            dead=ONE_DOCUMENT,
            most_dead=60,
            waits_for="404|not_found|base-url|base_url",
        ),
        provider(
            "sizes",
            "answers of 100 MB, bombs and wrong encodings for 4 s",
            strikes.answers(SIZES, share=0.2),
            spec=MANY_TRIES,
            dead=ONE_DOCUMENT,
            most_dead=240,
        ),
        provider(
            "wires",
            "calls hang, and connections break in every way for 4 s",
            strikes.answers(WIRES, share=0.3),
            spec=MANY_TRIES,
        ),
        provider(
            "drip",
            "answers come a byte at a time for 8 s",
            strikes.answers("drip", seconds=8),
            spec=MANY_TRIES,
            documents=120,
            honest=False,  # what our own deadline cut off may have been billed
        ),
        provider(
            "bodies",
            "bodies that are no answer for 4 s",
            strikes.answers(BODIES, share=0.4),
            spec=MANY_TRIES,
            dead=ONE_DOCUMENT | {"empty_answer"},
            most_dead=40,
            honest=False,  # it says nonsense of its tokens, too
        ),
        provider(
            "expired-certificate",
            "the provider's certificate has run out for 12 s",
            strikes.bad_certificate,
            honest=False,  # it has forgotten what it billed
        ),
        batch(
            "batches-not-found",
            "batches and their outputs answer 404 for 3 s each",
            strikes.batches(6, batch_look_404_s=3, batch_file_404_s=3),
        ),
        batch(
            "creates-that-work-and-answer-500",
            "nine in ten creates and uploads work and answer 500 for 6 s",
            strikes.batches(6, batch_create_500_share=0.9, batch_upload_500_share=0.9),
        ),
        batch(
            "batch-calls-fail",
            "half of the calls of the batch API get 500 for 6 s",
            strikes.batches(6, batch_call_500_share=0.5),
        ),
        batch(
            "cut-and-short-outputs",
            "outputs break off, and first downloads lack half of their lines, for 6 s",
            strikes.batches(6, batch_cut_share=0.7, batch_short_reads=2),
        ),
        batch(
            "batches-expire",
            "batches made within 6 s expire half-way",
            strikes.batches(6, batch_expired_share=1),
        ),
    ]


FAULTS = tuple(_lines())
GROUPS = tuple(dict.fromkeys(fault.group for fault in FAULTS))
