"""The embed lane over vLLM's own server with a pooling model: its answers, its errors, its death
and its return."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson
import pytest
from engines.vllm_server import START_S, VllmServer
from fleet import Fleet

from penstock_ledger.model import JobState
from penstock_producer.reporting.reasons import retries
from penstock_workers.item.answer import Answer, NoAnswer
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Request
from penstock_workers.lanes.embed.server_lane import EmbedServerLane
from penstock_workers.settings import WorkerSettings

QUERY = "how is a file opened"
DOCUMENTS = [
    "import os",
    "def open(path): return a file object, and raise OSError where there is none. " * 4,
    "Réseaux de neurones, 深度学习 and \N{SNOWMAN}.",
    "x",
]
LONG = "open a file and read it; " * 300
ITEMS = 200


@pytest.fixture(scope="module")
def ranker(tiny_ranker: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with VllmServer(tiny_ranker, tmp_path_factory.mktemp("ranker")) as server:
        yield server


@asynccontextmanager
async def lane(server: VllmServer) -> AsyncIterator[EmbedServerLane]:
    embed = {"upstream_url": server.url, "upstream_wait_s": START_S}
    made = EmbedServerLane(WorkerSettings.load(lane="embed", embed=embed), give_up=pytest.fail)
    try:
        await made.start()
        yield made
    finally:
        await made.close()


def request(endpoint: str, body: dict[str, Any], **more: Any) -> Request:
    return Request("job:doc", "default", endpoint, orjson.dumps(body), 60.0, **more)


async def tried(
    one: EmbedServerLane, endpoint: str, body: dict[str, Any], **more: Any
) -> Answer | NoAnswer:
    prepared = await one.prepare(request(endpoint, body, **more))
    return prepared.refused or await one.infer(prepared)


async def answer(
    one: EmbedServerLane, endpoint: str, body: dict[str, Any], **more: Any
) -> dict[str, Any]:
    came = await tried(one, endpoint, body, **more)
    assert isinstance(name_failure(came, 0.0), Reply), came
    assert isinstance(came, Answer)
    parsed: dict[str, Any] = json.loads(came.body)
    return parsed


async def failure(one: EmbedServerLane, endpoint: str, body: dict[str, Any]) -> Failure:
    named = name_failure(await tried(one, endpoint, body), 0.0)
    assert isinstance(named, Failure), named
    return named


def library(folder: Path) -> Any:
    return import_module("sentence_transformers").CrossEncoder(
        str(folder), device="cpu", local_files_only=True
    )


async def test_scores_and_rankings_are_those_of_the_library(ranker: VllmServer) -> None:
    """By the server's own paths: scores in the order of the pairs, rankings by them, and a long
    pair cut as the library cuts."""
    expected = (
        library(ranker.model)
        .predict([(QUERY, document) for document in [*DOCUMENTS, LONG]])
        .tolist()
    )
    async with lane(ranker) as one:
        scored = await answer(one, "/v1/score", {"text_1": QUERY, "text_2": DOCUMENTS})
        pairs = await answer(one, "/score", {"queries": [QUERY] * 2, "documents": DOCUMENTS[:2]})
        ranked = await answer(
            one, "/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, "top_n": 2}
        )
        cut = await answer(one, "/v1/score", {"text_1": QUERY, "text_2": LONG}, on_overflow="trim")
        logits = await answer(one, "/classify", {"input": "import os", "use_activation": False})
        classes = await answer(one, "/classify", {"input": ["import os", "x"]})
    assert [entry["score"] for entry in scored["data"]] == pytest.approx(expected[:4], abs=1e-4)
    assert [entry["score"] for entry in pairs["data"]] == pytest.approx(expected[:2], abs=1e-4)
    best = sorted(range(4), key=lambda place: -expected[place])[:2]
    assert [entry["index"] for entry in ranked["results"]] == best
    assert ranked["results"][0]["document"] == {"text": DOCUMENTS[best[0]]}
    assert [entry["score"] for entry in cut["data"]] == pytest.approx(expected[4:], abs=1e-4)
    assert cut["usage"]["prompt_tokens"] == 512
    assert [entry["num_classes"] for entry in classes["data"]] == [1, 1]
    logit = logits["data"][0]["probs"][0]
    assert classes["data"][0]["probs"][0] == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-4)


@pytest.mark.parametrize(
    ("endpoint", "body", "name", "words"),
    [
        (
            "/v1/score",
            {"text_1": QUERY, "text_2": LONG},
            "context_overflow",
            "maximum context length is 512",
        ),
        (
            "/v1/rerank",
            {"query": LONG * 20, "documents": ["x"]},
            "context_overflow",
            "maximum context length is 512",
        ),
        ("/classify", {"input": LONG}, "context_overflow", "maximum context length is 512"),
        ("/v1/embeddings", {"input": "x"}, "bad_request", "does not embed"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "model": "other"}, "not_found", "other"),
        ("/v1/rerank", {"query": "a"}, "bad_request", "'documents' is missing"),
    ],
)
async def test_what_the_server_refuses_has_its_name(
    ranker: VllmServer, endpoint: str, body: dict[str, Any], name: str, words: str
) -> None:
    """Too long, a task or a model that it does not have, a body without a side: none is tried
    again."""
    async with lane(ranker) as one:
        named = await failure(one, endpoint, body)
    assert (named.name, words in named.detail) == (name, True), named


async def test_a_model_that_embeds_gives_the_models_own_vectors(
    tiny_bert: Path, tmp_path: Path
) -> None:
    """Those of transformers, of length 1; it scores by their cosine, and does not classify."""
    torch, transformers = import_module("torch"), import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_bert)
    model = transformers.AutoModel.from_pretrained(tiny_bert).eval()
    with torch.inference_mode():
        states = [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in DOCUMENTS
        ]
    # vLLM pools the first token's of a BERT
    expected = [torch.nn.functional.normalize(state[0], dim=-1) for state in states]
    with VllmServer(tiny_bert, tmp_path) as server:
        async with lane(server) as one:
            prepared = await one.prepare(request("/v1/embeddings", {"input": DOCUMENTS}))
            came = await one.infer(prepared)
            scored = await answer(
                one, "/v1/score", {"text_1": DOCUMENTS[0], "text_2": DOCUMENTS[1:]}
            )
            refused = await failure(one, "/classify", {"input": "x"})
            long = await failure(one, "/v1/embeddings", {"input": LONG})
    assert isinstance(came, Answer)
    vectors = import_module("penstock_ledger.vectors").unpack(came.body)
    rows = [torch.frombuffer(bytearray(row), dtype=torch.float32) for row in vectors.rows()]
    for row, wanted in zip(rows, expected, strict=True):
        assert torch.allclose(row, wanted, atol=1e-4)
    cosines = [float(rows[0] @ row) for row in rows[1:]]
    assert [entry["score"] for entry in scored["data"]] == pytest.approx(cosines, abs=1e-4)
    assert (refused.name, "does not classify" in refused.detail) == ("bad_request", True)
    assert long.name == "context_overflow"


def test_a_job_outlives_the_engine_of_its_server(ranker: VllmServer, tmp_path: Path) -> None:
    """Its engine is killed: it says 500 to all it had, and ends.

    Started again it answers all, and no attempt was lost."""
    with Fleet(tmp_path) as fleet:
        fleet.control(window=ITEMS)
        source = tmp_path / "pairs.jsonl"
        source.write_text("".join(line(number) + "\n" for number in range(ITEMS)))
        spec = {"lane": "embed", "endpoint": "/v1/rerank", "max_attempts": 1}
        job = fleet.producer.submit(source, spec)
        fleet.worker(16, lane="embed", embed__upstream_url=ranker.url)
        fleet.wait_for_outcomes(job, 10, START_S)
        ranker.kill_engine()
        ranker.wait()
        assert fleet.finished(job) < ITEMS, "the server was too quick for this test"
        assert ranker.answered_with(500)
        ranker.start()
        assert 0 < retries(fleet.counters(job)) <= ITEMS, (
            "items wait for the server, and do not ask it again and again"
        )
        fleet.wait_for(job, JobState.COMPLETED, START_S)
        account = fleet.account(job, ITEMS)
        assert (account.dead, len(account.results)) == ({}, ITEMS)


def line(number: int) -> str:
    documents = [f"{number} {place} {LONG[:800]}" for place in range(8)]
    body = {"query": QUERY, "documents": documents}
    return json.dumps(
        {"custom_id": f"doc-{number}", "method": "POST", "url": "/v1/rerank", "body": body}
    )
