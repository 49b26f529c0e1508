"""OpenAI's Files and Batches of the simulated provider, as the unmodified `openai` SDK meets
them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from penstock_simulate import SimulatorConfig
from penstock_simulate.web import running

FAST = {"batch_s": 0.0, "batch_step_s": 0.0}
OVER = ("completed", "failed", "expired", "cancelled")
CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"


@asynccontextmanager
async def sdk(**config: Any) -> AsyncIterator[AsyncOpenAI]:
    async with (
        running(SimulatorConfig(**{**FAST, **config})) as url,
        AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client,
    ):
        yield client


def line(custom_id: str, url: str = CHAT, **body: Any) -> str:
    request = {
        "model": "sim-small",
        "messages": [{"role": "user", "content": f"Read {custom_id}."}],
        **body,
    }
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": request})


def lines(number: int) -> list[str]:
    return [line(f"doc-{at}") for at in range(number)]


async def uploaded(client: AsyncOpenAI, given: Iterable[str]) -> str:
    raw = "".join(each + "\n" for each in given).encode()
    return (await client.files.create(file=("input.jsonl", raw), purpose="batch")).id


async def created(
    client: AsyncOpenAI, given: Iterable[str], endpoint: Any = CHAT, **more: Any
) -> Batch:
    ident = await uploaded(client, given)
    return await client.batches.create(
        input_file_id=ident, endpoint=endpoint, completion_window="24h", **more
    )


async def until(client: AsyncOpenAI, batch: Batch, statuses: Iterable[str] = OVER) -> Batch:
    async with asyncio.timeout(20):
        while batch.status not in statuses:
            await asyncio.sleep(0.01)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def content(client: AsyncOpenAI, ident: str | None) -> list[dict[str, Any]]:
    assert ident is not None
    return [json.loads(each) for each in (await client.files.content(ident)).text.splitlines()]


async def test_a_batch_from_upload_to_deletion() -> None:
    """Every request is answered once in any order; counts, usage, metadata and files are as the SDK
    reads them."""
    async with sdk() as client:
        batch = await created(client, lines(200), metadata={"penstock": "tag-1"})
        assert batch.id.startswith("batch_")
        assert batch.errors is None
        batch = await until(client, batch)
        assert (batch.status, batch.model, batch.metadata) == (
            "completed",
            "sim-small",
            {"penstock": "tag-1"},
        )
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 200, "completed": 200, "failed": 0}
        assert batch.error_file_id is None
        answers = await content(client, batch.output_file_id)
        ids = [answer["custom_id"] for answer in answers]
        assert sorted(ids) == sorted(f"doc-{at}" for at in range(200))
        assert ids != [f"doc-{at}" for at in range(200)]
        assert all(
            answer["error"] is None and answer["response"]["status_code"] == 200
            for answer in answers
        )
        assert batch.usage is not None
        used = [answer["response"]["body"]["usage"] for answer in answers]
        assert batch.usage.input_tokens == sum(usage["prompt_tokens"] for usage in used)
        assert batch.usage.output_tokens == sum(usage["completion_tokens"] for usage in used)
        assert batch.output_file_id is not None
        listed = [file.id async for file in client.files.list()]
        assert listed == [batch.output_file_id, batch.input_file_id]
        assert (await client.files.retrieve(batch.output_file_id)).purpose == "batch_output"
        assert (await client.files.delete(batch.output_file_id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.content(batch.output_file_id)


async def test_faults_of_the_input_fail_the_batch_by_line() -> None:
    """`create` succeeds; then the batch is failed, with a code, a line and a sentence for each
    fault."""
    other = json.loads(line("other"))
    given = [
        line("a"),
        "{not json",
        line("a"),
        line("b", url="/v1/embeddings"),
        line("c", model="sim-large"),
        json.dumps(other | {"method": "GET"}),
        json.dumps({"method": "POST", "url": CHAT, "body": {}}),
        json.dumps(other | {"body": None}),
        "[]",
    ]
    async with sdk() as client:
        batch = await until(client, await created(client, given))
        assert batch.status == "failed"
        assert batch.errors is not None
        assert [(error.code, error.line) for error in batch.errors.data or ()] == [
            ("invalid_json_line", 2),
            ("duplicate_custom_id", 3),
            ("url_mismatch", 4),
            ("model_mismatch", 5),
            ("invalid_method", 6),
            ("missing_required_parameter", 7),
            ("missing_required_parameter", 8),
            ("invalid_json_line", 9),
        ]
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
        assert await documents(client) == 0


async def test_a_file_without_lines_fails_the_batch() -> None:
    """With a code for the whole file, and no line."""
    async with sdk() as client:
        batch = await until(client, await created(client, []))
    assert batch.errors is not None
    assert [(error.code, error.line) for error in batch.errors.data or ()] == [("empty_file", None)]


async def test_requests_that_the_model_refuses_are_in_the_error_file() -> None:
    """Each has its HTTP status and body; a request that timed out has a code instead; none costs
    the others."""
    given = [*lines(300), line("streams", stream=True), line("bare", messages=[])]
    async with sdk(
        error_rate=0.1, overload_rate=0.1, throttle_rate=0.1, hang_rate=0.1, poison_rate=0.1
    ) as client:
        batch = await until(client, await created(client, given))
        answers = await content(client, batch.output_file_id)
        errors = await content(client, batch.error_file_id)
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {
        "total": 302,
        "completed": len(answers),
        "failed": len(errors),
    }
    assert len(answers) + len(errors) == 302
    by_status: dict[int, int] = {}
    for error in errors:
        if error["response"] is None:
            assert error["error"]["code"] == "request_timeout"
            continue
        assert error["error"] is None
        assert error["response"]["body"]["error"]["message"]
        by_status[error["response"]["status_code"]] = (
            by_status.get(error["response"]["status_code"], 0) + 1
        )
    assert set(by_status) == {400, 429, 500, 503}
    assert {"streams", "bare"} <= {error["custom_id"] for error in errors}


async def test_a_document_is_as_lucky_in_the_next_batch_as_in_its_next_call() -> None:
    """What failed in passing succeeds when it is submitted again; what can never succeed does
    not."""
    async with sdk(error_rate=0.3, poison_rate=0.1, seed=3) as client:
        given, left = lines(200), []
        for _ in range(8):
            batch = await until(client, await created(client, given))
            if batch.error_file_id is None:
                break
            left = await content(client, batch.error_file_id)
            given = [line(error["custom_id"]) for error in left]
    assert {error["response"]["status_code"] for error in left} == {400}
    assert 5 < len(left) < 45


async def test_an_expired_batch_keeps_what_was_done() -> None:
    """Half is answered, and each other request is in the error file with its code."""
    async with sdk(batch_expired_share=1) as client:
        batch = await until(client, await created(client, lines(100)))
        assert (batch.status, batch.expired_at is not None) == ("expired", True)
        answers, errors = (
            await content(client, batch.output_file_id),
            await content(client, batch.error_file_id),
        )
    assert (len(answers), len(errors)) == (50, 50)
    assert {error["error"]["code"] for error in errors} == {"batch_expired"}
    assert len({each["custom_id"] for each in answers + errors}) == 100


async def test_a_stalled_batch_expires_with_its_window() -> None:
    """It stands still at half until the window ends."""
    async with sdk(batch_stalled_share=1, batch_window_s=1.5, batch_s=0.1) as client:
        batch = await until(client, await created(client, lines(10)), ["in_progress"])
        async with asyncio.timeout(10):
            while batch.request_counts is None or batch.request_counts.completed < 5:
                batch = await client.batches.retrieve(batch.id)
        assert batch.status == "in_progress"
        batch = await until(client, batch)
        assert batch.status == "expired"
        assert len(await content(client, batch.output_file_id)) == 5


async def test_a_cancelled_batch_is_cancelling_first() -> None:
    """It ends with what was done by then; one that is over cannot be cancelled."""
    async with sdk(batch_s=3600, batch_step_s=0.2) as client:
        batch = await until(client, await created(client, lines(10)), ["in_progress"])
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        batch = await until(client, batch)
        assert batch.status == "cancelled"
        assert batch.output_file_id is None
        errors = await content(client, batch.error_file_id)
        assert [error["error"]["code"] for error in errors] == ["batch_cancelled"] * 10
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(batch.id)


async def test_tokens_in_the_queue_are_capped() -> None:
    """A batch above the cap fails with `token_limit_exceeded`; there is room again once the first
    is over."""
    async with sdk(batch_enqueued_tokens=100, batch_s=3600) as client:
        first = await until(client, await created(client, lines(20)), ["in_progress"])
        second = await until(client, await created(client, lines(20)))
        assert second.errors is not None
        assert [error.code for error in second.errors.data or ()] == ["token_limit_exceeded"]
        await client.batches.cancel(first.id)
        await until(client, first)
        third = await until(client, await created(client, lines(20)), ["in_progress", *OVER])
        assert third.status == "in_progress"


async def test_a_creation_may_work_and_answer_500() -> None:
    """The batch is in the list with its metadata, so it can be adopted."""
    async with sdk(batch_create_500_share=1, batch_upload_500_share=1) as client:
        with pytest.raises(openai.InternalServerError):
            await uploaded(client, lines(2))
        ident = (await client.files.list()).data[0].id
        with pytest.raises(openai.InternalServerError):
            await client.batches.create(
                input_file_id=ident,
                endpoint=CHAT,
                completion_window="24h",
                metadata={"penstock": "lost"},
            )
        found = [batch async for batch in client.batches.list()]
    assert [(batch.input_file_id, batch.metadata) for batch in found] == [
        (ident, {"penstock": "lost"})
    ]


async def test_lists_have_pages() -> None:
    """The newest first; `after` goes on where the last page ended, as the SDK's iteration does."""
    async with sdk() as client:
        made = [(await created(client, lines(1))).id for _ in range(5)]
        page = await client.batches.list(limit=2)
        assert ([batch.id for batch in page.data], page.has_more) == (made[:2:-1], True)
        assert [batch.id async for batch in client.batches.list(limit=2)] == made[::-1]
        assert len([file async for file in client.files.list(purpose="batch", limit=2)]) == 5
        with pytest.raises(openai.BadRequestError):
            await client.batches.list(limit=101)
        with pytest.raises(openai.BadRequestError):
            await client.batches.list(after="batch_unknown")


