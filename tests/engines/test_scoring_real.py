"""Scores and classes by real models on a CPU: they are those of the library that the models were
made for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from penstock_workers.errors import ModelUnusable
from penstock_workers.item.answer import Answer
from penstock_workers.item.failures import Failure, name_failure
from penstock_workers.item.lane import Request
from penstock_workers.lanes.embed.embed_lane import EmbedLane
from penstock_workers.lanes.embed.encoder import SentenceTransformersClassifier
from penstock_workers.lanes.embed.settings import EmbedSettings
from penstock_workers.lanes.gpu.gpu_lane import GpuLane
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.scoring import MAX_TEXTS
from penstock_workers.settings import WorkerSettings

QUERY = "how is a file opened"
DOCUMENTS = [
    "import os",
    "def open(path): return a file object, and raise OSError where there is none. " * 4,
    "Réseaux de neurones, 深度学习 and \N{SNOWMAN}.",
    "x",
]


@pytest.fixture
async def lane(tiny_ranker: Path) -> AsyncIterator[EmbedLane]:
    made = EmbedLane(EmbedSettings(model=str(tiny_ranker), device="cpu"), give_up=pytest.fail)
    await made.start()
    yield made
    await made.close()


async def body_of(
    lane: EmbedLane | GpuLane, endpoint: str, body: dict[str, Any], **more: Any
) -> dict[str, Any]:
    request = Request("tag", "default", endpoint, json.dumps(body).encode(), 60.0, **more)
    prepared = await lane.prepare(request)
    assert prepared.refused is None, prepared.refused
    tried = await lane.infer(prepared)
    assert isinstance(tried, Answer), tried
    parsed: dict[str, Any] = json.loads(tried.body)
    return parsed


def library(folder: Path) -> Any:
    return import_module("sentence_transformers").CrossEncoder(
        str(folder), device="cpu", local_files_only=True
    )


async def test_scores_are_those_of_the_library(lane: EmbedLane, tiny_ranker: Path) -> None:
    """Pairs of all lengths, batched together, score what CrossEncoder.predict gives each; rank
    orders them as it does."""
    expected = library(tiny_ranker).predict([(QUERY, document) for document in DOCUMENTS]).tolist()
    scored = await body_of(lane, "/v1/score", {"text_1": QUERY, "text_2": DOCUMENTS})
    assert [entry["score"] for entry in scored["data"]] == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) == len(DOCUMENTS)
    ranked = await body_of(lane, "/v1/rerank", {"query": QUERY, "documents": DOCUMENTS})
    order = sorted(range(len(DOCUMENTS)), key=lambda place: -expected[place])
    assert [entry["index"] for entry in ranked["results"]] == order
    assert lane.served.tasks == ("rerank", "score", "classify")


async def test_a_long_pair_is_cut_as_the_library_cuts(lane: EmbedLane, tiny_ranker: Path) -> None:
    """With on_overflow trim a pair that is too long scores what the library gives it."""
    long = "open a file and read it; " * 300
    expected = library(tiny_ranker).predict([(QUERY, long)]).tolist()
    scored = await body_of(lane, "/v1/score", {"text_1": QUERY, "text_2": long}, on_overflow="trim")
    assert [entry["score"] for entry in scored["data"]] == pytest.approx(expected, abs=1e-5)
    assert scored["usage"]["prompt_tokens"] == 512


async def test_classes_have_the_models_labels_and_probabilities(tmp_path: Path) -> None:
    """A classifier of three classes gives softmax over the library's logits, and the label of the
    largest."""
    from engines.tiny_model import Shape, make_model

    labels = ("contradiction", "entailment", "neutral")
    folder = make_model(
        tmp_path / "tiny", "bert-classifier", Shape(context=512, layers=2, labels=labels)
    )
    made = EmbedLane(EmbedSettings(model=str(folder), device="cpu"), give_up=pytest.fail)
    await made.start()
    body = await body_of(made, "/classify", {"input": DOCUMENTS})
    raw = await body_of(made, "/classify", {"input": DOCUMENTS, "use_activation": False})
    await made.close()
    torch, transformers = import_module("torch"), import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for said, logits, text in zip(body["data"], raw["data"], DOCUMENTS, strict=True):
        with torch.inference_mode():
            expected = model(**tokenizer(text, return_tensors="pt")).logits[0]
        assert logits["probs"] == pytest.approx(expected.tolist(), abs=1e-4)
        assert said["probs"] == pytest.approx(torch.softmax(expected, -1).tolist(), abs=1e-5)
        assert said["label"] == labels[int(expected.argmax())]
        assert said["num_classes"] == 3


def test_a_reranker_that_generates_is_refused_at_the_start(tiny_llama: Path) -> None:
    """A model that would score by the words that it generates is refused by name."""
    with pytest.raises(ModelUnusable, match=r"gpu\.upstream_url|'yes'"):
        SentenceTransformersClassifier(tiny_llama, EmbedSettings(device="cpu"))


@asynccontextmanager
async def hosted(model: Path, *, in_process: bool = True) -> AsyncIterator[GpuLane]:
    engine = {
        "max_model_len": 512,
        "enforce_eager": True,
        "dtype": "float32",
        "gpu_memory_utilization": 0.5,
    }
    gpu = GpuSettings(model=str(model), in_process=in_process, max_num_seqs=8, engine=engine)
    made = GpuLane(WorkerSettings(lane="gpu", gpu=gpu), give_up=pytest.fail)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def refuses(
    lane: GpuLane, endpoint: str, body: dict[str, Any], name: str, words: str
) -> None:
    """Before anything of it reaches the engine."""
    prepared = await lane.prepare(
        Request("tag", "default", endpoint, json.dumps(body).encode(), 60.0)
    )
    assert prepared.refused is not None
    named = name_failure(prepared.refused, 0.0)
    assert isinstance(named, Failure)
    assert (named.name, words in named.detail) == (name, True), named


LONG = "open a file and read it; " * 300


@pytest.mark.parametrize("in_process", [True, False])
async def test_vllm_scores_as_the_library_does(tiny_ranker: Path, in_process: bool) -> None:
    """An engine of the gpu lane, in the worker or in children, gives pairs of all lengths the
    scores of the library."""
    expected = (
        library(tiny_ranker)
        .predict([(QUERY, document) for document in [*DOCUMENTS, LONG]])
        .tolist()
    )
    async with hosted(tiny_ranker, in_process=in_process) as lane:
        scored = await body_of(lane, "/v1/score", {"text_1": QUERY, "text_2": DOCUMENTS})
        ranked = await body_of(
            lane, "/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, "top_n": 1}
        )
        cut = await body_of(
            lane, "/v1/score", {"text_1": QUERY, "text_2": LONG}, on_overflow="trim"
        )
        classes = await body_of(lane, "/classify", {"input": DOCUMENTS})
        assert lane.served.tasks == ("rerank", "score", "classify")
    assert [entry["score"] for entry in scored["data"]] == pytest.approx(expected[:4], abs=1e-4)
    assert [entry["index"] for entry in ranked["results"]] == [expected.index(max(expected[:4]))]
    assert [entry["score"] for entry in cut["data"]] == pytest.approx(expected[4:], abs=1e-4)
    assert cut["usage"]["prompt_tokens"] == 512
    assert [entry["num_classes"] for entry in classes["data"]] == [1] * len(DOCUMENTS)


async def test_both_lanes_answer_alike(lane: EmbedLane, tiny_ranker: Path) -> None:
    """The same request has the same answer on both, but for its id and time, and for the last
    digits of a score."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS}),
        ("/v1/score", {"text_1": QUERY, "text_2": DOCUMENTS}),
        ("/classify", {"input": DOCUMENTS}),
    ]
    async with hosted(tiny_ranker) as other:
        for endpoint, body in asked:
            first = shape(await body_of(lane, endpoint, body | {"model": str(tiny_ranker)}))
            assert first == shape(
                await body_of(other, endpoint, body | {"model": str(tiny_ranker)})
            )


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items() if name not in ("id", "created")}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value


