"""What a door counts, and who may read it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from doors import asked, door, door_settings, new_key
from metrics_page import read, value
from servers import RedisServer

from penstock_gateway.metrics import CATALOGUE


@pytest.fixture
def url(tmp_path: Path, redis_server: RedisServer) -> Iterator[str]:
    with door(door_settings(tmp_path, redis_server.url)) as url:
        yield url


def test_a_door_counts_what_it_answers(url: str) -> None:
    """Requests by route and status, refusals by code, connections, background work: every metric of
    the catalogue is there."""
    for path in ("/health", "/health", "/v1/nothing", "/v1/nothing-else", "/health?api_key=x"):
        asked(f"{url}{path}")
    asked(f"{url}/v1/nothing", b"[1]", content_type="application/json")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    with pytest.raises(openai.APIStatusError):
        # there is no worker
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    page = read(asked(f"{url}/metrics").body.decode())
    assert value(page, "penstock_door_uploads_total") == 1
    assert value(page, "penstock_door_uploaded_bytes_total") == 3
    assert value(page, "penstock_door_calls_total", outcome="refused") == 1
    assert (
        value(page, "penstock_door_call_seconds_count"),
        value(page, "penstock_door_calls_waiting"),
    ) == (1, 0)
    assert (
        value(page, "penstock_door_requests_total", route="/health", method="GET", status="200")
        == 2
    )
    assert (
        value(page, "penstock_door_requests_total", route="unmatched", method="GET", status="404")
        == 2
    )
    assert value(page, "penstock_door_refused_total", code="key_in_url") == 1
    assert value(page, "penstock_door_received_bytes_total", route="unmatched") == 3
    assert value(page, "penstock_door_requests_in_flight") == 1
    assert value(page, "penstock_door_connections") >= 1
    assert value(page, "penstock_door_task_failures_total", task="RenewAdmissions") == 0
    # those whose first round is at the start
    for task in ("FileCleaning", "BatchStates", "WebhookSending", "CloseOldCalls"):
        assert (
            value(page, "penstock_door_task_round_timestamp_seconds", task=task) > time.time() - 60
        )
    there = {
        name for metric in CATALOGUE for name in (metric.name, f"{metric.name}_count")
    } & page.keys()
    assert len(there) == len(CATALOGUE)


def test_metrics_need_the_key_of_an_administrator(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    """401 without a key, 403 with another one."""
    settings = door_settings(tmp_path, redis_server.url)
    reader, admin = new_key(settings, "a", "read"), new_key(settings, None, "admin")
    with door(settings) as url:
        assert asked(f"{url}/metrics").status == 401
        assert asked(f"{url}/metrics", x_api_key=reader).status == 403
        assert asked(f"{url}/metrics", x_api_key=admin).status == 200
