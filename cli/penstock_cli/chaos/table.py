"""The table of faults: `stage.play` does each row to a fleet.

Those with ``quick`` are in `make test`, all in `penstock chaos`, and in `make test-long` those that
need no proxy."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial

from penstock_cli.chaos import injections
from penstock_cli.chaos.processes import until
from penstock_cli.chaos.proxy import Way
from penstock_cli.chaos.stage import (
    CONCURRENCY,
    HOOKS,
    LEASE_PAST_S,
    SLOTS,
    WORKERS,
    Fault,
    Stage,
    start_provider,
)
from penstock_ledger import RedisLedger, keys, purge_job
from penstock_ledger.model import JobState

ALL_SLOTS = WORKERS * SLOTS  # leases of 3 s may end meanwhile, of both workers
NOTICE_S = 1.0  # of a spot machine that goes: far less than a worker needs to drain
BOTH = ("api", "batch")

# -- processes -------------------------------------------------------------------------------------


def kill(stage: Stage) -> None:
    victim = stage.luck.choice(stage.workers())
    stage.did.append(f"killed {victim.name}")
    stage.kill(victim)
    stage.hold(1)


def two_kills_of_all(stage: Stage) -> None:
    for _ in range(2):
        called = stage.fleet.provider_calls()
        until(partial(_has_called, stage, called + CONCURRENCY), 60, "calls are in flight")
        stage.kill(*stage.workers())
        stage.fleet.ready(*stage.workers())


def _has_called(stage: Stage, times: int) -> bool:
    return stage.fleet.provider_calls() >= times or stage.fleet.state(stage.job).final


def freeze(stage: Stage) -> None:
    victim = stage.luck.choice(stage.workers())
    seconds = LEASE_PAST_S + stage.luck.uniform(0, 3)
    with injections.frozen(victim.popen.pid):
        stage.hold(seconds)
    stage.ambiguous += SLOTS
    stage.did.append(f"{victim.name} stood still for {seconds:.0f} s, past its leases")


def drain(stage: Stage) -> None:
    victim = stage.luck.choice(stage.workers())
    victim.send(signal.SIGTERM)
    stage.did.append(f"{victim.name} got SIGTERM and ended by itself")
    until(lambda: not victim.alive, 60, "the worker ends")
    stage.replace_dead()
    stage.deaths -= 1  # it gave back what it held


def spot(stage: Stage) -> None:
    victim = stage.luck.choice(stage.workers())
    victim.send(signal.SIGTERM)
    end = time.monotonic() + NOTICE_S
    until(lambda: not victim.alive or time.monotonic() > end, 60, "the notice is over")
    stage.did.append(f"{victim.name} got SIGTERM, and SIGKILL {NOTICE_S:g} s later")
    stage.kill(victim)
    stage.hold(1)


def hooks_at_work(stage: Stage) -> None:
    """Wait while one document's hook ends its process, whenever it is called."""
    stage.hold(8)


def thawed_after_a_purge(stage: Stage) -> None:
    """Let a worker sleep while its job is cancelled and forgotten.

    What it writes afterwards belongs to no job."""
    fleet = stage.fleet
    gone = fleet.submit(60, key=f"{stage.job.job_key}-gone", timeout_s=60)
    fleet.wait_for_outcomes(gone, 1)
    asleep = stage.luck.choice(stage.workers())
    stage.died += 1
    with injections.frozen(asleep.popen.pid):
        fleet.producer.cancel(gone.job_id)
        fleet.wait_for(gone, JobState.CANCELLED, 60)
        purge_job(fleet.producer._database, gone.job_id)
        RedisLedger(fleet.store.client(), "").forget(gone.job_id)
    stage.hold(3)
    if outcomes := injections.outcomes_of(fleet.database_url, gone.job_id):
        stage.problems.append(f"{outcomes} outcomes of a forgotten job")
    left = set(fleet.store.client().scan_iter(f"{keys.job_scope(gone.job_id)}:*"))
    if left != {keys.job_state(gone.job_id).encode()}:
        stage.problems.append(f"keys of a forgotten job: {left!r}")


# -- Redis -----------------------------------------------------------------------------------------


def flushall(stage: Stage) -> None:
    stage.fleet.store.client().flushall()
    stage.ambiguous += ALL_SLOTS


