"""Scores and classes by real models on a CPU: they are those of the library that the models were made for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from penstock_workers.errors import ModelUnusable
from penstock_workers.item.answer import Answer
from penstock_workers.item.lane import Request
from penstock_workers.lanes.embed.embed_lane import EmbedLane
from penstock_workers.lanes.embed.encoding.classifier import SentenceTransformersClassifier
from penstock_workers.lanes.embed.settings import EmbedSettings

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


async def body_of(lane: EmbedLane, endpoint: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    request = Request("tag", "default", endpoint, json.dumps(body).encode(), 60.0, **more)
    prepared = await lane.prepare(request)
    assert prepared.refused is None, prepared.refused
    tried = await lane.infer(prepared)
    assert isinstance(tried, Answer), tried
    parsed: dict[str, Any] = json.loads(tried.body)
    return parsed


def library(folder: Path) -> Any:
    return import_module("sentence_transformers").CrossEncoder(str(folder), device="cpu", local_files_only=True)


async def test_scores_are_those_of_the_library(lane: EmbedLane, tiny_ranker: Path) -> None:
    """Pairs of all lengths, batched together, score what CrossEncoder.predict gives each; rank orders them as it does."""
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
    """A classifier of three classes gives softmax over the library's logits, and the label of the largest."""
    from engines.tiny_model import Shape, make_model

    labels = ("contradiction", "entailment", "neutral")
    folder = make_model(tmp_path / "tiny", "bert-classifier", Shape(context=512, layers=2, labels=labels))
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
