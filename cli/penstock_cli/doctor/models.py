"""What `penstock doctor` finds of models: what the workers serve, and which running jobs wait for one that none serves."""

from __future__ import annotations

from collections.abc import Iterator

import redis

from penstock_cli.doctor.finding import Finding, Verdict
from penstock_cli.show.cards import cards_in_words
from penstock_cli.show.engines import engines_of
from penstock_cli.show.reasons import unserved_model
from penstock_cli.show.text import safe
from penstock_ledger import LiveJobs, RedisAddress, RedisLedger, open_database
from penstock_ledger.model import JobState
from penstock_producer.feed.served import serving_of
from penstock_producer.job.lanes import LANES, has_own_model

SUBJECT = "models"
JOBS_SHOWN = 10
TIMEOUT_S = 5.0


def models(redis_url: str, database_url: str) -> Iterator[Finding]:
    """Nothing where no worker hosts a model and no job waits for one. Stores that do not answer have findings of their own."""
    try:
        database = open_database(database_url)
    except Exception:
        return
    options = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
    try:
        with RedisAddress.parse(redis_url).connect(**options) as client:
            yield from _models(RedisLedger(client, ""), LiveJobs(database))
    except (redis.RedisError, OSError):
        return
    except Exception as error:  # the tables are missing, say: the finding of the database says so
        yield Finding(Verdict.WARNING, SUBJECT, f"not looked at: {safe(str(error)).splitlines()[0]}", "")
    finally:
        database.close()


def _models(hot: RedisLedger, live: LiveJobs) -> Iterator[Finding]:
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
    waiting = [
        (job, why)
        for job, _ in live.look()
        if job.state is JobState.RUNNING
        and has_own_model(job.lane)
        and (why := unserved_model(hot, workers, job)) is not None
    ]
    fix = (
        "start a worker with that model, give one that name (gpu.names, embed.names), or cancel the job; its items wait"
    )
    for job, why in waiting[:JOBS_SHOWN]:
        yield Finding(Verdict.WARNING, SUBJECT, f"job {safe(job.job_key)}: {why}", fix)
    if len(waiting) > JOBS_SHOWN:
        yield Finding(Verdict.WARNING, SUBJECT, f"and {len(waiting) - JOBS_SHOWN} more jobs", fix)