async def test_a_creation_that_cannot_be_is_refused_at_once() -> None:
    """Unknown files, files for something else, other windows and endpoints, and metadata beyond its
    limits."""
    async with sdk() as client:
        ident = await uploaded(client, lines(1))
        other = (await client.files.create(file=("x", b"x"), purpose="user_data")).id
        good: dict[str, Any] = {
            "input_file_id": ident,
            "endpoint": CHAT,
            "completion_window": "24h",
        }
        for change in (
            {"input_file_id": "file-none"},
            {"input_file_id": other},
            {"endpoint": "/v1/videos"},
            {"completion_window": "1h"},
            {"metadata": {"k" * 65: "v"}},
            {"metadata": {"k": "v" * 513}},
            {"metadata": {str(at): "" for at in range(17)}},
        ):
            given: dict[str, Any] = {**good, **change}
            with pytest.raises(openai.BadRequestError):
                await client.batches.create(**given)
        with pytest.raises(openai.NotFoundError):
            await client.batches.retrieve("batch_none")


async def test_an_input_may_be_deleted_while_its_batch_runs() -> None:
    """The batch has it already."""
    async with sdk(batch_s=0.2) as client:
        batch = await until(client, await created(client, lines(20)), ["in_progress"])
        await client.files.delete(batch.input_file_id)
        batch = await until(client, batch)
        assert len(await content(client, batch.output_file_id)) == 20


