"""Gemini's files, batches and generateContent of the simulated provider, as the unmodified
`google-genai` SDK meets them."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from google.genai import Client, errors
from google.genai.client import AsyncClient
from google.genai.types import BatchJob, HttpOptions

from penstock_simulate import SimulatorConfig
from penstock_simulate.web import running

FAST = {"batch_s": 0.0, "batch_step_s": 0.0, "latency_ms": 0.0}
MODEL = "sim-small"
OVER = {f"JOB_STATE_{word}" for word in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")}


@asynccontextmanager
async def sdk(**config: Any) -> AsyncIterator[AsyncClient]:
    async with running(SimulatorConfig(**{**FAST, **config})) as url, sdk_of(url) as client:
        yield client


def sdk_of(url: str) -> AsyncClient:
    return Client(api_key="k", http_options=HttpOptions(base_url=url, api_version="v1beta")).aio


def asked(text: str) -> dict[str, Any]:
    return {"contents": [{"parts": [{"text": text}], "role": "user"}]}


def lines(number: int) -> list[str]:
    return [
        json.dumps({"key": f"doc-{at}", "request": asked(f"Read {at}.")}) for at in range(number)
    ]


async def created(client: AsyncClient, given: Sequence[str], name: str = "tag") -> BatchJob:
    raw = io.BytesIO("".join(line + "\n" for line in given).encode())
    file = await client.files.upload(
        file=raw, config={"mime_type": "application/jsonl", "display_name": name}
    )
    return await client.batches.create(
        model=MODEL, src=file.name or "", config={"display_name": name}
    )


async def until_over(client: AsyncClient, batch: BatchJob) -> BatchJob:
    async with asyncio.timeout(20):
        while state(batch) not in OVER:
            await asyncio.sleep(0.01)
            batch = await client.batches.get(name=batch.name or "")
    return batch


def state(batch: BatchJob) -> str:
    assert batch.state is not None
    return batch.state.value


async def operation(batch: BatchJob, url: str) -> Any:
    """The SDK does not show an operation's error."""
    async with (
        aiohttp.ClientSession(headers={"x-goog-api-key": "k"}) as session,
        session.get(f"{url}/v1beta/{batch.name}") as response,
    ):
        return await response.json()


async def results(client: AsyncClient, batch: BatchJob) -> list[dict[str, Any]]:
    assert batch.dest is not None
    assert batch.dest.file_name is not None
    raw = await client.files.download(file=batch.dest.file_name)
    return [json.loads(line) for line in raw.splitlines()]


async def test_content_is_generated_in_real_time() -> None:
    """The answer, its usage and why it ended are as the SDK reads them."""
    async with sdk() as client:
        answer = await client.models.generate_content(model=MODEL, contents="Read the file.")
        assert answer.text is not None
        assert answer.text.startswith("Category: files")
        assert answer.usage_metadata is not None
        assert answer.usage_metadata.prompt_token_count == 4
        short = await client.models.generate_content(
            model=MODEL, contents="Read it.", config={"max_output_tokens": 1}
        )
        assert short.candidates is not None
        assert str(short.candidates[0].finish_reason) == "FinishReason.MAX_TOKENS"
        schema = {"type": "OBJECT", "properties": {"pages": {"type": "INTEGER"}}}
        shaped = await client.models.generate_content(
            model=MODEL,
            contents="x",
            config={"response_mime_type": "application/json", "response_schema": schema},
        )
        assert json.loads(shaped.text or "") == {"pages": 1}


async def test_a_batch_from_a_file_to_its_deletion() -> None:
    """Every key has its response once, in a file that can be downloaded; then both can be
    deleted."""
    async with sdk() as client:
        batch = await created(client, lines(100), name="tag-1")
        assert (batch.name or "").startswith("batches/")
        batch = await until_over(client, batch)
        assert (state(batch), batch.display_name, batch.model) == (
            "JOB_STATE_SUCCEEDED",
            "tag-1",
            f"models/{MODEL}",
        )
        found = await results(client, batch)
        assert [line["key"] for line in found] != [f"doc-{at}" for at in range(100)]
        assert {line["key"] for line in found} == {f"doc-{at}" for at in range(100)}
        assert all(line["response"]["candidates"][0]["finishReason"] == "STOP" for line in found)
        assert batch.dest is not None
        await client.files.delete(name=batch.dest.file_name or "")
        await client.batches.delete(name=batch.name or "")
        with pytest.raises(errors.ClientError) as caught:
            await client.batches.get(name=batch.name or "")
        assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")


async def test_requests_in_the_call_are_answered_in_their_order() -> None:
    """With their metadata, and with an error in the place of an answer where the model refused."""
    given: Any = [{**asked(f"Read {at}."), "metadata": {"key": f"doc-{at}"}} for at in range(40)]
    async with sdk(error_rate=0.3) as client:
        batch = await until_over(client, await client.batches.create(model=MODEL, src=given))
        assert batch.dest is not None
        found = batch.dest.inlined_responses or []
    assert [response.metadata for response in found] == [{"key": f"doc-{at}"} for at in range(40)]
    wrong = [response.error for response in found if response.error is not None]
    assert 3 < len(wrong) < 25
    assert {error.code for error in wrong} == {13}
    assert all(response.response is not None for response in found if response.error is None)


