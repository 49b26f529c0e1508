"""The clients of batch APIs against the simulated provider: every dialect keeps the same
contract."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from batch_servers import KEY, KEY_VARIABLE, TAG, all_answers, packed, provider_at

from penstock_simulate import SimulatorConfig
from penstock_simulate.web import running
from penstock_workers.lanes.batch.apis.http import Times
from penstock_workers.lanes.batch.apis.provider import (
    TOKEN_CAP_CODES,
    AccountStopped,
    Astray,
    BatchAnswer,
    BatchGone,
    BatchProvider,
    BatchSeen,
    Counts,
    NewBatch,
    TokenCapReached,
    TryLater,
    Unclear,
    UnreadableLine,
)

FAST = {"batch_s": 0.0, "batch_step_s": 0.0}
QUICK = Times(pause_s=0.01)
IDS = [f"doc-{number}" for number in range(50)]
ROOTS = {
    "azure": "/openai/v1",
    "groq": "/openai/v1",
    "together": "/v1",
    "mistral": "/v1",
    "xai": "/v1",
}
OPENAI_ENDPOINT = "/v1/chat/completions"
ENDPOINTS = {
    **dict.fromkeys(["openai", *ROOTS], OPENAI_ENDPOINT),
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/generateContent",
    "bedrock": "/model/converse",
    "vertex": "/v1beta/generateContent",
}
CHAT = b'{"model":"sim-small","max_tokens":50,"messages":[{"role":"user","content":"Read it."}]}'
BODIES = {
    **dict.fromkeys(["openai", *ROOTS], CHAT),
    "anthropic": CHAT,
    "gemini": b'{"model":"sim-small","contents":[{"role":"user","parts":[{"text":"Read it."}]}]}',
    "vertex": b'{"model":"sim-small","contents":[{"role":"user","parts":[{"text":"Read it."}]}]}',
    "bedrock": b'{"model":"sim-small","messages":[{"role":"user","content":[{"text":"Read it."}]}]}',
}
USAGE = {"gemini": "usageMetadata", "vertex": "usageMetadata"}  # of the others: usage
COUNTLESS = ("together",)  # never says how many are answered
KINDS = pytest.mark.parametrize("kind", list(ENDPOINTS))


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)  # of a signature the simulator checks the form
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")


@asynccontextmanager
async def simulated(kind: str, **config: Any) -> AsyncIterator[BatchProvider]:
    """`kind`: of a provider, or the name of one that has OpenAI's form with differences."""
    like = kind if kind in ROOTS else None
    shape = "openai" if like else kind
    given = {**FAST, "api_key": KEY, "batch_min_records": 1, **config}
    async with running(SimulatorConfig(**given, like=like)) as url:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL_S3", f"{url}/s3")
            async with provider_at(url + ROOTS.get(kind, ""), shape, QUICK, like) as provider:
                yield provider


def new_batch(
    provider: BatchProvider, kind: str, folder: Path, ids: list[str] | None = None
) -> NewBatch:
    return packed(folder, provider, ids or IDS, ENDPOINTS[kind], BODIES[kind], model="sim-small")


async def created(provider: BatchProvider, batch: NewBatch) -> BatchSeen:
    return await provider.create(batch._replace(file_id=await provider.upload(batch)))


async def ended(provider: BatchProvider, seen: BatchSeen) -> BatchSeen:
    async with asyncio.timeout(20):
        while not seen.ended:
            await asyncio.sleep(0.01)
            seen = await provider.look(seen.batch_id)
    return seen


def by_id(answers: list[BatchAnswer | UnreadableLine]) -> dict[str, BatchAnswer]:
    return {answer.custom_id: answer for answer in answers if isinstance(answer, BatchAnswer)}


@KINDS
async def test_a_batch_goes_its_whole_way(kind: str, tmp_path: Path) -> None:
    """Packed, sent, looked at and read: each document has one answer, under its own id."""
    async with simulated(kind) as provider:
        seen = await ended(provider, await created(provider, new_batch(provider, kind, tmp_path)))
        answers = await all_answers(provider, seen)
        assert seen.counts == (None if kind in COUNTLESS else Counts(50, 50, 0))
        assert (seen.expired, seen.cancelled, seen.problems) == (False, False, ())
        assert len(answers) == 50
        assert sorted(by_id(answers)) == sorted(IDS)
        usage = USAGE.get(kind, "usage")
        assert all(
            answer.status == 200 and usage in json.loads(answer.body)
            for answer in by_id(answers).values()
        )


