"""The workers that a door sees, and how it refuses a call that none of them takes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock_gateway.direct import fleet as module
from penstock_gateway.direct.fleet import Fleet
from penstock_gateway.refused import Refused
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import WorkerSeen

CHAT = "/v1/chat/completions"


class Hot:
    """A ledger of the workers that are there."""

    def __init__(self) -> None:
        self.there: list[WorkerSeen] = []

    def workers(self) -> list[WorkerSeen]:
        return self.there


class Door:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hot, self.now = Hot(), 0.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        settings = GatewaySettings.load(gateway={"direct": {"lanes": ["api", "embed"]}})
        backend = SimpleNamespace(settings=settings, run=self._run)
        self.fleet = Fleet(cast(Any, backend), lambda: cast(Any, self.hot))

    async def _run(self, work: Callable[[], Any]) -> Any:
        return work()

    async def says(self, *lanes: str) -> str:
        """Return the lane of a call after these workers were seen, or why it is refused."""
        self.now += 20
        self.hot.there = [WorkerSeen(lane, 0.0, {"lane": lane}) for lane in lanes]
        try:
            return (await self.fleet.way_for("m", CHAT)).lane
        except Refused as refused:
            return f"{refused.status} {refused.code}"


async def test_a_worker_that_was_there_a_moment_ago_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis has forgotten all heartbeats, and that of another lane is the first to be back: the
    call is to be tried again, until the worker has been away for long."""
    door = Door(monkeypatch)
    assert await door.says("api", "embed") == "api"
    assert await door.says("embed") == "503 no_worker"
    assert await door.says() == "503 no_worker"
    assert await door.says("embed", "api") == "api"
    door.now += module.LATELY_S
    assert await door.says("embed") == "400 unsupported"


async def test_a_fleet_that_never_had_such_a_worker_refuses_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trying again would not help there."""
    assert await Door(monkeypatch).says("embed") == "400 unsupported"
