"""Attempts as the runner makes them, and a host whose parts are doubles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from penstock_ledger.model import DeadLetter, ItemKey, Result
from penstock_producer.feed.wire import ItemMessage
from penstock_producer.job.spec import JobSpec
from penstock_workers.failpoints import Failpoints
from penstock_workers.item.attempt import Attempt, Item
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.job_view import JobView
from penstock_workers.item.outcome import Dead, Done
from penstock_workers.item.run.fates import RetryPolicy
from penstock_workers.item.run.host import ItemHost
from penstock_workers.item.run.passes import Passes
from penstock_workers.item.run.priming import Priming
from penstock_workers.item.run.reading import Reads
from penstock_workers.item.run.runner import ItemRunner
from penstock_workers.item.run.runs import Causes, Runs
from penstock_workers.item.same_request import policy_of
from penstock_workers.item.slots import ItemWaits
from penstock_workers.settings import ProviderSettings

BODY = b'{"model":"m"}'


def make_attempt(
    doc_id: str = "doc",
    *,
    job_id: str = "job",
    generation: int = 1,
    body: bytes = BODY,
    retries: int = 0,
    headers: Mapping[str, Any] | None = None,
    settings: ProviderSettings | None = None,
    **spec: Any,
) -> Attempt:
    """An attempt at a document that has its job and its body, and has not begun."""
    key = ItemKey(job_id, generation, doc_id)
    delivery = Delivery(
        f"{job_id}:{doc_id}", {}, headers or {}, retries=retries, queue="penstock.api"
    )
    settings, read = settings or ProviderSettings(), JobSpec.from_json(spec)
    job = JobView(
        job_id, read, settings, 1, reuse=policy_of(job_id, read, settings, across_tenants=False)
    )
    return Attempt.at(Item.of(delivery, ItemMessage(key, body, None)), job, body)


def make_runner(
    part: object, *, concurrency: int = 1, pause_after_run: int = 20, **parts: Any
) -> ItemRunner:
    """A runner around ``part``, which plays every part that is not among ``parts``."""
    return _make(cast(Any, part), ItemWaits(concurrency), pause_after_run, parts)


def make_host(
    part: object, *, concurrency: int = 1, pause_after_run: int = 20, **parts: Any
) -> ItemHost:
    """The same with its tasks; ``part`` plays the settler, too."""
    waits = ItemWaits(concurrency)
    return ItemHost(_make(cast(Any, part), waits, pause_after_run, parts), cast(Any, part), waits)


def _make(
    part: Any, waits: ItemWaits, pause_after_run: int, parts: Mapping[str, Any]
) -> ItemRunner:
    return ItemRunner(
        bridge=part,
        lane=parts.get("lane", part),
        reads=Reads(
            parts.get("jobs", part),
            parts.get("bodies", part),
            waits.others,
            parts.get("steps", lambda _: 0),
        ),
        admission=parts.get("admission", part),
        quarantine=part,
        code=parts.get("code", part),
        starts=parts.get("starts", part),
        causes=Causes(),
        waits=waits,
        policy=RetryPolicy(),
        failpoints=Failpoints(),
        reuse=parts.get("reuse", part),
        priming=Priming(part, waits.others),
        runs=Runs(pause_after_run),
        passes=Passes(part),
        models=parts.get("models"),
    )


KEY = ItemKey("job", 1, "doc")


def done(latency_ms: int = 100) -> Done:
    return Done(Result(KEY, 200, b"{}", None, "m", "stop", 1, 1, 0, latency_ms, 1, 1))


def dead(error: str, reason: str = "bad_request") -> Dead:
    return Dead(DeadLetter(KEY, reason, 1, 1, error, 400, b"{}", None))
