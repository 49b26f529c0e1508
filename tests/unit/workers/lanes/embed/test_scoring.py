"""The embed lane with a played classifier: rerank, score and classify in vLLM's shapes, and what is
refused of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from encoders import FakeClassifier, FakeEncoder

from penstock_workers.failpoints import Failpoints
from penstock_workers.item.answer import Answer, NoAnswer
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Request
from penstock_workers.lanes.embed.embed_lane import EmbedLane, is_classifier
from penstock_workers.lanes.embed.settings import EmbedSettings
from penstock_workers.lanes.scoring import MAX_TEXTS, TASKS, Task, wrong_model

DOCUMENTS = ["a b", "a b c d", "a"]


@asynccontextmanager
async def hosted(folder: Path, encoder: FakeEncoder, **more: Any) -> AsyncIterator[EmbedLane]:
    (folder / "config.json").write_text("{}")
    made = EmbedLane(EmbedSettings(model=str(folder), window_ms=0), lambda *_: encoder, **more)
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def lane(tmp_path: Path) -> AsyncIterator[EmbedLane]:
    async with hosted(tmp_path, FakeClassifier("relevance")) as made:
        yield made


def request(endpoint: str, body: Any, **more: Any) -> Request:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return Request("job:doc", "default", endpoint, raw, 30.0, **more)


async def answer(lane: EmbedLane, asked: Request) -> dict[str, Any]:
    prepared = await lane.prepare(asked)
    assert prepared.refused is None, prepared.refused
    reply = name_failure(await lane.infer(prepared), 0.0)
    assert isinstance(reply, Reply), reply
    parsed: dict[str, Any] = json.loads(reply.body)
    assert (reply.prompt_tokens, reply.model) == (parsed["usage"]["total_tokens"], parsed["model"])
    return parsed


async def refused(lane: EmbedLane, asked: Request) -> tuple[str, str]:
    """The failure's name and the words of the refusal."""
    prepared = await lane.prepare(asked)
    assert prepared.refused is not None
    named = name_failure(prepared.refused, 0.0)
    assert isinstance(named, Failure)
    return named.name, json.loads(prepared.refused.body)["error"]["message"]


