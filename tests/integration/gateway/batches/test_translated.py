"""Batches in front of providers that have another API: requests and answers are translated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from batch_door import BatchDoor, batch_door, line, read
from fleet import Fleet

from penstock_producer.job.endpoints import Kind
from penstock_producer.job.provider_facts import ProviderFacts

KINDS: tuple[Kind, ...] = ("anthropic", "gemini")
SAY = [{"role": "user", "content": "Say something."}]
MODEL = "sim-small"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    settings: dict[str, str] = {f"providers__{kind}__kind": kind for kind in KINDS}
    with Fleet(tmp_path_factory.mktemp("translated"), settings=settings) as fleet:
        settings |= {f"providers__{kind}__base_url": fleet.provider.root for kind in KINDS}
        fleet.provider.start("--latency-ms", "5", "--latency-sigma", "0")
        fleet.control()
        fleet.ready(fleet.worker(16))
        with fleet.explained():
            yield fleet


@pytest.fixture(params=KINDS)
def doors(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[BatchDoor]:
    """One at a time: each brings forward all batches there are."""
    facts: dict[str, ProviderFacts] = {
        kind: ProviderFacts(kind=kind, base_url=fleet.provider.root) for kind in KINDS
    }
    with batch_door(fleet, facts, provider=request.param) as doors:
        yield doors


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/responses"])
def test_openais_batches_are_answered_by_every_provider(doors: BatchDoor, endpoint: str) -> None:
    """Answers in the output file are in the words of the endpoint, and counted in `usage`; the job
    keeps what the provider gave."""
    client = doors.client()
    body = {"input": "Hi"} if endpoint == "/v1/responses" else {"messages": SAY}
    lines = [line(f"doc-{n}", {"model": MODEL, **body}, endpoint) for n in range(10)]
    batch = doors.wait(client, doors.create(client, lines, endpoint=endpoint).id)
    assert (batch.status, batch.endpoint, batch.errors) == ("completed", endpoint, None)
    answers = [one["response"]["body"] for one in read(client, batch.output_file_id)]
    named = "response" if endpoint == "/v1/responses" else "chat.completion"
    assert [one["object"] for one in answers] == [named] * 10
    assert batch.usage is not None
    assert batch.usage.output_tokens > 0
    stored: Any = [one.json() for one in doors.fleet.producer.results(batch.id)]
    assert all("choices" not in one and one.get("object") != named for one in stored)


def test_a_line_that_has_no_equal_fails_the_batch_by_its_field(doors: BatchDoor) -> None:
    """As any faulty line, with its number; nothing is sent."""
    client = doors.client()
    body = {"model": MODEL, "messages": SAY, "logprobs": True}
    batch = doors.wait(client, doors.create(client, [line("a", body)]).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(one.code, one.line, one.param) for one in batch.errors.data or ()] == [
        ("untranslatable_request", 1, "body.logprobs")
    ]


def test_what_the_provider_refuses_is_an_error_of_openais_shape(doors: BatchDoor) -> None:
    """With the status, and the provider's own words."""
    client = doors.client()
    body = {"model": MODEL, "messages": SAY, "top_p": 0.5}
    doors.fleet.provider.tell(poison_rate=1.0)
    try:
        lines = [line(f"bad-{n}", body) for n in range(20)]
        made = doors.create(client, lines, metadata={"penstock.stop_at_dead": "off"})
        batch = doors.wait(client, made.id)
    finally:
        doors.fleet.provider.tell(poison_rate=0)
    refused = [
        one["response"]["body"]
        for one in read(client, batch.error_file_id)
        if one["response"] is not None and one["response"]["status_code"] == 400
    ]
    assert refused
    assert all(one["error"].keys() == {"message", "type", "param", "code"} for one in refused)
    assert all(json.dumps(one["error"]["message"]) for one in refused)