@KINDS
async def test_requests_that_fail_have_their_status(kind: str, tmp_path: Path) -> None:
    """An error of one request is an answer with the status and the body that real time would have
    shown."""
    async with simulated(kind, error_rate=0.3, overload_rate=0.3) as provider:
        seen = await ended(provider, await created(provider, new_batch(provider, kind, tmp_path)))
        answers = by_id(await all_answers(provider, seen))
    failed = {answer.custom_id: answer for answer in answers.values() if answer.status != 200}
    assert set(answers) == set(IDS)
    assert {answer.status for answer in failed.values()} == (
        {500, 529} if kind == "anthropic" else {500, 503}
    )
    field = "message" if kind == "bedrock" else "error"
    assert all(field in json.loads(answer.body) for answer in failed.values())
    assert seen.counts == (None if kind in COUNTLESS else Counts(50, 50 - len(failed), len(failed)))


@KINDS
async def test_a_create_that_worked_and_answered_500_is_found(kind: str, tmp_path: Path) -> None:
    """Unclear, then adopted by its tag; Anthropic's is known when it has ended.

    One of another tag is not."""
    async with simulated(kind, batch_create_500_share=1.0) as provider:
        since = time.time()
        batch = new_batch(provider, kind, tmp_path)
        with pytest.raises(Unclear):
            await created(provider, batch)
        async with asyncio.timeout(20):
            seen = None
            while seen is None:
                try:
                    seen = await provider.find(TAG, since)
                    assert seen is not None, "it was created"
                except Unclear:
                    await asyncio.sleep(0.01)
            assert sorted(
                by_id(await all_answers(provider, await ended(provider, seen)))
            ) == sorted(IDS)
        assert await provider.find("another-tag-1234567890", since) is None


@pytest.mark.parametrize("kind", ["openai", "gemini", "bedrock", "vertex", *ROOTS])
async def test_an_upload_that_worked_and_answered_500_is_found(kind: str, tmp_path: Path) -> None:
    """The file is there under the tag's name, and is not sent again."""
    async with simulated(kind, batch_upload_500_share=1.0) as provider:
        batch = new_batch(provider, kind, tmp_path)
        with pytest.raises(Unclear):
            await provider.upload(batch)
        file_id = await provider.find_upload(TAG)
        assert file_id is not None
        seen = await ended(provider, await provider.create(batch._replace(file_id=file_id)))
        assert sorted(by_id(await all_answers(provider, seen))) == sorted(IDS)
        assert await provider.find_upload("another-tag") is None


@KINDS
async def test_downloads_that_break_bring_every_answer_once(kind: str, tmp_path: Path) -> None:
    """Half of all downloads end half-way."""
    async with simulated(kind, batch_cut_share=0.5, seed=3) as provider:
        seen = await ended(provider, await created(provider, new_batch(provider, kind, tmp_path)))
        for _ in range(4):
            answers = await all_answers(provider, seen)
            assert sorted(by_id(answers)) == sorted(IDS)
            assert len(answers) == 50


@KINDS
async def test_what_a_provider_does_not_show_for_a_while(kind: str, tmp_path: Path) -> None:
    """A look may be refused once, a batch and its outputs may not be found, and an output may be
    too short: none is an end."""
    async with simulated(
        kind, batch_look_403s=1, batch_look_404_s=0.2, batch_file_404_s=0.2, batch_short_reads=1
    ) as provider:
        made = await created(provider, new_batch(provider, kind, tmp_path))
        with pytest.raises(Astray):
            await provider.look(made.batch_id)
        seen, gone = made._replace(ended=False), 0
        async with asyncio.timeout(10):
            while not seen.ended:
                try:
                    seen = await provider.look(made.batch_id)
                except BatchGone:
                    gone += 1
                await asyncio.sleep(0.01)
        assert gone
        lengths = list[int]()
        async with asyncio.timeout(10):
            while not lengths or lengths[-1] < 50:
                try:
                    lengths.append(len(await all_answers(provider, seen)))
                except BatchGone:
                    await asyncio.sleep(0.01)
        assert lengths == [25, 50]