def redis_restart(stage: Stage) -> None:
    stage.fleet.redis.kill()
    stage.hold(stage.luck.uniform(0.5, 3))
    stage.fleet.redis.restart()
    stage.ambiguous += ALL_SLOTS


def redis_wiped(stage: Stage) -> None:
    stage.fleet.redis.restart(wipe=True)
    stage.ambiguous += ALL_SLOTS


def redis_stale(stage: Stage) -> None:
    with injections.redis_of_before(stage.fleet.redis):
        stage.hold(4)
    stage.ambiguous += ALL_SLOTS


def slow_redis(stage: Stage) -> None:
    for _ in range(2):
        stage.fleet.store.client().client_pause(6_000, all=True)
        stage.hold(8)
    stage.ambiguous += ALL_SLOTS


def stopped_redis(stage: Stage) -> None:
    with injections.frozen(stage.fleet.redis.pid):
        stage.hold(12)
    stage.ambiguous += ALL_SLOTS


def read_only_redis(stage: Stage) -> None:
    with injections.redis_read_only(stage.fleet.store.client()):
        stage.hold(10)
    stage.ambiguous += ALL_SLOTS


def full_disk_of_redis(stage: Stage) -> None:
    with injections.redis_cannot_save(stage.fleet.redis):
        stage.hold(8)
    stage.ambiguous += ALL_SLOTS


def full_memory_of_redis(stage: Stage) -> None:
    with injections.redis_full(stage.fleet.store.client()):
        stage.hold(8)
    stage.ambiguous += ALL_SLOTS


def clock_of_redis_steps_back(stage: Stage) -> None:
    """Kill a worker meanwhile, so that what it held has leases of the future."""
    stage.kill(stage.luck.choice(stage.workers()))
    injections.step_redis_clock_back(stage.fleet.store.client(), stage.queue)
    # the leases of the other worker, too, are of no time that can be believed
    stage.ambiguous += SLOTS


def strays(stage: Stage) -> None:
    """Send messages that no producer sends.

    All are set aside, and the documents behind them are answered."""
    client, job = stage.fleet.store.client(), stage.job
    injections.send_strays(client, stage.queue, job.job_id, job.job_key)
    stage.hold(3)


# -- the database and the disk ---------------------------------------------------------------------


def database_away(stage: Stage) -> None:
    """Lock SQLite, or let PostgreSQL take no connections and end those that there are."""
    url = stage.fleet.database_url
    if injections.is_sqlite(url):
        with injections.sqlite_locked(url):
            stage.hold(12)
        stage.did.append("another process held the lock of SQLite for 12 s")
        return
    with injections.postgres_away(url) as cut:
        end = time.monotonic() + 8
        while time.monotonic() < end:
            cut()
            stage.hold(0.5)
    stage.ambiguous += ALL_SLOTS
    stage.did.append("PostgreSQL ended all connections and let none in for 8 s")


def disk_full(stage: Stage) -> None:
    with injections.sqlite_without_room(stage.fleet.database_url):
        stage.hold(8)
    stage.ambiguous += ALL_SLOTS


# -- the net ---------------------------------------------------------------------------------------


def behind(what: str, way: Way, seconds: float, *, tries: int = 1) -> Callable[[Stage], None]:
    """Return a fault of the way to Redis, to the database or to the provider.

    Each of ``tries`` requests that a slot sends meanwhile may arrive after it, and be paid."""

    def strike(stage: Stage) -> None:
        with stage.proxies[what].made(way):
            stage.hold(seconds)
        stage.ambiguous += tries * ALL_SLOTS

    return strike


def lost_answers(what: str, times: int) -> Callable[[Stage], None]:
    """Return a fault in which requests are carried out and their answers are lost.

    Connections break right after it, so that no client hears an answer to another question."""

    def strike(stage: Stage) -> None:
        for _ in range(times):
            with stage.proxies[what].made(Way.DEAF):
                stage.hold(0.5)
            stage.hold(1)
        stage.ambiguous += times * ALL_SLOTS

    return strike


# -- the provider ----------------------------------------------------------------------------------


def answers(kinds: str, *, seconds: float = 4.0, share: float = 1.0) -> Callable[[Stage], None]:
    return lambda stage: stage.hostile(kinds, seconds, share)


