"""When a worker's heart beats: every few seconds, and at once when there is something to say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from penstock_ledger import RedisLedger
from penstock_workers import heartbeat as subject
from penstock_workers.heartbeat import Heartbeat


class Hot:
    """Redis, as far as a heartbeat writes to it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.fails = False

    def heartbeat(self, worker: str, info: Mapping[str, str]) -> None:
        self.said.append(f"{worker} {info['state']}")
        if self.fails:
            raise ConnectionError("Redis is away")

    def as_ledger(self) -> RedisLedger:
        return cast("RedisLedger", self)


async def beats(hot: Hot, number: int) -> None:
    async with asyncio.timeout(5):
        while len(hot.said) < number:  # noqa: ASYNC110 - a thread writes it
            await asyncio.sleep(0)


async def test_a_model_that_is_up_is_announced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next beat does not wait for the interval, whatever the one before came to, and none is
    sent after the end (H14)."""
    monkeypatch.setattr(subject, "INTERVAL_S", 3600.0)
    hot, state = Hot(), {"state": "loads"}
    heart = Heartbeat(hot.as_ledger(), "w", lambda: dict(state))
    hot.fails = True
    heart.beat()
    await beats(hot, 1)
    state["state"] = "serves"
    hot.fails = False
    heart.beat()
    await beats(hot, 2)
    await heart.stop()
    assert hot.said == ["w loads", "w serves"]


async def test_it_beats_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while what it should note besides cannot be noted."""
    monkeypatch.setattr(subject, "INTERVAL_S", 0.0)
    hot = Hot()

    def besides() -> None:
        raise ConnectionError("Redis is away")

    heart = Heartbeat(hot.as_ledger(), "w", lambda: {"state": "lives"}, besides)
    heart.beat()
    await beats(hot, 3)
    await heart.stop()