@pytest.mark.parametrize("kind", ["openai", "gemini", "bedrock", "vertex"])
async def test_an_upload_that_fails_leaves_nothing(kind: str, tmp_path: Path) -> None:
    """It is sent again, since no file has its name."""
    async with simulated(kind, batch_no_upload_share=1.0) as provider:
        with pytest.raises((Unclear, TryLater)):
            await provider.upload(new_batch(provider, kind, tmp_path))
        assert await provider.find_upload(TAG) is None


@KINDS
async def test_spoilt_lines_cost_only_themselves(kind: str, tmp_path: Path) -> None:
    """Lines that are cut are named one by one; those around them are read."""
    answers: list[Any] = []
    unreadable: list[Any] = []
    async with simulated(kind, batch_spoilt_share=0.4) as provider:
        for _ in range(5):  # which lines are cut depends on the id of the batch
            one = new_batch(provider, kind, tmp_path)
            seen = await ended(provider, await created(provider, one))
            answers = list(await all_answers(provider, seen))
            unreadable = [found for found in answers if isinstance(found, UnreadableLine)]
            if unreadable:
                break
    assert unreadable
    assert set(IDS) - set(by_id(answers)), "a cut line's answer is not guessed"
    assert len(set(IDS) & set(by_id(answers))) >= 25


@KINDS
async def test_a_batch_that_expires_keeps_what_it_has(kind: str, tmp_path: Path) -> None:
    """The rest of its requests say that they ran out of time."""
    async with simulated(kind, batch_expired_share=1.0) as provider:
        seen = await ended(provider, await created(provider, new_batch(provider, kind, tmp_path)))
        answers = by_id(await all_answers(provider, seen))
    assert seen.expired
    # it gives nothing out of a batch that expired, so that nothing of it is waited for
    if kind == "gemini":
        assert (answers, seen.counts) == ({}, Counts(50, 0, 50))
        return
    if kind in ("bedrock", "vertex"):  # what it did not get to has no line
        assert len(answers) == 25
        assert seen.counts == Counts(50, 25, 0)
        return
    assert set(answers) == set(IDS)
    if kind == "xai":  # it has no word of its own for it
        assert {answer.status for answer in answers.values()} == {200, 504}
        return
    assert {answer.error for answer in answers.values()} == {None, "batch_expired"}
    assert all((answer.status is None) == (answer.error is not None) for answer in answers.values())


@KINDS
async def test_a_batch_that_is_cancelled_ends(kind: str, tmp_path: Path) -> None:
    """Its requests say so; one that is cancelled again, or was over before, is shown as it is."""
    async with simulated(kind, batch_s=60.0) as provider:
        made = await created(provider, new_batch(provider, kind, tmp_path))
        seen = await ended(provider, await provider.cancel(made.batch_id))
        assert seen.cancelled
        answers = by_id(await all_answers(provider, seen))
        assert {answer.error for answer in answers.values()} <= {None, "batch_cancelled"}
        assert (await provider.cancel(made.batch_id)).ended


async def test_a_batch_that_fails_its_validation_says_where(tmp_path: Path) -> None:
    """The provider names each line; nothing of it was computed."""
    async with simulated("openai") as provider:
        seen = await ended(
            provider,
            await created(provider, new_batch(provider, "openai", tmp_path, ["a", "b", "a"])),
        )
    assert [(problem.code, problem.line) for problem in seen.problems] == [
        ("duplicate_custom_id", 3)
    ]
    assert seen.outputs == ()


@pytest.mark.parametrize("kind", ["together", "mistral", "xai"])
async def test_a_refused_batch_that_names_no_line_says_why(kind: str, tmp_path: Path) -> None:
    """These have a sentence and no line: it is the problem of the batch as a whole."""
    async with simulated(kind) as provider:
        seen = await ended(
            provider, await created(provider, new_batch(provider, kind, tmp_path, ["a", "b", "a"]))
        )
    [problem] = seen.problems
    assert problem.line is None
    assert "duplicate" in problem.message


