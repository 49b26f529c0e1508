"""The drain of an item runner: what has not started goes back at once."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from attempts import make_host

from penstock_ledger import DatabaseUnavailable
from penstock_ledger.reasons import By, Reason
from penstock_producer.job.spec import JobSpec
from penstock_ratelimit.testing import run_virtual
from penstock_workers.item.attempt import Attempt, Item
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.failures import TurnedAway
from penstock_workers.item.job_view import JobView
from penstock_workers.item.outcome import Outcome, Parked, Released
from penstock_workers.metrics import catalogue
from penstock_workers.settings import ProviderSettings

DRAIN_S = 600.0
KWARGS = {"v": 1, "job": "j", "gen": 1, "doc": "d", "body": {}}


class AwayLedger:
    """A ledger that does not answer for the first seconds."""

    def __init__(self) -> None:
        self.answers_at = 60.0

    def known(self, job_id: str, endpoint: str | None = None) -> JobView | None:
        return None

    async def get(self, job_id: str, endpoint: str | None = None) -> JobView:
        if asyncio.get_running_loop().time() < self.answers_at:
            raise DatabaseUnavailable("db/night", "connection refused")
        return JobView(job_id, JobSpec(), ProviderSettings(), 1)


class PausedProvider:
    """An admission in which no item's turn comes, and whatever else a runner asks for before
    that."""

    def __init__(self) -> None:
        self.outcomes: list[object] = []

    def known(self, job_id: str, endpoint: str | None = None) -> JobView:
        return JobView(job_id, JobSpec(), ProviderSettings(), 1)

    def at_once(self, attempt: Attempt) -> None:
        """Never: the steps of waiting are what is looked at."""

    async def turn(self, attempt: Attempt, prepared: object) -> Any:
        await asyncio.Event().wait()

    async def prepare(self, request: object) -> Any:
        return type("Prepared", (), {"refused": None})()

    def drain(self) -> None:
        """Nothing to end."""

    def put(self, settled: Any) -> None:
        self.outcomes.append(settled.outcome)

    async def flush(self) -> None:
        """All is kept already."""


def test_a_worker_that_ends_during_a_pause_gives_its_documents_back_at_once() -> None:
    """Nothing is in flight, so the drain waits for nothing, however long it might (A9)."""
    parts = PausedProvider()

    async def main() -> None:
        double = cast(Any, parts)
        host = make_host(double, concurrency=5)
        for n in range(10):  # five in slots wait for the quota, five for a slot
            host.accept(Delivery(f"j:{n}", dict(KWARGS, doc=str(n)), {}))
        await asyncio.sleep(5)
        assert parts.outcomes == []
        began = asyncio.get_running_loop().time()
        await host.drain(DRAIN_S)
        assert asyncio.get_running_loop().time() - began == pytest.approx(0, abs=0.1)
        assert len(parts.outcomes) == 10
        assert all(isinstance(outcome, Released) for outcome in parts.outcomes)

    run_virtual(main())


def test_a_document_whose_job_cannot_be_read_waits_for_the_database() -> None:
    """It is neither set aside nor dead: a worker that meets its first document during an outage
    goes on after it (A4)."""
    parts = PausedProvider()

    async def main() -> None:
        double = cast(Any, parts)
        host = make_host(double, concurrency=5, jobs=AwayLedger())
        host.accept(Delivery("j:d", KWARGS, {}))
        await asyncio.sleep(30)
        assert (len(host), parts.outcomes) == (1, [])
        assert catalogue.ADMITTING(0, "api") in set(host.figures("api"))
        await asyncio.sleep(60)
        assert (len(host), parts.outcomes) == (1, [])  # it has its job, and waits for the quota
        assert catalogue.ADMITTING(1, "api") in set(host.figures("api"))
        await host.drain(DRAIN_S)
        assert isinstance(parts.outcomes[0], Released)

    run_virtual(main())


class FreeProvider(PausedProvider):
    """Nothing is limited, but what is done before an item's turn takes its time."""

    def at_once(self, attempt: Attempt) -> None:
        raise AssertionError("a draining worker asked for a turn")

    async def prepare(self, request: object) -> Any:
        await asyncio.sleep(5)
        return await super().prepare(request)

    async def vouch(self, item: Item, job: JobView | None, outcome: Outcome) -> Outcome:
        return outcome


def test_an_item_that_was_prepared_as_the_drain_began_is_released() -> None:
    """It has not begun, so it goes back, even where its turn would come at once."""
    parts = FreeProvider()

    async def main() -> None:
        host = make_host(cast(Any, parts), concurrency=5)
        host.accept(Delivery("j:d", KWARGS, {}))
        await asyncio.sleep(1)
        await host.drain(DRAIN_S)
        assert [type(outcome) for outcome in parts.outcomes] == [Released]

    run_virtual(main())


class EndlessLook(PausedProvider):
    """A provider whose account is held, and a ledger that never says whether the item was fed."""

    async def turn(self, attempt: Attempt, prepared: object) -> Any:
        raise TurnedAway(Parked(pauses=Reason("unauthorized", By.PROVIDER)))

    async def vouch(self, item: Item, job: JobView | None, outcome: Outcome) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError("it never ends")


def test_an_item_that_is_being_turned_away_is_released_by_a_drain() -> None:
    """While the ledger is asked whether a feed sent it, nothing of it is counted, and it goes back
    like any other."""
    parts = EndlessLook()

    async def main() -> None:
        host = make_host(cast(Any, parts))
        host.accept(Delivery("j:d", KWARGS, {}))
        await asyncio.sleep(5)
        assert (len(host), parts.outcomes) == (1, [])
        await host.drain(1.0)
        assert len(host) == 0
        assert [type(outcome) for outcome in parts.outcomes] == [Released]

    run_virtual(main())