async def test_a_large_upload_goes_in_pieces() -> None:
    """The SDK sends 8 MB at a time; the file has all of them."""
    raw = io.BytesIO(b"x" * (9 * 1024 * 1024))
    async with sdk() as client:
        file = await client.files.upload(file=raw, config={"mime_type": "text/plain"})
        assert file.size_bytes == 9 * 1024 * 1024
        assert [one.name async for one in await client.files.list()] == [file.name]
        with pytest.raises(errors.ClientError):
            await client.files.download(file=file.name or "")


async def test_a_line_that_is_no_request_fails_the_batch() -> None:
    """The operation has an error that names the line; requests in the call are refused at once."""
    async with running(SimulatorConfig(batch_s=0, batch_step_s=0)) as url, sdk_of(url) as client:
        batch = await until_over(client, await created(client, [*lines(2), "{half"]))
        assert state(batch) == "JOB_STATE_FAILED"
        assert "Line 3" in (await operation(batch, url))["error"]["message"]


async def test_an_expired_batch_has_no_results() -> None:
    """Unlike those of other providers, as Gemini's documentation says."""
    async with sdk(batch_expired_share=1) as client:
        batch = await until_over(client, await created(client, lines(10)))
        assert state(batch) == "JOB_STATE_EXPIRED"
        assert batch.dest is None


async def test_a_cancelled_batch_keeps_what_was_done() -> None:
    """Each request that it did not get to has an error."""
    async with sdk(batch_s=3600) as client:
        batch = await created(client, lines(10))
        await client.batches.cancel(name=batch.name or "")
        batch = await until_over(client, batch)
        assert state(batch) == "JOB_STATE_CANCELLED"
        assert [line["error"]["code"] for line in await results(client, batch)] == [1] * 10


async def test_tokens_in_the_queue_are_capped() -> None:
    """A batch above the cap gets a 429 with Google's status."""
    async with sdk(batch_enqueued_tokens=30, batch_s=3600) as client:
        await created(client, lines(10))
        with pytest.raises(errors.ClientError) as caught:
            await created(client, lines(10))
        assert (caught.value.code, caught.value.status) == (429, "RESOURCE_EXHAUSTED")


async def test_a_creation_may_work_and_answer_500() -> None:
    """The batch is in the list with its display name, so it can be adopted."""
    async with sdk(batch_create_500_share=1) as client:
        with pytest.raises(errors.ServerError):
            await created(client, lines(2), name="lost")
        found = [batch async for batch in await client.batches.list()]
    assert [batch.display_name for batch in found] == ["lost"]


async def test_lists_have_pages() -> None:
    """The newest first, and all of them by the SDK's iteration."""
    async with sdk() as client:
        made = [(await created(client, lines(1))).name for _ in range(5)]
        found = [batch.name async for batch in await client.batches.list(config={"page_size": 2})]
    assert found == made[::-1]


LONG = "A file is read from the archive. " * 200


async def test_an_explicit_cache_is_made_read_renewed_and_deleted() -> None:
    """The SDK reads its tokens and times; what is behind it reads it for sure, and is refused where
    it says the system text again, asks another model, or comes after it has gone."""
    async with sdk() as client:
        cache = await client.caches.create(
            model=MODEL,
            config={"contents": LONG, "system_instruction": "Read.", "ttl": "60s"},
        )
        assert cache.usage_metadata is not None
        tokens = cache.usage_metadata.total_token_count
        name = cache.name or ""
        ask = client.models.generate_content
        answer = await ask(model=MODEL, contents="Why?", config={"cached_content": name})
        assert answer.usage_metadata is not None
        assert answer.usage_metadata.cached_content_token_count == tokens
        assert (answer.usage_metadata.prompt_token_count or 0) > (tokens or 0)
        assert [one.name async for one in await client.caches.list()] == [name]
        longer = await client.caches.update(name=name, config={"ttl": "600s"})
        assert longer.expire_time is not None
        assert cache.expire_time is not None
        assert (longer.expire_time - cache.expire_time).total_seconds() == pytest.approx(540, abs=5)
        twice: Any = {"cached_content": name, "system_instruction": "Read."}
        other: Any = {"cached_content": name}
        for model, config in ((MODEL, twice), ("another", other)):
            with pytest.raises(errors.ClientError) as refused:
                await ask(model=model, contents="Why?", config=config)
            assert refused.value.code == 400
        await client.caches.delete(name=name)
        with pytest.raises(errors.ClientError, match="CachedContent not found") as gone:
            await ask(model=MODEL, contents="Why?", config={"cached_content": name})
        assert gone.value.code == 403
        with pytest.raises(errors.ClientError, match="Cached content is too small"):
            await client.caches.create(model=MODEL, config={"contents": "Short."})


async def test_an_explicit_cache_is_paid_for_once_and_by_the_hour() -> None:
    """For the time that was asked for, however soon it is deleted."""
    async with (
        running(SimulatorConfig(usd_per_mtok_in=1.0, usd_per_mtok_hour=36.0)) as url,
        sdk_of(url) as client,
        aiohttp.ClientSession() as session,
    ):
        cache = await client.caches.create(model=MODEL, config={"contents": LONG, "ttl": "100s"})
        await client.caches.delete(name=cache.name or "")
        assert cache.usage_metadata is not None
        tokens = cache.usage_metadata.total_token_count or 0
        async with session.get(f"{url}/stats") as stats:
            spent = (await stats.json())["spent_usd"]
        assert spent == pytest.approx(2 * tokens / 1e6, rel=1e-3)