async def test_pages_that_have_numbers_are_turned_to_their_end(tmp_path: Path) -> None:
    """Mistral lists a hundred batches on a page: one on the second page is found as well."""
    async with simulated("mistral") as provider:
        since, batch = time.time(), new_batch(provider, "mistral", tmp_path, ["a"])
        first = await created(provider, batch)
        for number in range(100):
            await created(provider, batch._replace(tag=f"tag-{number}"))
        found = await provider.find(TAG, since)
    assert found is not None
    assert found.batch_id == first.batch_id


async def test_azure_makes_no_batch_of_a_file_that_it_still_checks(tmp_path: Path) -> None:
    """The batch is tried again later, and nothing was refused."""
    async with simulated("azure", batch_step_s=0.3) as provider:
        batch = new_batch(provider, "azure", tmp_path)
        batch = batch._replace(file_id=await provider.upload(batch))
        with pytest.raises(TryLater):
            await provider.create(batch)
        async with asyncio.timeout(20):
            seen = None
            while seen is None:
                with contextlib.suppress(TryLater):
                    seen = await provider.create(batch)
                await asyncio.sleep(0.05)
        assert len(await all_answers(provider, await ended(provider, seen))) == 50


async def test_a_full_account_of_gemini_is_told_at_once(tmp_path: Path) -> None:
    """It has no code of its own: its words are known."""
    async with simulated("gemini", batch_enqueued_tokens=1) as provider:
        with pytest.raises(TokenCapReached):
            await created(provider, new_batch(provider, "gemini", tmp_path))


async def test_a_full_account_is_told_from_a_bad_batch(tmp_path: Path) -> None:
    """The reason has a code of its own, by which the same batch is sent again later."""
    async with simulated("openai", batch_enqueued_tokens=1) as provider:
        seen = await ended(
            provider, await created(provider, new_batch(provider, "openai", tmp_path))
        )
    assert {problem.code for problem in seen.problems} <= TOKEN_CAP_CODES
    assert seen.problems


@KINDS
async def test_a_wrong_key_stops_the_account(kind: str, tmp_path: Path) -> None:
    """Not the batch: no other batch of this key would fare better."""
    async with simulated(kind, api_key="another") as provider:
        with pytest.raises(AccountStopped):
            await created(provider, new_batch(provider, kind, tmp_path))


@pytest.mark.parametrize("kind", [kind for kind in ENDPOINTS if kind != "xai"])
async def test_what_is_deleted_is_gone(kind: str, tmp_path: Path) -> None:
    """Its outputs cannot be read any more, and deleting once more is no error."""
    async with simulated(kind) as provider:
        seen = await ended(provider, await created(provider, new_batch(provider, kind, tmp_path)))
        await all_answers(provider, seen)
        await provider.delete(seen)
        with pytest.raises(BatchGone):
            await all_answers(provider, seen)
        await provider.delete(seen)


async def test_of_xai_the_input_alone_can_be_deleted(tmp_path: Path) -> None:
    """Its results are pages of the batch, which xAI offers no call to delete."""
    async with simulated("xai") as provider:
        batch = new_batch(provider, "xai", tmp_path)
        file_id = await provider.upload(batch)
        seen = await ended(provider, await provider.create(batch._replace(file_id=file_id)))
        await provider.delete(seen._replace(file_id=file_id))
        assert await provider.find_upload(TAG) is None
        assert len(await all_answers(provider, seen)) == 50


async def test_results_in_pages_are_read_to_the_last_one(tmp_path: Path) -> None:
    """A hundred of xAI's results are a page; a batch of several pages has every answer once."""
    ids = [f"doc-{number}" for number in range(250)]
    async with simulated("xai", batch_cut_share=0.4, seed=5) as provider:
        seen = await ended(
            provider, await created(provider, new_batch(provider, "xai", tmp_path, ids))
        )
        answers = await all_answers(provider, seen)
    assert len(answers) == 250
    assert sorted(by_id(answers)) == sorted(ids)
