"""Check the parts of a fleet for `penstock doctor`: RabbitMQ, a lane, and the models served."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import redis

from penstock_cli.doctor.worker import Finding, Verdict
from penstock_cli.errors import UsageProblem
from penstock_ledger import Database, LiveJobs, RedisAddress, RedisLedger, WorkerSeen, open_database
from penstock_ledger.model import Job, JobState
from penstock_producer.feed.queues import missing_provider, serving_of
from penstock_producer.job.lanes import LANES, has_own_model, packs
from penstock_producer.reporting.advice import on_terminal
from penstock_producer.reporting.engines import engines_of, gpus_in_words
from penstock_producer.reporting.reasons import standing_of, unserved_models
from penstock_producer.reporting.text import safe
from penstock_workers.amqp_address import AmqpAddress
from penstock_workers.broker.amqp.connect import (
    AMQP_ERRORS,
    CHANNEL_ERRORS,
    QUORUM,
    Publisher,
    connect,
)


class AskedLane(NamedTuple):
    """A lane that the command line asks for."""

    name: str
    model: str | None
    attempt: bool  # whether the model is loaded, for a run of one token


def asked_lane(name: str | None, model: str | None, *, attempt: bool) -> AskedLane | None:
    """Return the lane that the flags name, if any.

    Raises UsageProblem for flags that go with a lane, and for lanes that need nothing of a machine.
    """
    from penstock_workers.lanes.registry import REGISTRY

    if name is None:
        if model is not None or attempt:
            raise UsageProblem(
                "--model and --try go with --lane: name the lane whose worker would run here"
            )
        return None
    able = [row.name for row in REGISTRY.values() if row.inspect is not None]
    if name not in able:
        raise UsageProblem(
            f"--lane {name}: lanes whose workers host a model are {' and '.join(able)}; leave it "
            "out for others"
        )
    return AskedLane(name, model, attempt)


def inspect(asked: AskedLane) -> Iterator[Finding]:
    """Look at this machine with the settings of a worker of that lane."""
    from penstock_workers.lanes.one_run import one_run
    from penstock_workers.lanes.registry import lane_row
    from penstock_workers.settings import WorkerSettings

    own = {} if asked.model is None else {asked.name: {"model": asked.model}}
    row = lane_row(asked.name)
    assert row.inspect is not None, "asked_lane has looked"
    settings = WorkerSettings.load(lane=asked.name, **own)
    tries = one_run(row, settings, row.tries) if asked.attempt else ()
    for found in chain(row.inspect(settings), tries):
        verdict = Verdict.GOOD if found.is_good else Verdict.BAD
        yield Finding(verdict, asked.name, safe(found.seen), safe(found.fix))


BROKER = "rabbitmq"
MINIMUM_VERSION = (3, 10)  # the oldest that fleets were seen to run on
FIXES = (
    ("ACCESS_REFUSED", "correct user and password in broker_url (PENSTOCK_BROKER_URL), %-encoded"),
    (
        "NOT_ALLOWED",
        "correct the vhost in broker_url, or let the user in: rabbitmqctl set_permissions -p VHOST "
        "USER …",
    ),
    (
        "InvalidCommand",
        "correct the vhost in broker_url, or let the user in: rabbitmqctl set_permissions -p VHOST "
        "USER …",
    ),
)


def rabbitmq(url: str) -> Iterator[Finding]:
    """Yield whether RabbitMQ answers, is new enough, and lets us have a quorum queue."""
    address = AmqpAddress.parse(url)
    try:
        broker = connect(address)
    except AMQP_ERRORS as error:
        said = safe(str(error))
        fix = next(
            (fix for sign, fix in FIXES if sign in said),
            "start it, or set broker_url (PENSTOCK_BROKER_URL)",
        )
        yield Finding(Verdict.BAD, BROKER, f"{address.shown}: {said}", fix)
        return
    try:
        properties: Any = broker.connection.server_properties
        version = str(properties.get("version", "?"))
        yield Finding(
            Verdict.GOOD, BROKER, f"{address.shown} answers, {properties.get('product')} {version}"
        )
        yield _version(version)
        yield _queue(broker.connection)
    except AMQP_ERRORS as error:
        yield Finding(
            Verdict.BAD, BROKER, f"{address.shown}: {safe(str(error))}", "see RabbitMQ's log"
        )
    finally:
        broker.release()


def _version(version: str) -> Finding:
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    wanted = ".".join(map(str, MINIMUM_VERSION))
    if parts >= MINIMUM_VERSION:
        return Finding(Verdict.GOOD, BROKER, f"{version}, at least {wanted}")
    return Finding(
        Verdict.BAD, BROKER, f"{version} is too old", f"upgrade RabbitMQ to {wanted} or newer"
    )


def _queue(connection: Any) -> Finding:
    """Declare a queue of our own, publish to it, and delete it again."""
    name = f"penstock.doctor.{os.getpid()}"
    channel = connection.channel()
    try:
        channel.queue_declare(name, durable=True, auto_delete=False, arguments=QUORUM)
        try:
            publisher = Publisher(channel, name)
            publisher.publish([("doctor", b"{}")], timeout_s=5.0)
            refused = publisher.unconfirmed()
        finally:
            channel.queue_delete(name)
    except CHANNEL_ERRORS as error:
        fix = (
            "give the user all three rights: rabbitmqctl set_permissions -p VHOST USER '.*' '.*' "
            "'.*'"
        )
        return Finding(Verdict.BAD, BROKER, f"no quorum queue can be had: {safe(str(error))}", fix)
    if refused:
        return Finding(
            Verdict.BAD,
            BROKER,
            "it refused a message",
            "see RabbitMQ's log and alarms: memory, disk, quorum",
        )
    return Finding(
        Verdict.GOOD, BROKER, "quorum queues can be declared, and confirm what they are sent"
    )


MODELS = "models"
JOBS_SHOWN = 10
TIMEOUT_S = 5.0


def models(redis_url: str, database_url: str) -> Iterator[Finding]:
    """Yield what waits for a model; nothing where no worker hosts one and no job waits for one.

    Stores that do not answer have findings of their own.
    """
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
            Verdict.WARNING, MODELS, f"not looked at: {safe(str(error)).splitlines()[0]}", ""
        )
    finally:
        database.close()


def _models(hot: RedisLedger, database: Database) -> Iterator[Finding]:
    workers = hot.workers()
    for lane in filter(has_own_model, LANES):
        serving = serving_of(workers, lane)
        if serving.workers:
            yield Finding(Verdict.GOOD, MODELS, f"lane {lane} serves {safe(serving.in_words())}")
        engines = engines_of(workers, lane)
        if engines is not None and engines.loading is not None:
            yield Finding(Verdict.GOOD, MODELS, f"lane {lane}: {safe(engines.loading)}")
        if engines is not None and engines.held_back is not None:
            yield Finding(Verdict.WARNING, MODELS, f"lane {lane}: {safe(engines.held_back)}", "")
        if (cards := gpus_in_words(workers, lane)) is not None:
            yield Finding(Verdict.GOOD, MODELS, f"lane {lane}: {safe(cards)}")
    running = [job for job, _ in LiveJobs(database).look() if job.state is JobState.RUNNING]
    yield from _without_provider(running, workers)
    waiting = [
        (job, on_terminal(wait.said))
        for job in running
        if has_own_model(job.lane)
        for wait in unserved_models(standing_of(hot, database, job, workers))
    ]
    fix = (
        "start a worker with that model, give one that name (gpu.names, embed.names), or cancel "
        "the job; its items wait"
    )
    for job, why in waiting[:JOBS_SHOWN]:
        yield Finding(Verdict.WARNING, MODELS, f"job {safe(job.job_key)}: {why}", fix)
    if len(waiting) > JOBS_SHOWN:
        yield Finding(Verdict.WARNING, MODELS, f"and {len(waiting) - JOBS_SHOWN} more jobs", fix)


def _without_provider(running: Iterable[Job], workers: Sequence[WorkerSeen]) -> Iterator[Finding]:
    """Yield the jobs that would be packed if a worker had their provider's settings.

    Each provider is named once."""
    wanted = {
        (job.lane, str(job.spec.get("provider", "default"))) for job in running if packs(job.lane)
    }
    for lane, provider in sorted(wanted)[:JOBS_SHOWN]:
        if (missing := missing_provider(workers, lane, provider)) is not None:
            fix = (
                f"add [providers.{safe(provider)}] and its key where one of them runs; jobs and "
                "batches wait for it"
            )
            yield Finding(Verdict.WARNING, MODELS, safe(missing), fix)