def account_error(stage: Stage) -> None:
    stage.fleet.provider.tell(hostile="nul-account", hostile_share=1)
    try:
        stage.fleet.wait_for(stage.job, JobState.PAUSED, 30)
    finally:
        stage.fleet.provider.tell(hostile=None)


def provider_restart(stage: Stage) -> None:
    stage.fleet.provider.kill()
    stage.hold(4)
    start_provider(stage.fleet, stage.lane, None, stage.seed)
    stage.ambiguous += ALL_SLOTS


def bad_certificate(stage: Stage) -> None:
    """Let the provider's certificate run out; the screen says so while it lasts."""
    stage.fleet.provider.kill()
    start_provider(stage.fleet, stage.lane, "expired", stage.seed)
    stage.hold(12)
    if "certificate" not in (shown := stage.shown()):
        stage.problems.append(f"what fails is not said: {shown}")
    stage.fleet.provider.kill()
    start_provider(stage.fleet, stage.lane, "good", stage.seed)
    stage.ambiguous += ALL_SLOTS


def batches(seconds: float, **controls: float) -> Callable[[Stage], None]:
    """Return a fault of the provider's batch API, by settings of the simulated provider."""

    def strike(stage: Stage) -> None:
        stage.fleet.provider.tell(**controls)
        try:
            stage.hold(seconds)
        finally:
            stage.fleet.provider.tell(**dict.fromkeys(controls, 0))

    return strike


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
POSTGRES = frozenset({"PostgreSQL"})


