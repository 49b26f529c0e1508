"""`/v1/messages/batches` by Anthropic's own client, unmodified, against a real door and a real
fleet."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types.messages import MessageBatch
from batch_door import BatchDoor, batch_door
from fleet import Fleet, until

from penstock_producer.job.provider_facts import ProviderFacts

CLAUDE = "claude"


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchDoor]:
    settings = {"providers__claude__kind": "anthropic"}
    with Fleet(tmp_path_factory.mktemp("messages"), settings=settings) as fleet:
        settings["providers__claude__base_url"] = fleet.provider.root
        fleet.provider.start("--latency-ms", "20", "--latency-sigma", "0")
        fleet.control()
        fleet.ready(fleet.worker(64))
        claude = {CLAUDE: ProviderFacts(kind="anthropic", base_url=fleet.provider.root)}
        with batch_door(fleet, claude) as doors, fleet.explained():
            yield doors


@pytest.fixture
def client(doors: BatchDoor) -> Iterator[anthropic.Anthropic]:
    doors.fleet.provider.tell(latency_ms=20, poison_rate=0)
    with anthropic.Anthropic(base_url=doors.url, api_key="none", max_retries=0) as client:
        yield client


def asked(name: str, number: int, **params: Any) -> Any:
    messages = [{"role": "user", "content": f"review {number}"}]
    return {
        "custom_id": f"{name}-{number}",
        "params": {"model": "sim", "max_tokens": 20, "messages": messages} | params,
    }


def ended(client: anthropic.Anthropic, batch_id: str) -> MessageBatch:
    found: list[MessageBatch] = []

    def over() -> bool:
        found[:] = [client.messages.batches.retrieve(batch_id)]
        counts = found[0].request_counts
        assert counts.processing >= 0
        return found[0].processing_status == "ended"

    until(over, 60, "the message batch has ended")
    return found[0]


def results(client: anthropic.Anthropic, batch_id: str) -> dict[str, Any]:
    lines = list(client.messages.batches.results(batch_id))
    found = {line.custom_id: line.result for line in lines}
    assert len(found) == len(lines)
    return found


def test_requests_in_one_body_are_answered(doors: BatchDoor, client: anthropic.Anthropic) -> None:
    """Created, ended, read: a message for each request, counts that add up, and times as Anthropic
    writes them."""
    made = client.messages.batches.create(requests=[asked("doc", n) for n in range(200)])
    assert (made.id[:9], made.type, made.processing_status) == (
        "msgbatch_",
        "message_batch",
        "in_progress",
    )
    assert made.request_counts.processing == 200
    assert (made.results_url, made.ended_at) == (None, None)
    assert round((made.expires_at - made.created_at).total_seconds()) == 86_400
    over = ended(client, made.id)
    assert (over.request_counts.succeeded, over.request_counts.processing) == (200, 0)
    assert over.results_url == f"{doors.url}/v1/messages/batches/{made.id}/results"
    found = results(client, made.id)
    assert found.keys() == {f"doc-{n}" for n in range(200)}
    assert all(
        result.type == "succeeded" and result.message.role == "assistant"
        for result in found.values()
    )
    assert all(result.message.usage.output_tokens > 0 for result in found.values())


def test_a_request_that_is_refused_is_errored(
    doors: BatchDoor, client: anthropic.Anthropic
) -> None:
    """What the provider refuses, and what cannot be sent at all, is a result of that request
    alone."""
    doors.fleet.provider.tell(poison_rate=1)
    bad = asked("bad", 1)
    del bad["params"]["max_tokens"]
    made = client.messages.batches.create(
        requests=[asked("bad", 0), bad, asked("bad", 2, stream=True)]
    )
    assert ended(client, made.id).request_counts.errored == 3
    found = results(client, made.id)
    assert {(result.type, result.error.type) for result in found.values()} == {("errored", "error")}
    assert not any("/" in result.error.error.message.partition(":")[0] for result in found.values())
    assert all(result.error.error.message for result in found.values())
    assert [found[f"bad-{n}"].error.error.type for n in (1, 2)] == ["invalid_request_error"] * 2


def test_a_cancelled_message_batch_keeps_what_it_has(
    doors: BatchDoor, client: anthropic.Anthropic
) -> None:
    """Canceling, then ended: results of what was under way, `canceled` for the rest; it may be
    deleted then, with all of it."""
    doors.fleet.provider.tell(latency_ms=400)
    made = client.messages.batches.create(requests=[asked("stop", n) for n in range(400)])
    until(
        lambda: client.messages.batches.retrieve(made.id).request_counts.succeeded > 0,
        30,
        "some are answered",
    )
    with pytest.raises(anthropic.BadRequestError, match="in progress"):
        client.messages.batches.delete(made.id)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{doors.url}/v1/messages/batches/{made.id}/results")
    assert json.loads(refused.value.read())["error"]["type"] == "not_found_error"
    stopped = client.messages.batches.cancel(made.id)
    assert (stopped.processing_status, stopped.cancel_initiated_at is not None) == (
        "canceling",
        True,
    )
    counts = ended(client, made.id).request_counts
    kinds = [result.type for result in results(client, made.id).values()]
    assert (kinds.count("succeeded"), kinds.count("canceled")) == (
        counts.succeeded,
        counts.canceled,
    )
    assert len(kinds) == 400
    assert min(counts.succeeded, counts.canceled) > 0
    with pytest.raises(anthropic.BadRequestError, match="already ended"):
        client.messages.batches.cancel(made.id)
    assert client.messages.batches.delete(made.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(made.id)


def test_a_body_that_is_no_batch_is_refused_at_once(
    doors: BatchDoor, client: anthropic.Anthropic
) -> None:
    """Ids that come twice or are not Anthropic's, no requests, and other fields: 400 with the
    place, and no file stays."""
    twice = [asked("a", 0), asked("a", 0)]
    for requests, place in (
        (twice, "requests.1.custom_id"),
        ([], "requests"),
        ([asked("a b", 0)], "requests.0.custom_id"),
    ):
        with pytest.raises(anthropic.BadRequestError, match=place):
            client.messages.batches.create(requests=requests)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve("msgbatch_" + "x" * 27)


def test_message_batches_are_listed_page_by_page(
    doors: BatchDoor, client: anthropic.Anthropic
) -> None:
    """The newest first, after and before an id."""
    made = [client.messages.batches.create(requests=[asked("page", 0)]).id for _ in range(3)]
    first = client.messages.batches.list(limit=2)
    assert ([one.id for one in first.data], first.has_more) == ([made[2], made[1]], True)
    assert (first.first_id, first.last_id) == (made[2], made[1])
    assert client.messages.batches.list(limit=1, after_id=made[1]).data[0].id == made[0]
    assert client.messages.batches.list(limit=1, before_id=made[1]).data[0].id == made[2]
    assert set(made) <= {one.id for one in client.messages.batches.list(limit=2)}


def test_message_batches_expire(doors: BatchDoor) -> None:
    """When their time is over, requests without an answer are `expired`; a door without such a
    provider takes none."""
    doors.fleet.provider.tell(latency_ms=900, poison_rate=0)
    claude = {CLAUDE: doors.settings.providers[CLAUDE]}
    with (
        batch_door(doors.fleet, claude, messages_window_s=2.5) as short,
        anthropic.Anthropic(base_url=short.url, api_key="none", max_retries=0) as client,
    ):
        made = client.messages.batches.create(requests=[asked("late", n) for n in range(400)])
        counts = ended(client, made.id).request_counts
        kinds = [result.type for result in results(client, made.id).values()]
        assert (kinds.count("succeeded"), kinds.count("expired")) == (
            counts.succeeded,
            counts.expired,
        )
        assert len(kinds) == 400
        assert min(counts.succeeded, counts.expired) > 0


def test_a_provider_of_openais_kind_answers_message_batches(doors: BatchDoor) -> None:
    """Without one of Anthropic's: requests and answers are translated, and a request that has no
    equal there is that request's result."""
    with (
        batch_door(doors.fleet) as plain,
        anthropic.Anthropic(base_url=plain.url, api_key="none", max_retries=0) as client,
    ):
        document = [{"role": "user", "content": [{"type": "document", "source": {}}]}]
        requests = [asked("doc", n) for n in range(20)] + [asked("odd", 0, messages=document)]
        over = ended(client, client.messages.batches.create(requests=requests).id)
        assert (over.request_counts.succeeded, over.request_counts.errored) == (20, 1)
        found = results(client, over.id)
        odd = found.pop("odd-0")
        assert "content[0].type" in odd.error.error.message
        assert odd.error.error.type == "invalid_request_error"
        assert {one.message.stop_reason for one in found.values()} <= {"end_turn", "max_tokens"}
        assert all(one.message.content[0].text for one in found.values())
        assert all(one.message.usage.output_tokens for one in found.values())