async def test_results_can_be_spoilt_and_downloads_cut() -> None:
    """Some lines are cut, come twice or have an unknown id; a download that breaks off can go on by
    a range."""
    async with sdk(batch_spoilt_share=0.3, batch_cut_share=1) as client:
        batch = await until(client, await created(client, lines(100)))
        assert batch.output_file_id is not None
        with pytest.raises(openai.APIConnectionError):
            await client.files.content(batch.output_file_id)
        await control(client, batch_cut_share=0)
        raw = (await client.files.content(batch.output_file_id)).content
        rest = await client.files.content(
            batch.output_file_id, extra_headers={"Range": "bytes=100-"}
        )
        assert rest.content == raw[100:]
    ids, broken = [], 0
    for each in raw.splitlines():
        try:
            ids.append(json.loads(each)["custom_id"])
        except json.JSONDecodeError:
            broken += 1
    known = [ident for ident in ids if ident.startswith("doc-")]
    assert broken > 0
    assert len(known) > len(set(known))
    assert len(ids) > len(known)
    assert len(set(known)) + broken == 100


async def test_the_accounts_tell_what_was_submitted_and_read() -> None:
    """Every call, batch and request is counted, so a client that submits twice or forgets a result
    is found out."""
    async with sdk() as client:
        first = await until(client, await created(client, lines(3)))
        await content(client, first.output_file_id)
        second = await until(client, await created(client, lines(2)))
        found = await stats(client)
        assert found["calls"]["batches.create"] == 2
        assert found["by_status"] == {"completed": 2}
        assert (found["unread"], found["documents"], found["submitted"]) == (1, 3, 5)
        assert (found["submitted_more_than_once"], found["answered_more_than_once"]) == (2, 2)
        shown = (await own(client, "/batches"))["batches"]
        assert [(batch["id"], batch["over"], batch["reads"]) for batch in shown] == [
            (first.id, True, 1),
            (second.id, True, 0),
        ]
        assert await own(client, "/batches/requests?min_submitted=2") == {
            f"doc-{at}": {"submitted": 2, "ok": 2} for at in range(2)
        }