async def test_vllm_classifies_as_the_model_does(tmp_path: Path) -> None:
    """A classifier of three classes has transformers' own numbers; all that it cannot do is
    refused, and no engine dies."""
    from engines.tiny_model import Shape, make_model

    labels = ("contradiction", "entailment", "neutral")
    folder = make_model(
        tmp_path / "tiny", "bert-classifier", Shape(context=512, layers=2, labels=labels)
    )
    async with hosted(folder) as lane:
        engine = lane._host.engine
        body = await body_of(lane, "/classify", {"input": DOCUMENTS})
        raw = await body_of(lane, "/classify", {"input": DOCUMENTS, "use_activation": False})
        many = await body_of(
            lane, "/classify", {"input": [f"text {number}" for number in range(500)]}
        )
        pair = {"text_1": "a", "text_2": "b"}
        await refuses(lane, "/v1/score", pair, "bad_request", "has 3 classes")
        await refuses(
            lane, "/v1/rerank", {"query": "a", "documents": ["b"]}, "bad_request", "has 3 classes"
        )
        await refuses(lane, "/v1/embeddings", {"input": "a"}, "bad_request", "does not embed")
        await refuses(lane, "/v1/completions", {"prompt": "a"}, "bad_request", "does not generate")
        await refuses(lane, "/classify", {}, "bad_request", "'input' is missing")
        await refuses(lane, "/classify", {"input": ["a", LONG]}, "context_overflow", "entry 1 has")
        assert lane.served.tasks == ("classify",)
        assert lane._host.engine is engine
        assert engine is not None
        assert engine.is_alive()
    torch, transformers = import_module("torch"), import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for said, logits, text in zip(body["data"], raw["data"], DOCUMENTS, strict=True):
        with torch.inference_mode():
            expected = model(**tokenizer(text, return_tensors="pt")).logits[0]
        assert logits["probs"] == pytest.approx(expected.tolist(), abs=1e-4)
        assert said["probs"] == pytest.approx(torch.softmax(expected, -1).tolist(), abs=1e-4)
        assert said["label"] == labels[int(expected.argmax())]
    assert [entry["index"] for entry in many["data"]] == list(range(500))


