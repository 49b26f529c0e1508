"""What a door counts, and who may read it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from doors import asked, door, door_process, door_settings, new_key
from metrics_page import read, value
from otlp import ENDPOINT, Collector
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


def test_a_door_sends_what_it_has_counted_as_it_ends(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At SIGTERM a collector gets, by OTLP, what the page showed, and the door ends as without
    one."""
    with Collector() as collector:
        for name, said in {
            ENDPOINT: collector.url,
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_METRIC_EXPORT_INTERVAL": "3600000",
        }.items():
            monkeypatch.setenv(name, said)
        with door_process(door_settings(tmp_path, redis_server.url)) as (url, process):
            asked(f"{url}/v1/nothing")
            page = read(asked(f"{url}/metrics").body.decode())
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        (report,) = collector.figures()["penstock-gateway"]
    sent = report.page()
    assert sent.keys() == {name for name in page if not name.endswith("_created")}
    refused = "penstock_door_refused_total"
    assert sent[refused] == page[refused]
    assert value(sent, "penstock_door_requests_total", route="/metrics", method="GET", status="200")
