"""What `penstock doctor` finds of models: what the workers serve, and which running jobs wait for
one that none serves, or for a provider that none has the settings of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import redis

from penstock_cli.doctor.finding import Finding, Verdict
from penstock_ledger import Database, LiveJobs, RedisAddress, RedisLedger, WorkerSeen, open_database
from penstock_ledger.model import Job, JobState
from penstock_producer.feed.served import missing_provider, serving_of
from penstock_producer.job.lanes import LANES, has_own_model, packs
from penstock_producer.reporting.engines import cards_in_words, engines_of
from penstock_producer.reporting.reasons import standing_of, unserved_models
from penstock_producer.reporting.text import safe

SUBJECT = "models"
JOBS_SHOWN = 10
TIMEOUT_S = 5.0


def models(redis_url: str, database_url: str) -> Iterator[Finding]:
    """Nothing where no worker hosts a model and no job waits for one.

    Stores that do not answer have findings of their own."""
    try:
        database = open_database(database_url)
    except Exception:
        return
    options = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
    try:
        with RedisAddress.parse(redis_url).connect(**options) as client:
            yield from _models(RedisLedger(client, ""), database)
    except (redis.RedisError, OSError):
        return
    except Exception as error:  # the tables are missing, say: the finding of the database says so
        yield Finding(
            Verdict.WARNING, SUBJECT, f"not looked at: {safe(str(error)).splitlines()[0]}", ""
        )
    finally:
        database.close()


def _models(hot: RedisLedger, database: Database) -> Iterator[Finding]:
    workers = hot.workers()
    for lane in filter(has_own_model, LANES):
        serving = serving_of(workers, lane)
        if serving.workers:
            yield Finding(Verdict.GOOD, SUBJECT, f"lane {lane} serves {safe(serving.in_words())}")
        engines = engines_of(workers, lane)
        if engines is not None and engines.loading is not None:
            yield Finding(Verdict.GOOD, SUBJECT, f"lane {lane}: {safe(engines.loading)}")
        if (cards := cards_in_words(workers, lane)) is not None:
            yield Finding(Verdict.GOOD, SUBJECT, f"lane {lane}: {safe(cards)}")
    running = [job for job, _ in LiveJobs(database).look() if job.state is JobState.RUNNING]
    yield from _without_provider(running, workers)
    waiting = [
        (job, wait.said)
        for job in running
        if has_own_model(job.lane)
        for wait in unserved_models(standing_of(hot, database, job, workers))
    ]
    fix = (
        "start a worker with that model, give one that name (gpu.names, embed.names), or cancel "
        "the job; its items wait"
    )
    for job, why in waiting[:JOBS_SHOWN]:
        yield Finding(Verdict.WARNING, SUBJECT, f"job {safe(job.job_key)}: {why}", fix)
    if len(waiting) > JOBS_SHOWN:
        yield Finding(Verdict.WARNING, SUBJECT, f"and {len(waiting) - JOBS_SHOWN} more jobs", fix)


def _without_provider(running: Iterable[Job], workers: Sequence[WorkerSeen]) -> Iterator[Finding]:
    """Jobs whose documents would be packed, if a worker had the settings of their provider: each
    provider once."""
    wanted = {
        (job.lane, str(job.spec.get("provider", "default"))) for job in running if packs(job.lane)
    }
    for lane, provider in sorted(wanted)[:JOBS_SHOWN]:
        if (missing := missing_provider(workers, lane, provider)) is not None:
            fix = (
                f"add [providers.{safe(provider)}] and its key where one of them runs; jobs and "
                "batches wait for it"
            )
            yield Finding(Verdict.WARNING, SUBJECT, safe(missing), fix)