async def test_a_ranker_refuses_what_has_no_pair(tiny_ranker: Path) -> None:
    """A missing side, too many documents and a pair that is too long are the item's failures, and
    cost no engine."""
    async with hosted(tiny_ranker) as lane:
        engine = lane._host.engine
        too_many = {"query": "a", "documents": ["b"] * (MAX_TEXTS + 1)}
        await refuses(lane, "/v1/rerank", {"query": "a"}, "bad_request", "'documents' is missing")
        await refuses(lane, "/v1/rerank", too_many, "bad_request", f"at most {MAX_TEXTS}")
        await refuses(lane, "/v1/score", {"text_1": ["a"], "text_2": []}, "bad_request", "is empty")
        long = {"query": QUERY, "documents": ["x", LONG]}
        await refuses(lane, "/v1/rerank", long, "context_overflow", "entry 1 has")
        await refuses(lane, "/v1/embeddings", {"input": "a"}, "bad_request", "does not embed")
        ranked = await body_of(
            lane, "/v1/rerank", {"query": QUERY, "documents": [f"{n} x" for n in range(200)]}
        )
        assert sorted(entry["index"] for entry in ranked["results"]) == list(range(200))
        relevance = [entry["relevance_score"] for entry in ranked["results"]]
        assert relevance == sorted(relevance, reverse=True)
        assert lane._host.engine is engine