async def test_batch_calls_meet_refusals_and_keys() -> None:
    """A wrong key, a refusal on demand and an empty account are answered as in real time."""
    async with sdk(credit_usd=0.000001, usd_per_mtok_out=1, batch_call_500_share=0) as client:
        ident = await uploaded(client, lines(5))
        batch = await client.batches.create(
            input_file_id=ident, endpoint=CHAT, completion_window="24h"
        )
        await until(client, batch)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.batches.create(input_file_id=ident, endpoint=CHAT, completion_window="24h")
        assert caught.value.code == "insufficient_quota"
        await control(client, refuse={"kind": "slow_down", "calls": 1})
        with pytest.raises(openai.RateLimitError):
            await client.batches.retrieve(batch.id)
        await control(client, batch_call_500_share=1)
        with pytest.raises(openai.InternalServerError):
            await client.batches.retrieve(batch.id)
        await control(client, api_key="other", batch_call_500_share=0)
        with pytest.raises(openai.AuthenticationError):
            await client.batches.retrieve(batch.id)


async def test_embeddings_go_in_batches_too() -> None:
    """Their requests have one text or many, and vectors come back."""
    given = [line("e", url="/v1/embeddings", input=["a", "b"], dimensions=8)]
    async with sdk() as client:
        batch = await until(client, await created(client, given, "/v1/embeddings"))
        answers = await content(client, batch.output_file_id)
    assert len(answers[0]["response"]["body"]["data"]) == 2


async def own(client: AsyncOpenAI, path: str) -> Any:
    """A page of the simulator's own."""
    return await client.get(str(client.base_url.join(path)), cast_to=object)


async def stats(client: AsyncOpenAI) -> Any:
    return (await own(client, "/stats"))["batches"]


async def documents(client: AsyncOpenAI) -> Any:
    return (await stats(client))["documents"]


async def control(client: AsyncOpenAI, **settings: Any) -> None:
    await client.post(str(client.base_url.join("/control")), body=settings, cast_to=object)
