"""Streams that wait: bounded for each tenant, ended with their reader, and said to be alive."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from doors import door, door_settings, new_key
from fleet import until
from servers import RedisServer

from penstock_gateway.direct import routes, streams
from penstock_gateway.settings import DirectFields, GatewaySettings
from penstock_ledger import JobStore, Meta, OutcomeStore, RedisLedger, open_database

CALLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    "/v1/messages": {
        "model": "m",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "x"}],
    },
    "/v1/responses": {"model": "m", "input": "x"},
    "/v1/completions": {"model": "m", "prompt": "x"},
}


@pytest.fixture
def settings(tmp_path: Path, redis_server: RedisServer) -> GatewaySettings:
    """A door whose fleet lives, by its heartbeat, and answers nothing."""
    direct = DirectFields(timeout_s=30.0)
    made = door_settings(tmp_path, redis_server.url, tenant_streams=1, direct=direct)
    with contextlib.closing(open_database(made.database_url)) as database:
        database.migrate()
        hot = RedisLedger(redis_server.client(), Meta(database).epoch())
    hot.heartbeat("worker", {"lane": "api"})
    return made


@pytest.fixture
def url(settings: GatewaySettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(routes, "SOON_S", 0.0)
    monkeypatch.setattr(streams, "QUIET_S", 0.05)
    with door(settings) as url:
        yield url


@pytest.mark.parametrize("path", sorted(CALLS))
def test_a_reader_that_goes_away_ends_its_call(
    url: str, settings: GatewaySettings, path: str
) -> None:
    """One stream of a tenant is open, the second is 429; once the reader has gone its document ends
    as `caller_gone`, and there is room for the next."""
    headers = {"authorization": f"Bearer {new_key(settings, 'shop', 'infer')}"}
    asked = {**CALLS[path], "stream": True}
    with httpx2.stream("POST", url + path, json=asked, headers=headers, timeout=20) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        comments = stream.iter_raw()
        assert next(comments) == b": still there\n\n"
        assert next(comments) == b": still there\n\n"
        second = httpx2.post(url + path, json=asked, headers=headers)
        assert second.status_code == 429
        assert b"tenant_streams" in second.content
    with contextlib.closing(open_database(settings.database_url)) as database:
        jobs, outcomes = JobStore(database), OutcomeStore(database)

        def reasons() -> list[str]:
            found = [one for one in jobs.list() if one.job_key.startswith("direct/")]
            return [letter.reason for job in found for letter in outcomes.dead_letters(job.job_id)]

        until(lambda: reasons() == ["caller_gone"], 20, "the call has ended")

    def has_room() -> bool:
        with httpx2.stream("POST", url + path, json=asked, headers=headers, timeout=20) as stream:
            return bool(stream.status_code == 200)

    until(has_room, 20, "there is room for the next")