@pytest.mark.parametrize("endpoint", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_a_ranking_has_the_best_first(lane: EmbedLane, endpoint: str) -> None:
    """Each document with its place in the request and its text, by falling relevance."""
    body = await answer(
        lane, request(endpoint, {"query": "q", "documents": DOCUMENTS, "model": "mine"})
    )
    assert body == {
        "id": "rerank-job:doc",
        "model": "mine",
        "usage": {"prompt_tokens": 10, "total_tokens": 10},
        "results": [
            {"index": 1, "document": {"text": "a b c d"}, "relevance_score": 5.0},
            {"index": 0, "document": {"text": "a b"}, "relevance_score": 3.0},
            {"index": 2, "document": {"text": "a"}, "relevance_score": 2.0},
        ],
    }


async def test_a_ranking_may_be_short_and_without_documents(lane: EmbedLane) -> None:
    """top_n keeps the best, 0 keeps all, and return_documents false leaves the texts out; documents
    may be objects."""
    given = {
        "query": "q",
        "documents": [{"text": text} for text in DOCUMENTS],
        "return_documents": False,
    }
    body = await answer(lane, request("/v1/rerank", given | {"top_n": 1}))
    assert body["results"] == [{"index": 1, "relevance_score": 5.0}]
    assert len((await answer(lane, request("/v1/rerank", given | {"top_n": 0})))["results"]) == 3


@pytest.mark.parametrize(
    "names",
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
async def test_scores_come_in_the_order_of_the_pairs(
    lane: EmbedLane, names: tuple[str, str]
) -> None:
    """One text against one, one against many, and as many of each, by every pair of names that vLLM
    reads."""
    first, second = names
    one_to_one = await answer(lane, request("/score", {first: "q", second: "a b"}))
    assert (one_to_one["object"], one_to_one["data"]) == (
        "list",
        [{"index": 0, "object": "score", "score": 3.0}],
    )
    one_to_many = await answer(lane, request("/v1/score", {first: ["q"], second: DOCUMENTS}))
    assert [(entry["index"], entry["score"]) for entry in one_to_many["data"]] == [
        (0, 3.0),
        (1, 5.0),
        (2, 2.0),
    ]
    pairs = await answer(lane, request("/v1/score", {first: ["q", "q r s"], second: ["a", "a"]}))
    assert [entry["score"] for entry in pairs["data"]] == [2.0, 4.0]


async def test_classes_have_labels_and_numbers(tmp_path: Path) -> None:
    """Each text has the label of its largest number, all the numbers, and how many there are; or
    the logits, if asked for."""
    async with hosted(tmp_path, FakeClassifier("yes", "no")) as lane:
        body = await answer(lane, request("/classify", {"input": ["a b", "a"]}))
        assert body["data"] == [
            {"index": 0, "label": "yes", "probs": [2.0, 1.0], "num_classes": 2},
            {"index": 1, "label": "yes", "probs": [1.0, 0.0], "num_classes": 2},
        ]
        raw = await answer(lane, request("/classify", {"input": "a b", "use_activation": False}))
        assert raw["data"][0]["probs"] == [4.0, 2.0]
        assert lane.served.tasks == ("classify",)


@pytest.mark.parametrize(
    ("endpoint", "body", "field"),
    [
        ("/v1/rerank", b"{", "body"),
        ("/v1/rerank", b"[1]", "[1]"),
        ("/v1/rerank", {"documents": ["a"]}, "'query' is missing"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "'query' is ''"),
        ("/v1/rerank", {"query": ["q"], "documents": ["a"]}, "'query' is ['q']"),
        ("/v1/rerank", {"query": "q"}, "'documents' is missing"),
        ("/v1/rerank", {"query": "q", "documents": []}, "'documents' is empty"),
        ("/v1/rerank", {"query": "q", "documents": ["a", 7]}, "'documents[1]' is 7"),
        ("/v1/rerank", {"query": "q", "documents": [{"title": "a"}]}, "'documents[0]'"),
        (
            "/v1/rerank",
            {"query": "q", "documents": ["a"] * (MAX_TEXTS + 1)},
            f"at most {MAX_TEXTS}",
        ),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": -1}, "'top_n' is -1"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": True}, "'top_n' is True"),
        (
            "/v1/rerank",
            {"query": "q", "documents": ["a"], "return_documents": "no"},
            "'return_documents' is 'no'",
        ),
        (
            "/v1/rerank",
            {"query": "q", "documents": ["a"], "max_tokens_per_doc": 9},
            "'max_tokens_per_doc' is 9",
        ),
        (
            "/v1/score",
            {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]},
            "'text_1' has 2 texts and 'text_2' has 3",
        ),
        ("/v1/score", {"text_1": "a"}, "'text_2' is missing"),
        (
            "/v1/score",
            {"text_1": "a", "text_2": "b", "chat_template": "{{ 1 }}"},
            "'chat_template'",
        ),
        ("/classify", {"input": [1, 2]}, "'input[0]' is 1"),
        ("/classify", {"messages": [{"role": "user", "content": "a"}]}, "'messages'"),
        ("/classify", {"input": "a", "use_activation": 1}, "'use_activation' is 1"),
        ("/classify", {"input": "   "}, "has no token"),
    ],
)
async def test_bad_bodies_are_refused_by_field_and_value(
    lane: EmbedLane, endpoint: str, body: Any, field: str
) -> None:
    """Each is a bad request that says which field holds what, before anything reaches the model."""
    name, words = await refused(lane, request(endpoint, body))
    assert name == "bad_request"
    assert field in words


