"""Scores, rankings and classes by a server with a classifier: text-embeddings-inference's contract,
and vLLM's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from embed_servers import PlayedServer, Tei, Vllm

from penstock_workers.item.answer import Answer, NoAnswer
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Request
from penstock_workers.lanes.embed.server_lane import EmbedServerLane
from penstock_workers.lanes.scoring import MAX_TEXTS
from penstock_workers.settings import WorkerSettings

RANKER, CLASSIFIER = ("relevance",), ("no", "maybe", "yes")
DOCUMENTS = ["a b", "a b c d", "a"]
MODELS = {Tei: "BAAI/bge-small", Vllm: "tiny-bert"}
Kind = Callable[..., PlayedServer]
KINDS: list[Any] = [Tei, Vllm]


@asynccontextmanager
async def lane(server: PlayedServer) -> AsyncIterator[EmbedServerLane]:
    async with server.served() as url:
        settings = WorkerSettings.load(
            lane="embed", embed={"upstream_url": url, "upstream_wait_s": 10.0}
        )
        made = EmbedServerLane(settings, give_up=pytest.fail)
        try:
            await made.start()
            yield made
        finally:
            await made.close()


def request(endpoint: str, body: dict[str, Any], **more: Any) -> Request:
    return Request("job:doc", "elsewhere", endpoint, orjson.dumps(body), 10.0, **more)


async def tried(one: EmbedServerLane, asked: Request) -> Answer | NoAnswer:
    prepared = await one.prepare(asked)
    return prepared.refused or await one.infer(prepared)


async def answer(one: EmbedServerLane, asked: Request) -> dict[str, Any]:
    reply = name_failure(await tried(one, asked), 0.0)
    assert isinstance(reply, Reply), reply
    parsed: dict[str, Any] = json.loads(reply.body)
    assert reply.prompt_tokens == parsed["usage"]["prompt_tokens"]
    return parsed


async def failure(one: EmbedServerLane, asked: Request) -> Failure:
    named = name_failure(await tried(one, asked), 0.0)
    assert isinstance(named, Failure), named
    return named


@pytest.mark.parametrize("kind", KINDS)
async def test_a_ranking_is_as_a_hosted_model_gives_it(kind: Kind) -> None:
    """The best first with their texts, short where top_n says so, whichever server made the
    scores."""
    server = kind(RANKER)
    async with lane(server) as one:
        body = await answer(
            one, request("/v1/rerank", {"query": "q", "documents": DOCUMENTS, "top_n": 2})
        )
        bare = await answer(
            one,
            request(
                "/rerank",
                {"query": "q", "documents": DOCUMENTS, "return_documents": False, "model": "mine"},
            ),
        )
    assert body == {
        "id": "rerank-job:doc",
        "model": MODELS[type(server)],
        "usage": {"prompt_tokens": 10, "total_tokens": 10},
        "results": [
            {"index": 1, "document": {"text": "a b c d"}, "relevance_score": 5.0},
            {"index": 0, "document": {"text": "a b"}, "relevance_score": 3.0},
        ],
    }
    assert bare["model"] == "mine"
    assert bare["results"][2] == {"index": 2, "relevance_score": 2.0}


@pytest.mark.parametrize("kind", KINDS)
async def test_scores_come_in_the_order_of_the_pairs(kind: Kind) -> None:
    """One against many, and as many of each."""
    async with lane(kind(RANKER)) as one:
        many = await answer(one, request("/v1/score", {"text_1": "q", "text_2": DOCUMENTS}))
        pairs = await answer(
            one, request("/score", {"text_1": ["q", "q r s"], "text_2": ["a", "a"]})
        )
    assert [(entry["index"], entry["score"]) for entry in many["data"]] == [
        (0, 3.0),
        (1, 5.0),
        (2, 2.0),
    ]
    assert [entry["score"] for entry in pairs["data"]] == [2.0, 4.0]


@pytest.mark.parametrize("kind", KINDS)
async def test_classes_have_labels_and_numbers_in_the_models_order(kind: Kind) -> None:
    """text-embeddings-inference lists them by score, and vLLM by class: here they are by class."""
    async with lane(kind(CLASSIFIER)) as one:
        body = await answer(one, request("/classify", {"input": ["a b", "a"]}))
    assert body["data"] == [
        {"index": 0, "label": "yes", "probs": [2.0, 3.0, 4.0], "num_classes": 3},
        {"index": 1, "label": "yes", "probs": [1.0, 2.0, 3.0], "num_classes": 3},
    ]


async def test_what_is_sent_are_the_servers_own_fields() -> None:
    """Their documented paths and names: a query once, pairs as lists of two, and whether a text may
    be cut."""
    vllm, tei, classes = Vllm(RANKER), Tei(RANKER), Vllm(CLASSIFIER)
    asked = {"query": "q", "documents": ["a", "b"], "use_activation": False}
    async with lane(vllm) as one:
        await tried(one, request("/v1/rerank", asked, on_overflow="trim"))
        await tried(one, request("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d"]}))
    async with lane(tei) as one:
        await tried(one, request("/v1/rerank", asked, on_overflow="trim"))
        await tried(one, request("/classify", {"input": "a"}))
    async with lane(classes) as one:
        await tried(one, request("/classify", {"input": "a"}))
    ranked = {
        "text_1": "q",
        "text_2": ["a", "b"],
        "use_activation": False,
        "truncate_prompt_tokens": -1,
    }
    assert vllm.asked == [
        ("/score", {"model": "tiny-bert", **ranked}),
        ("/score", {"model": "tiny-bert", "text_1": ["a", "b"], "text_2": ["c", "d"]}),
    ]
    assert tei.asked == [
        ("/predict", {"inputs": [["q", "a"], ["q", "b"]], "raw_scores": True, "truncate": True}),
        ("/predict", {"inputs": [["a"]], "raw_scores": False, "truncate": False}),
    ]
    assert classes.asked == [("/classify", {"model": "tiny-bert", "input": ["a"]})]


@pytest.mark.parametrize(
    ("server", "endpoint", "why"),
    [
        (Tei(), "/v1/rerank", "needs a cross-encoder"),
        (Tei(CLASSIFIER), "/v1/score", "has 3 classes"),
        (Tei(RANKER), "/v1/embeddings", "does not embed"),
        (Vllm(), "/classify", "does not classify"),
        (Vllm(CLASSIFIER), "/v1/rerank", "does not rerank"),
        (Vllm(RANKER), "/v1/embeddings", "does not embed"),
    ],
)
async def test_a_model_that_cannot_do_it_says_so(
    server: PlayedServer, endpoint: str, why: str
) -> None:
    """A bad request that says what the model is not for, as by a hosted model."""
    body = {"input": "a", "query": "q", "documents": ["a"], "text_1": "a", "text_2": "b"}
    async with lane(server) as one:
        named = await failure(one, request(endpoint, body))
    assert named.name == "bad_request"
    assert why in named.detail


@pytest.mark.parametrize("kind", KINDS)
async def test_bodies_are_refused_before_they_are_sent(kind: Kind) -> None:
    """A missing side, too many documents and fields that are not followed reach no server."""
    server = kind(RANKER)
    async with lane(server) as one:
        for body, field in (
            ({"documents": ["a"]}, "'query' is missing"),
            ({"query": "q", "documents": ["a"] * (MAX_TEXTS + 1)}, f"at most {MAX_TEXTS}"),
            (
                {"query": "q", "documents": ["a"], "max_tokens_per_doc": 9},
                "'max_tokens_per_doc' is 9",
            ),
        ):
            named = await failure(one, request("/v1/rerank", body))
            assert named.name == "bad_request"
            assert field in named.detail
    assert server.asked == []


@pytest.mark.parametrize("server", [Tei(RANKER), Tei(RANKER, invalid=413), Vllm(RANKER)])
async def test_a_pair_that_is_too_long_is_refused_or_cut(server: PlayedServer) -> None:
    """By the server's own count of tokens; cut where the job says so."""
    body = {"text_1": "q", "text_2": "w " * 9}
    async with lane(server) as one:
        assert (await failure(one, request("/v1/score", body))).name == "context_overflow"
        assert len((await answer(one, request("/v1/score", body, on_overflow="trim")))["data"]) == 1


