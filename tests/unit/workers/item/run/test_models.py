"""Whether an item stays with a worker: by the model that it names, or by the one that its job is
bound to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import pytest
from attempts import make_attempt

from penstock_ledger import WorkerSeen, keys
from penstock_ledger.reasons import explain
from penstock_producer.feed.queues import SERVES, Served
from penstock_workers.broker.leases import BrokerAction
from penstock_workers.celery_app.handover import broker_action
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import TurnedAway
from penstock_workers.item.outcome import Outcome, Parked, Released
from penstock_workers.item.run.models import ModelCheck

T = TypeVar("T")
TINY1, TINY2 = Served(("/models/tiny1", "tiny1"), ("legal",)), Served(("tiny2",))


class Hot:
    """Plays Redis and the reads: which workers there are, and what jobs are bound to."""

    def __init__(self, *others: Served) -> None:
        self.queues = self
        self.others = others
        self.bindings: dict[str, str] = {}
        self.looks = 0

    def workers(self) -> list[WorkerSeen]:
        self.looks += 1
        return [
            WorkerSeen(str(at), 0.0, {"lane": "gpu", SERVES: one.to_text()})
            for at, one in enumerate(self.others)
        ]

    def bound(self, job_id: str) -> str | None:
        return self.bindings.get(job_id)

    def bind(self, job_id: str, queue: str) -> str:
        return self.bindings.setdefault(job_id, queue)

    def is_of(self, lane: str, name: str) -> bool:
        return name == lane or keys.is_queue_of(lane, name)

    async def of_fleet(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await ask()


def model_check(hot: Hot, served: Served = TINY1) -> ModelCheck:
    opened = ModelCheck("gpu", cast(Any, hot), cast(Any, hot))
    opened.open(served)
    return opened


def attempt(body: bytes, queue: str = "penstock.gpu", **spec: Any) -> Attempt:
    made = make_attempt(body=body, lane="gpu", **spec)
    made.delivery.queue = queue
    return made


async def outcome_of(opened: ModelCheck, item: Attempt) -> Outcome | None:
    try:
        await opened.check(item)
    except TurnedAway as turned:
        return turned.outcome
    return None


def test_items_from_the_models_own_queue_need_no_look() -> None:
    """Their feed has read the model; those of the lane's queue and those that a hook may change are
    looked at."""
    opened = model_check(Hot())
    assert not opened.needs_look(attempt(b"{}", "penstock.gpu.tiny1"))
    assert opened.needs_look(attempt(b"{}", "penstock.gpu"))
    assert opened.needs_look(attempt(b"{}", "penstock.gpu.tiny1", preprocess="hooks:change"))
    gone_on = attempt(b"{}", "penstock.gpu.tiny1")
    gone_on.models_left = 1
    assert opened.needs_look(gone_on), "it asks for the next model of its job's fallback"


@pytest.mark.parametrize("model", ["tiny1", "/models/tiny1", "legal"])
async def test_every_name_of_the_model_is_served(model: str) -> None:
    """By its path, by its last part, by an adapter."""
    assert await outcome_of(model_check(Hot()), attempt(b'{"model":"%b"}' % model.encode())) is None


async def test_an_item_of_another_model_goes_to_its_queue_uncounted() -> None:
    """It is released to the queue of the model, acknowledged here, and no attempt is counted."""
    outcome = await outcome_of(model_check(Hot()), attempt(b'{"model":"tiny2"}'))
    assert outcome is not None
    assert outcome == Released("this worker does not serve tiny2", to="penstock.gpu.tiny2")
    assert broker_action(outcome) is BrokerAction.ACK
    assert broker_action(Released("drain")) is BrokerAction.GIVE_BACK


async def test_a_job_without_a_model_is_bound_to_the_one_that_is_served() -> None:
    """The first item binds it, by the shortest name that all its workers share, and the fleet is
    looked at once per job."""
    hot = Hot(TINY1, Served(("/mnt/tiny1", "tiny1")))
    opened = model_check(hot)
    assert [await outcome_of(opened, attempt(b"{}")) for _ in range(3)] == [None] * 3
    assert hot.bindings == {"job": "penstock.gpu.tiny1"}
    assert hot.looks == 1


async def test_a_bound_job_stays_with_its_model() -> None:
    """A worker of another model sends its items there, also when it is the only one left."""
    hot = Hot()
    hot.bindings["job"] = "penstock.gpu.tiny1"
    outcome = await outcome_of(model_check(hot, TINY2), attempt(b"{}"))
    assert isinstance(outcome, Released)
    assert outcome.to == "penstock.gpu.tiny1"


async def test_a_binding_that_a_stranger_wrote_binds_nothing() -> None:
    """A name that is not a queue of the lane is followed nowhere: the job is paused, and a person
    looks who can write there."""
    hot = Hot()
    hot.bindings["job"] = "penstock.api"
    outcome = await outcome_of(model_check(hot, TINY2), attempt(b"{}"))
    assert isinstance(outcome, Parked)
    assert outcome.pauses is not None
    said = explain(outcome.pauses)
    assert "queue 'penstock.api' answers this job, which is none of its lane" in said


async def test_with_several_models_the_job_is_paused_and_told() -> None:
    """Which model answers must not be chance: the reason names those that are served, and what to
    do."""
    outcome = await outcome_of(model_check(Hot(TINY1, TINY2)), attempt(b"{}"))
    assert isinstance(outcome, Parked)
    assert outcome.pauses is not None
    assert (
        "serve several: tiny1 (1 worker; adapters legal), tiny2 (1 worker). Cancel it and submit it again"
        in explain(outcome.pauses)
    )