def _lines() -> list[Fault]:
    workers = partial(Fault, group="workers")
    redis = partial(Fault, group="redis")
    sql = partial(Fault, group="sql")
    net = partial(Fault, group="net", needs=frozenset({"proxies"}))
    provider = partial(Fault, group="provider")
    batch = partial(Fault, group="batch", lanes=("batch",))
    return [
        workers("kill", does="a worker is killed", strike=kill, lanes=BOTH),
        workers("freeze", does="a worker stands still", strike=freeze, lanes=BOTH),
        workers("drain", does="a worker gets SIGTERM", strike=drain, lanes=BOTH),
        workers("spot", does="a machine goes after a short notice", strike=spot, lanes=BOTH),
        workers(
            "two-kills-of-all",
            does="all workers are killed, twice in a row",
            strike=two_kills_of_all,
            finding="A6",
        ),
        workers(
            "postprocess-ends-its-process",
            does="a document kills its process after the call",
            strike=hooks_at_work,
            finding="A1",
            spec=(("postprocess", f"{HOOKS}:die_after"),),
            dead=CRASHED,
            most_dead=1,
        ),
        workers(
            "preprocess-ends-its-process",
            does="a document kills its process before the call",
            strike=hooks_at_work,
            finding="A1",
            spec=(("preprocess", f"{HOOKS}:die_before"),),
            dead=CRASHED,
            most_dead=1,
        ),
        workers(
            "thawed-after-a-purge",
            does="a worker stands still while a job is cancelled and purged",
            strike=thawed_after_a_purge,
            finding="A16",
            honest=False,  # of two jobs
        ),
        redis("flushall", does="Redis forgets all", strike=flushall, lanes=BOTH),
        redis(
            "redis-restart",
            does="Redis is killed and comes back with its file",
            strike=redis_restart,
            lanes=BOTH,
            needs=OWN_REDIS,
        ),
        redis(
            "redis-wiped",
            does="Redis is killed and comes back empty",
            strike=redis_wiped,
            lanes=BOTH,
            needs=OWN_REDIS,
        ),
        redis(
            "stale-redis",
            does="Redis comes back as it was 4 s ago",
            strike=redis_stale,
            lanes=BOTH,
            needs=OWN_REDIS,
        ),
        redis("slow-redis", does="Redis pauses twice for 6 s", strike=slow_redis, finding="A8"),
        redis(
            "stopped-redis",
            does="Redis stands still for 12 s",
            strike=stopped_redis,
            finding="A8",
            needs=OWN_REDIS,
        ),
        redis(
            "read-only-redis",
            does="Redis takes no writes for 10 s",
            strike=read_only_redis,
            finding="A14",
            lanes=BOTH,
        ),
        redis(
            "full-disk-of-redis",
            does="Redis cannot save for 8 s",
            strike=full_disk_of_redis,
            finding="A10",
            needs=OWN_REDIS,
        ),
        redis(
            "full-memory-of-redis",
            does="Redis has no memory for 8 s",
            strike=full_memory_of_redis,
            finding="A14",
            lanes=BOTH,
        ),
        redis(
            "clock-of-redis-steps-back",
            does="the clock of Redis steps back an hour, and a worker is killed",
            strike=clock_of_redis_steps_back,
            finding="A12",
        ),
        redis(
            "strays",
            does="messages come that no producer sends",
            strike=strays,
            finding="B5 B6",
            documents=160,
            quick=True,
        ),
        sql(
            "database-away",
            does="the database takes nothing",
            strike=database_away,
            finding="A15",
            lanes=BOTH,
        ),
        sql(
            "full-disk",
            does="the disk of the ledger is full for 8 s",
            strike=disk_full,
            lanes=BOTH,
            needs=frozenset({"own disk"}),
        ),
        net(
            "partition-from-redis",
            does="nothing passes to or from Redis for 8 s",
            strike=behind("redis", Way.STALLED, 8),
            lanes=BOTH,
        ),
        net(
            "lost-answers-of-redis",
            does="Redis does what is asked and its answers are lost, three times",
            strike=lost_answers("redis", 3),
            lanes=BOTH,
        ),
        net(
            "partition-from-the-database",
            does="nothing passes to or from the database for 8 s",
            strike=behind("sql", Way.STALLED, 8),
            lanes=BOTH,
            needs=frozenset({"proxies", "PostgreSQL"}),
        ),
        net(
            "committed-and-reply-lost",
            does="the database commits and its answers are lost, three times",
            strike=lost_answers("sql", 3),
            lanes=BOTH,
            needs=frozenset({"proxies", "PostgreSQL"}),
        ),
        net(
            "partition-from-the-provider",
            does="nothing passes to or from the provider for 8 s",
            strike=behind("provider", Way.STALLED, 8, tries=3),  # of 3 s
            lanes=BOTH,
            spec=MANY_TRIES,
        ),
        net(
            "provider-out-of-reach",
            does="connections to the provider are refused for 8 s",
            strike=behind("provider", Way.REFUSED, 8),
            lanes=BOTH,
            spec=MANY_TRIES,
        ),
        net(
            "lost-answers-of-the-provider",
            does="the provider answers and its answers are lost, three times",
            strike=lost_answers("provider", 3),
            lanes=BOTH,
            spec=MANY_TRIES,
        ),
        provider(
            "texts",
            does="errors and answers with odd characters for 3 s",
            strike=answers(TEXTS, share=0.4, seconds=3),
            finding="A4 B14 B15 B23",
            documents=160,
            spec=MANY_TRIES,
            dead=ONE_DOCUMENT,
            most_dead=160,
            quick=True,
            honest=False,  # its odd answers name other tokens than it counts
        ),
        provider(
            "account-error-with-a-nul",
            does="the key is refused until a person resumes",
            strike=account_error,
            finding="A4",
            documents=120,
            waits_for="unauthorized",
            quick=True,
        ),
        provider(
            "provider-restart",
            does="the provider is gone for 4 s",
            strike=provider_restart,
            spec=MANY_TRIES,
            honest=False,  # it has forgotten what it billed
        ),
        provider(
            "one-page-of-403",
            does="three in a hundred calls get a firewall's page",
            strike=answers("html-403", share=0.03, seconds=4),
            finding="A3",
            spec=MANY_TRIES,
            dead=ONE_DOCUMENT,
            most_dead=20,
        ),
        provider(
            "403-for-all",
            does="every call gets a firewall's page, until a person resumes",
            strike=answers("html-403"),
            finding="A3",
            spec=MANY_TRIES,
            dead=ONE_DOCUMENT,
            most_dead=40,
            waits_for="403|forbidden|refused",
        ),
        provider(
            "pages",
            does="four in ten calls get pages of HTML for 4 s",
            strike=answers("html-200,html-502", share=0.4),
            finding="A3",
            spec=MANY_TRIES,
            dead=ONE_DOCUMENT,
            most_dead=40,
        ),
        provider(
            "retry-after-an-hour",
            does="the provider wants an hour's rest, until a person resumes",
            strike=answers("retry-after-hour", share=0.05, seconds=4),
            finding="A2",
            spec=MANY_TRIES,
            waits_for="rate_limited|wait",
        ),
        provider(
            "retry-after-nonsense",
            does="429 with times that are none for 4 s",
            strike=answers(NONSENSE, share=0.3),
            finding="A2",
            spec=MANY_TRIES,
        ),
        provider(
            "limits-of-one",
            does="answers name one request per minute as the limit",
            strike=answers("limit-requests", seconds=5),
            finding="A11",
            documents=400,
        ),
        provider(
            "limits-of-ten-tokens",
            does="answers name ten tokens per minute as the limit",
            strike=answers("limit-tokens", seconds=5),
            finding="A11",
            documents=400,
        ),
        provider(
            "limits-of-nonsense",
            does="answers name limits that are none",
            strike=answers("limit-nonsense", seconds=5),
            finding="A11",
        ),
        provider(
            "redirects",
            does="every call is sent elsewhere, until a person resumes",
            strike=answers("redirect-302,redirect-307,redirect-308,redirect-host", seconds=5),
            finding="A7",
            dead=ONE_DOCUMENT | REDIRECTS,
            most_dead=60,
            waits_for="redirect|30[278]|base-url|base_url",
            quick=True,
        ),
        provider(
            "not-found",
            does="every call gets 404, until a person resumes",
            strike=answers("not-found", seconds=10),
            finding="A7 D9",
            documents=400,
            dead=ONE_DOCUMENT,
            most_dead=60,
            waits_for="404|not_found|base-url|base_url",
        ),
        provider(
            "sizes",
            does="answers of 100 MB, bombs and wrong encodings for 4 s",
            strike=answers(SIZES, share=0.2),
            finding="A17 B22",
            spec=MANY_TRIES,
            dead=ONE_DOCUMENT,
            most_dead=240,
        ),
        provider(
            "wires",
            does="calls hang, and connections break in every way for 4 s",
            strike=answers(WIRES, share=0.3),
            finding="4.4",
            spec=MANY_TRIES,
        ),
        provider(
            "drip",
            does="answers come a byte at a time for 8 s",
            strike=answers("drip", seconds=8),
            finding="4.4",
            spec=MANY_TRIES,
            documents=120,
            honest=False,  # what our own deadline cut off may have been billed
        ),
        provider(
            "bodies",
            does="bodies that are no answer for 4 s",
            strike=answers(BODIES, share=0.4),
            finding="4.4",
            spec=MANY_TRIES,
            dead=ONE_DOCUMENT,
            most_dead=40,
            honest=False,  # it says nonsense of its tokens, too
        ),
        provider(
            "expired-certificate",
            does="the provider's certificate has run out for 12 s",
            strike=bad_certificate,
            finding="A9",
            https=True,
            honest=False,  # it has forgotten what it billed
            needs=frozenset({"https"}),
        ),
        batch(
            "batches-not-found",
            does="batches and their outputs answer 404 for 3 s each",
            strike=batches(6, batch_look_404_s=3, batch_file_404_s=3),
        ),
        batch(
            "creates-that-work-and-answer-500",
            does="nine in ten creates and uploads work and answer 500 for 6 s",
            strike=batches(6, batch_create_500_share=0.9, batch_upload_500_share=0.9),
        ),
        batch(
            "batch-calls-fail",
            does="half of the calls of the batch API get 500 for 6 s",
            strike=batches(6, batch_call_500_share=0.5),
        ),
        batch(
            "cut-and-short-outputs",
            does="outputs break off, and first downloads lack half of their lines, for 6 s",
            strike=batches(6, batch_cut_share=0.7, batch_short_reads=2),
        ),
        batch(
            "batches-expire",
            does="batches made within 6 s expire half-way",
            strike=batches(6, batch_expired_share=1),
        ),
    ]


FAULTS = tuple(_lines())
BY_NAME = {fault.name: fault for fault in FAULTS}
GROUPS = tuple(dict.fromkeys(fault.group for fault in FAULTS))