async def test_more_documents_than_the_server_takes_are_too_large() -> None:
    """text-embeddings-inference's --max-client-batch-size is named."""
    async with lane(Tei(RANKER)) as one:
        named = await failure(one, request("/v1/rerank", {"query": "q", "documents": ["a"] * 5}))
    assert named.name == "request_too_large"
    assert "--max-client-batch-size" in named.detail


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "said",
    [
        b"<html>",
        b"{}",
        b"[]",
        b"7",
        b'{"data": []}',
        b'{"data": [{"index": 0, "score": null}]}',
        b"[[]]",
        b'{"data": [{"index": 0, "score": 1e999}]}',
        b'{"data": [{"index": 1, "score": 1}]}',
        b'[[{"score": "x", "label": "relevance"}]]',
        b'[[{"score": 1, "label": "other"}]]',
    ],
)
async def test_an_answer_without_usable_scores_is_none(kind: Kind, said: bytes) -> None:
    """Too few, of another text or no numbers at all: tried again, never stored."""
    server = kind(RANKER)
    server.answer = said
    async with lane(server) as one:
        assert (
            await failure(one, request("/v1/score", {"text_1": "a", "text_2": "b"}))
        ).name == "invalid_answer"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_lost_its_model_costs_no_attempt(kind: Kind) -> None:
    """500 from a server that is not healthy is its own death; from a healthy one it is the
    request's."""
    server = kind(RANKER)
    asked = request("/v1/score", {"text_1": "a", "text_2": "b"})
    async with lane(server) as one:
        server.fails = [(500, "oops", "Backend")]
        assert (await failure(one, asked)).name == "server_error"
        server.fails, server.healthy = [(500, "the engine died", "Backend")], False
        lost = await failure(one, asked)
        assert lost.name == "connect_failed"
        assert "the engine died" in lost.detail
        assert one.gauges()["bound"] == "starting"


@pytest.mark.parametrize(
    ("server", "tasks"),
    [
        (Tei(), ("embed",)),
        (Tei(CLASSIFIER), ("classify",)),
        (Tei(RANKER), ("rerank", "score", "classify")),
        (Vllm(RANKER), ()),
    ],
)
async def test_a_worker_says_what_its_server_does(
    server: PlayedServer, tasks: tuple[str, ...]
) -> None:
    """As far as the server says it, with the longest text that it takes."""
    async with lane(server) as one:
        assert (one.served.tasks, one.served.context) == (tasks, 8)
