"""What a submit finds of the workers that would run the job.

Looked at when Redis answers: a job can be accepted without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_cli.errors import UsageProblem
from penstock_producer.job.lanes import has_own_model

if TYPE_CHECKING:
    from penstock_producer.feed.queues import Serving
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.settings import ProducerSettings

LOOK_TIMEOUT_S = 2.0  # a submit is not held up by a Redis that does not answer


def look(settings: ProducerSettings, spec: JobSpec) -> Serving | None:
    """Return what the lane's workers serve.

    None for lanes without models of their own, and where Redis does not answer.
    """
    if not has_own_model(spec.lane):
        return None
    import redis

    from penstock_ledger import RedisAddress, RedisLedger
    from penstock_producer.feed.queues import serving_of

    options = {"socket_timeout": LOOK_TIMEOUT_S, "socket_connect_timeout": LOOK_TIMEOUT_S}
    try:
        with RedisAddress.parse(settings.redis_url).connect(**options) as client:
            return serving_of(RedisLedger(client, "").workers(), spec.lane)
    except (redis.RedisError, OSError, ValueError):
        return None


def refuse_chance(serving: Serving | None, spec: JobSpec) -> None:
    """Raise UsageProblem for a prompt without a model where workers serve several.

    Chance must not decide which model answers.
    """
    if (
        serving is None
        or not spec.takes_records
        or spec.model is not None
        or len(serving.models()) < 2
    ):
        return
    raise UsageProblem(
        f"workers of lane {spec.lane} serve several models, {serving.in_words()}: name one with "
        "--model"
    )


def warning(serving: Serving | None, spec: JobSpec) -> str | None:
    """Return what the person who submits should know before the job starts.

    The job, or what goes on to another model, may have to wait for a worker.
    """
    from penstock_producer.feed.queues import missing_model
    from penstock_producer.reporting.reasons import wait_for_model

    if serving is None:
        return None
    waits = "The job waits"
    for model in (spec.model, *(spec.fallback or ())):
        missing = missing_model(serving, model)
        if missing is not None:
            start = f"one: penstock worker --lane {spec.lane} --model …"
            said = wait_for_model(missing).said
            return f"{said}. {waits} for {'it' if missing.loads else start}"
        waits = "Documents that go on to it wait"
    return None
