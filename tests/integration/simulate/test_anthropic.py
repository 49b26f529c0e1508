"""Anthropic's Messages and Message Batches of the simulated provider, as the unmodified `anthropic`
SDK meets them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anthropic
import pytest
from anthropic import AsyncAnthropic
from anthropic.types.messages import MessageBatch

from penstock_simulate import SimulatorConfig
from penstock_simulate.web import running

FAST = {"batch_s": 0.0, "batch_step_s": 0.0, "latency_ms": 0.0}
ASK: dict[str, Any] = {
    "model": "sim-small",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Read it."}],
}
LONG = "A file is read from the archive. " * 200


@asynccontextmanager
async def sdk(**config: Any) -> AsyncIterator[AsyncAnthropic]:
    async with (
        running(SimulatorConfig(**{**FAST, **config})) as url,
        AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client,
    ):
        yield client


def requests(number: int) -> list[Any]:
    texts = [f"Read file {at}." for at in range(number)]
    asked = [{**ASK, "messages": [{"role": "user", "content": text}]} for text in texts]
    return [{"custom_id": f"doc-{at}", "params": params} for at, params in enumerate(asked)]


async def ended(client: AsyncAnthropic, batch: MessageBatch) -> MessageBatch:
    async with asyncio.timeout(20):
        while batch.processing_status != "ended":
            await asyncio.sleep(0.01)
            batch = await client.messages.batches.retrieve(batch.id)
    return batch


async def results(client: AsyncAnthropic, batch: MessageBatch) -> dict[str, Any]:
    return {
        line.custom_id: line.result
        async for line in await client.messages.batches.results(batch.id)
    }


async def control(client: AsyncAnthropic, **settings: Any) -> None:
    await client.post(str(client.base_url.join("/control")), body=settings, cast_to=object)


async def test_a_message_is_answered_in_real_time() -> None:
    """The answer, its usage and its headers are those that the SDK reads."""
    async with sdk(rpm=600, itpm=60_000, otpm=60_000) as client:
        raw = await client.messages.with_raw_response.create(**ASK)
        message = await raw.parse()
        assert message.id.startswith("msg_")
        assert (message.stop_reason, message.role) == ("end_turn", "assistant")
        assert message.content[0].type == "text"
        assert message.usage.input_tokens > 0
        assert message.usage.output_tokens > 0
        assert raw.headers["request-id"].startswith("req_")
        assert raw.headers["anthropic-ratelimit-requests-limit"] == "600"
        assert raw.headers["anthropic-ratelimit-input-tokens-limit"] == "60000"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"max_tokens": 1}, "max_tokens"),
        ({"stop_sequences": ["Summary"]}, "stop_sequence"),
        (
            {
                "tools": [
                    {
                        "name": "file",
                        "input_schema": {
                            "type": "object",
                            "properties": {"n": {"type": "integer"}},
                        },
                    }
                ],
                "tool_choice": {"type": "tool", "name": "file"},
            },
            "tool_use",
        ),
    ],
)
async def test_answers_end_for_the_reasons_that_the_api_has(
    given: dict[str, Any], reason: str
) -> None:
    """Cut by max_tokens, ended by a stop sequence, or the use of a tool that was asked for."""
    async with sdk() as client:
        message = await client.messages.create(**ASK | given)
    assert message.stop_reason == reason
    if reason == "tool_use":
        assert message.content[0].type == "tool_use"
        assert message.content[0].input == {"n": 1}
    if reason == "stop_sequence":
        assert message.stop_sequence == "Summary"


async def test_a_declined_document_is_answered_with_a_refusal() -> None:
    """Poisoned documents get a 400, or a 200 whose stop reason is `refusal`."""
    reasons = []
    async with sdk(poison_rate=1) as client:
        for at in range(12):
            try:
                message = await client.messages.create(
                    **ASK, extra_headers={"X-Client-Request-Id": f"j:{at}"}
                )
                reasons.append(message.stop_reason)
            except anthropic.BadRequestError:
                reasons.append(None)
    assert set(reasons) == {None, "refusal"}


async def test_a_marked_prompt_is_written_to_the_cache_and_then_read() -> None:
    """Both are counted apart from the other input; a short prompt is not cached."""
    marked: Any = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
    async with sdk() as client:
        first = (await client.messages.create(**ASK, system=marked)).usage
        second = (await client.messages.create(**ASK, system=marked)).usage
        short: Any = [{**marked[0], "text": "Short."}]
        third = (await client.messages.create(**ASK, system=short)).usage
    written = first.cache_creation_input_tokens or 0
    assert written >= 1024
    assert first.cache_read_input_tokens == 0
    assert (second.cache_creation_input_tokens, second.cache_read_input_tokens) == (0, written)
    assert first.input_tokens == second.input_tokens < 10
    assert (third.cache_creation_input_tokens, third.cache_read_input_tokens) == (0, 0)


async def test_tokens_read_from_the_cache_do_not_count_against_the_limit() -> None:
    """With input tokens for one prompt in the bucket, the second is answered because it is read
    from the cache."""
    marked: Any = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
    async with sdk(itpm=2000, depth_s=60) as client:
        await client.messages.create(**ASK, system=marked)
        await client.messages.create(**ASK, system=marked)
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.create(**ASK, system=LONG + "else")


async def test_errors_are_in_anthropics_words() -> None:
    """Each has its type and the id of the request; what is a 503 elsewhere is a 529 here."""
    async with sdk(api_key="k") as client:
        for kind, status, error_type in (
            ("server_is_overloaded", 529, "overloaded_error"),
            ("rate_limit_exceeded", 429, "rate_limit_error"),
            ("server_error", 500, "api_error"),
            ("permission_denied", 403, "permission_error"),
            ("billing_error", 402, "billing_error"),
        ):
            await control(client, refuse={"kind": kind, "calls": 1})
            with pytest.raises(anthropic.APIStatusError) as caught:
                await client.messages.create(**ASK)
            body: Any = caught.value.body
            assert (caught.value.status_code, body["type"], body["error"]["type"]) == (
                status,
                "error",
                error_type,
            )
            assert body["request_id"] == caught.value.response.headers["request-id"]
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="other").messages.create(**ASK)
        async with aiohttp.ClientSession(str(client.base_url), headers={"x-api-key": "k"}) as plain:
            for path in ("/v1/messages", "/v1/messages/batches"):
                async with plain.post(path, json=ASK) as answer:
                    assert answer.status == 400
                    assert "anthropic-version" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 0},
        {"messages": []},
        {"messages": [{"role": "system", "content": "x"}]},
        {"model": ""},
    ],
)
async def test_a_message_that_cannot_be_used_is_refused(change: dict[str, Any]) -> None:
    """With a 400 that says which field."""
    async with sdk() as client:
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(**ASK | change)


async def test_a_batch_tells_nothing_until_it_has_ended() -> None:
    """All of its requests are processing however far it is; then every one has a result, in any
    order."""
    async with sdk(batch_s=0.3) as client:
        batch = await client.messages.batches.create(requests=requests(100))
        assert batch.id.startswith("msgbatch_")
        await asyncio.sleep(0.15)
        batch = await client.messages.batches.retrieve(batch.id)
        assert batch.processing_status == "in_progress"
        assert batch.request_counts.to_dict() == counted(processing=100)
        assert batch.results_url is None
        with pytest.raises(anthropic.NotFoundError):
            await results_raw(client, batch)
        batch = await ended(client, batch)
        assert batch.request_counts.to_dict() == counted(succeeded=100)
        assert batch.ended_at is not None
        assert batch.ended_at >= batch.created_at
        found = await results(client, batch)
    assert list(found) != [f"doc-{at}" for at in range(100)]
    assert sorted(found) == sorted(f"doc-{at}" for at in range(100))
    assert {result.message.stop_reason for result in found.values()} == {"end_turn"}
    assert found["doc-1"].message.usage.service_tier == "batch"


async def test_requests_of_a_batch_fail_alone() -> None:
    """Those that the model refuses or that were wrong are `errored`, each with its type and the id
    of its request."""
    given = [
        *requests(200),
        {"custom_id": "wrong", "params": {"model": "sim-small", "messages": []}},
    ]
    async with sdk(error_rate=0.1, overload_rate=0.1, hang_rate=0.1, poison_rate=0.1) as client:
        batch = await ended(client, await client.messages.batches.create(requests=given))
        found = await results(client, batch)
    errored = {ident: result.error for ident, result in found.items() if result.type == "errored"}
    assert batch.request_counts.errored == len(errored)
    assert batch.request_counts.succeeded == 201 - len(errored)
    assert {error.error.type for error in errored.values()} == {
        "api_error",
        "overloaded_error",
        "timeout_error",
        "invalid_request_error",
    }
    assert errored["wrong"].error.type == "invalid_request_error"
    assert all(error.request_id.startswith("req_") for error in errored.values())


@pytest.mark.parametrize(
    "given",
    [
        [],
        [{"custom_id": "a b", "params": ASK}],
        [{"custom_id": "x" * 65, "params": ASK}],
        [{"custom_id": "a", "params": ASK}, {"custom_id": "a", "params": ASK}],
        [{"custom_id": "a"}],
    ],
)
async def test_a_batch_that_cannot_be_is_refused_at_once(given: Sequence[Any]) -> None:
    """Ids that do not fit, ids that come twice, and batches without requests; nothing of it is
    created."""
    async with sdk() as client:
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.batches.create(requests=given)
        assert (await client.messages.batches.list()).data == []


async def test_an_expired_batch_keeps_what_was_done() -> None:
    """Half has succeeded, and each other request has expired."""
    async with sdk(batch_expired_share=1) as client:
        batch = await ended(client, await client.messages.batches.create(requests=requests(50)))
        assert batch.request_counts.to_dict() == counted(succeeded=25, expired=25)
        found = await results(client, batch)
    assert sorted(result.type for result in found.values()) == ["expired"] * 25 + ["succeeded"] * 25


async def test_a_cancelled_batch_is_canceling_first() -> None:
    """It ends with what was done by then; one that has ended can be deleted, and not cancelled any
    more."""
    async with sdk(batch_s=3600, batch_step_s=0.1) as client:
        batch = await client.messages.batches.create(requests=requests(10))
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.batches.delete(batch.id)
        assert (await client.messages.batches.cancel(batch.id)).processing_status == "canceling"
        batch = await ended(client, batch)
        assert batch.request_counts.to_dict() == counted(canceled=10)
        assert batch.cancel_initiated_at is not None
        assert {result.type for result in (await results(client, batch)).values()} == {"canceled"}
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.batches.cancel(batch.id)
        assert (await client.messages.batches.delete(batch.id)).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(batch.id)


async def test_a_creation_may_work_and_answer_500() -> None:
    """The batch is in the list all the same."""
    async with sdk(batch_create_500_share=1) as client:
        with pytest.raises(anthropic.InternalServerError):
            await client.messages.batches.create(requests=requests(3))
        found = [batch async for batch in client.messages.batches.list()]
    assert [
        batch.request_counts.processing + batch.request_counts.succeeded for batch in found
    ] == [3]


async def test_requests_in_the_queue_are_capped() -> None:
    """A batch above the cap gets a 429; there is room again once the first has ended."""
    async with sdk(batch_enqueued_requests=15, batch_s=3600) as client:
        first = await client.messages.batches.create(requests=requests(10))
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.batches.create(requests=requests(6))
        await client.messages.batches.cancel(first.id)
        await ended(client, first)
        await client.messages.batches.create(requests=requests(6))


async def test_lists_go_both_ways() -> None:
    """The newest first; `after_id` goes to older ones and `before_id` to newer ones."""
    async with sdk() as client:
        made = [(await client.messages.batches.create(requests=requests(1))).id for _ in range(5)]
        newest = made[::-1]
        page = await client.messages.batches.list(limit=2)
        assert ([batch.id for batch in page.data], page.has_more) == (newest[:2], True)
        assert [batch.id async for batch in client.messages.batches.list(limit=2)] == newest
        page = await client.messages.batches.list(limit=2, before_id=newest[3])
        assert ([batch.id for batch in page.data], page.has_more) == (newest[1:3], True)


async def test_a_batch_reads_its_shared_prompt_from_the_cache() -> None:
    """One request writes the marked beginning, and the others read it."""
    marked = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
    given: list[Any] = [
        {"custom_id": f"d{at}", "params": {**ASK, "system": marked, "top_k": at}} for at in range(5)
    ]
    async with sdk() as client:
        batch = await ended(client, await client.messages.batches.create(requests=given))
        used = [result.message.usage for result in (await results(client, batch)).values()]
    assert sorted(usage.cache_creation_input_tokens > 0 for usage in used) == [False] * 4 + [True]
    assert sorted(usage.cache_read_input_tokens > 0 for usage in used) == [False] + [True] * 4


def counted(**given: int) -> dict[str, int]:
    return dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0) | given


async def results_raw(client: AsyncAnthropic, batch: MessageBatch) -> None:
    """The SDK refuses to ask for results before there is an address for them."""
    path = f"/v1/messages/batches/{batch.id}/results"
    await client.get(path, cast_to=object)
