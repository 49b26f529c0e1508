"""A door's background work rests until something is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from doors import door_settings

from penstock_gateway import webhook_delivery
from penstock_gateway.backend import Backend
from penstock_gateway.news import LookForNews, News, rest
from penstock_gateway.webhook_delivery import WebhookSending
from penstock_ledger import JobStore, NewEndpoint, NewJob, WebhookStore, open_database


def test_a_door_hears_of_what_another_process_commits(tmp_path: Path) -> None:
    """One look that finds nothing new wakes no work; the one behind a commit does, though it was
    made on another connection and while nothing waited."""

    async def looks() -> list[bool]:
        backend = Backend(door_settings(tmp_path))
        other = open_database(backend.settings.database_url)
        news, heard = News(backend), []
        await news.look()  # the first one knows of none before
        for commits in (False, True, False):
            coming = news.coming
            if commits:
                JobStore(other).create(NewJob("a", "a", {}, {"kind": "spool"}, "digest", None))
            await news.look()
            heard.append(await rest(coming, 0.0))
        news.close()
        other.close()
        await backend.close()
        return heard

    assert asyncio.run(looks()) == [False, True, False]


def test_deliveries_are_looked_for_only_when_one_may_be_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle door asks nothing about its webhooks; a new event is found by its commit, and one
    that waits for another try when its time comes."""
    looks = list[float]()
    looked = asyncio.Event()

    async def until_looked(which: Callable[[float], bool]) -> None:
        async with asyncio.timeout(20.0):
            while not which(looks[-1]):
                looked.clear()
                await looked.wait()

    async def serve() -> None:
        backend = Backend(door_settings(tmp_path))
        store = WebhookStore(backend.database)
        look = WebhookStore.due_in_s

        loop = asyncio.get_running_loop()

        def counted(self: WebhookStore) -> float:
            looks.append(look(self))
            loop.call_soon_threadsafe(looked.set)
            return looks[-1]

        monkeypatch.setattr(WebhookStore, "due_in_s", counted)
        tasks = [
            asyncio.create_task(task.run(backend)) for task in (LookForNews(), WebhookSending())
        ]
        await asyncio.sleep(1.5)  # three looks for news
        idle = len(looks)
        store.add(NewEndpoint("we_1", None, "https://example.invalid/", "whsec_eA==", ["*"]))
        store.test("we_1")
        await until_looked(lambda due_in_s: due_in_s == 0.0)
        await until_looked(lambda due_in_s: 0.0 < due_in_s < 1.0)
        await until_looked(lambda due_in_s: due_in_s == 0.0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await backend.close()
        assert idle <= 2, "one at the start, and one for the first mark"

    monkeypatch.setattr(webhook_delivery, "PAUSES_S", (0.8, 0.8))
    asyncio.run(serve())