@pytest.mark.parametrize(
    ("encoder", "endpoint", "why"),
    [
        (FakeEncoder, "/v1/rerank", "needs a cross-encoder"),
        (FakeEncoder, "/classify", "needs a cross-encoder or a classifier"),
        (lambda: FakeClassifier("a", "b"), "/v1/score", "has 2 classes"),
        (lambda: FakeClassifier("a"), "/v1/embeddings", "does not embed"),
    ],
)
async def test_a_model_that_cannot_do_it_says_so(
    tmp_path: Path, encoder: Callable[[], FakeEncoder], endpoint: str, why: str
) -> None:
    """A task that the hosted model cannot do is a bad request that names the model and what would
    do it."""
    async with hosted(tmp_path, encoder()) as lane:
        name, words = await refused(lane, request(endpoint, {"input": "a"}))
    assert name == "bad_request"
    assert why in words
    assert endpoint == "/v1/embeddings" or tmp_path.name in words


async def test_a_pair_that_is_too_long_is_refused_or_cut(lane: EmbedLane) -> None:
    """Longer than the model's limit is `context_overflow`, and cut where the job says so."""
    body = {"text_1": "q", "text_2": "word " * 200}
    assert (await refused(lane, request("/v1/score", body)))[0] == "context_overflow"
    cut = await answer(lane, request("/v1/score", body, on_overflow="trim"))
    assert cut["usage"]["prompt_tokens"] == 100


async def test_out_of_memory_is_halved_and_nothing_is_lost(tmp_path: Path) -> None:
    """A batch of pairs that does not fit is computed in parts, and every document has its score."""
    encoder = FakeClassifier("relevance", memory=8)
    async with hosted(tmp_path, encoder) as lane:
        body = await answer(lane, request("/v1/score", {"text_1": "q", "text_2": ["a b c"] * 5}))
    assert [entry["score"] for entry in body["data"]] == [4.0] * 5
    assert max(map(len, encoder.sizes())) > 2
    assert encoder.sizes()[-1] in ([4], [4, 4])


async def test_a_lost_device_ends_the_worker_and_no_document_is_at_fault(tmp_path: Path) -> None:
    """A device that is lost while pairs are scored ends as engine_died, as it does for
    embeddings."""
    why: list[str] = []
    lost = Failpoints.parse("engine:cuda")
    async with hosted(tmp_path, FakeClassifier("a"), failpoints=lost, give_up=why.append) as lane:
        tried = await lane.infer(
            await lane.prepare(request("/v1/score", {"text_1": "a", "text_2": "b"}))
        )
    assert isinstance(tried, NoAnswer)
    assert tried.failure == "engine_died"
    assert why


@pytest.mark.parametrize(
    ("files", "classifies"),
    [
        ({"config.json": {"architectures": ["BertModel"]}}, False),
        ({"config.json": {"architectures": ["XLMRobertaForSequenceClassification"]}}, True),
        (
            {
                "config.json": {"architectures": ["BertForSequenceClassification"]},
                "modules.json": {},
            },
            False,
        ),
        (
            {
                "config_sentence_transformers.json": {"model_type": "CrossEncoder"},
                "modules.json": {},
            },
            True,
        ),
        ({"config_sentence_transformers.json": {"model_type": "SentenceTransformer"}}, False),
        ({"config.json": {"architectures": "ForSequenceClassification"}}, False),
        ({}, False),
    ],
)
def test_files_say_what_a_model_is(tmp_path: Path, files: dict[str, Any], classifies: bool) -> None:
    """The library's own note counts first, then the class that the configuration names."""
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert is_classifier(tmp_path) is classifies


@pytest.mark.parametrize("task", TASKS)
def test_a_cross_encoder_does_every_task(task: Task) -> None:
    """A model of one class scores, ranks and classifies."""
    assert wrong_model(task, 1) is None


async def test_answers_of_scores_are_json_as_they_are(lane: EmbedLane) -> None:
    """They are stored as JSON, not as packed vectors."""
    tried = await lane.infer(await lane.prepare(request("/classify", {"input": "a"})))
    assert isinstance(tried, Answer)
    assert not tried.packed
