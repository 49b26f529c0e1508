"""Scores and classes on the gpu lane, without an engine: what is asked of it, what is refused, and
how parts end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from penstock_workers.item.lane import Request
from penstock_workers.lanes.gpu.engine.adapters import Adapters
from penstock_workers.lanes.gpu.engine.engines import EngineCall, EngineDied, RequestRefused
from penstock_workers.lanes.gpu.requests import scoring
from penstock_workers.lanes.gpu.requests.calls import CallBuilder, ContextOverflow, ModelFacts
from penstock_workers.lanes.gpu.requests.prompts import Tokenizers
from penstock_workers.lanes.gpu.requests.replies import why_unanswered
from penstock_workers.lanes.gpu.requests.scoring import (
    PARTS_AT_ONCE,
    Classes,
    classes_of,
    run_parts,
)
from penstock_workers.lanes.gpu.settings import GpuSettings


class Tokenizer:
    """A token per word, and the side of the pair that it is of."""

    def __len__(self) -> int:
        return 10

    def __call__(
        self, *texts: str, max_length: int | None = None, truncation: str = ""
    ) -> dict[str, list[int]]:
        sides = [side for side, text in enumerate(texts) for _ in text.split()][:max_length]
        return {"input_ids": [1] * len(sides), "token_type_ids": sides}


@pytest.fixture(autouse=True)
def _played_params(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "upstream", lambda *_: SimpleNamespace)


def build(
    endpoint: str, body: dict[str, Any], classes: Classes, *, pools: bool = True, **more: Any
) -> tuple[EngineCall, int]:
    facts = ModelFacts(frozenset({"m"}), context=8, defaults={}, pools=pools, classes=classes)
    builder = CallBuilder(GpuSettings(model="m"), Tokenizers(Tokenizer()), facts, Adapters({}, "m"))
    return builder.build(Request("tag", "default", endpoint, orjson.dumps(body), 10.0, **more))


def test_each_pair_is_a_call_of_its_own() -> None:
    """With its tokens and an id of its own; together they count as the item's tokens."""
    call, tokens = build(
        "/v1/rerank", {"query": "a b", "documents": ["c", "d e"]}, Classes(("relevance",))
    )
    assert [len(part.token_ids) for part in call.parts] == [3, 4]
    assert tokens == 7
    assert [part.params.extra_kwargs for part in call.parts] == [None, None]
    assert len({part.request_id for part in call.parts} | {call.request_id}) == 3


def test_only_a_model_that_reads_sides_gets_them() -> None:
    """It gets the place where the second side begins; a model without such a layer would end the
    engine."""
    body = {"query": "a b", "documents": ["c", "d e"]}
    call, _ = build("/v1/rerank", body, Classes(("relevance",), reads_sides=True))
    assert [part.params.extra_kwargs for part in call.parts] == [
        {"compressed_token_type_ids": 2}
    ] * 2


def test_a_list_counts_as_what_may_be_in_the_engine_together() -> None:
    """The longest parts of it, so that a long list is not kept out by a room that it never
    fills."""
    _, tokens = build(
        "/v1/rerank", {"query": "a", "documents": ["b"] * 200 + ["b c"]}, Classes(("relevance",))
    )
    assert tokens == 2 * (PARTS_AT_ONCE - 1) + 3


@pytest.mark.parametrize(
    ("endpoint", "classes", "pools", "why"),
    [
        ("/v1/rerank", Classes(), False, "needs a cross-encoder"),
        ("/classify", Classes(), True, "needs a cross-encoder or a classifier"),
        ("/v1/score", Classes(("a", "b")), True, "has 2 classes"),
        ("/v1/score", Classes(("a",), joins=False), True, "gpu.upstream_url"),
        ("/v1/embeddings", Classes(("a",)), True, "does not embed"),
        ("/v1/completions", Classes(("a",)), True, "does not generate"),
        ("/v1/score", Classes(("a",)), True, "'text_1' is missing"),
        ("/classify", Classes(("a",)), True, "entry 0 has no token"),
    ],
)
def test_what_the_model_cannot_do_is_refused_by_name(
    endpoint: str, classes: Classes, pools: bool, why: str
) -> None:
    """The refusal says what the model does, or which field is wrong."""
    with pytest.raises(RequestRefused, match=why):
        build(endpoint, {"input": " ", "prompt": "a"}, classes, pools=pools)


def test_a_pair_that_is_too_long_is_refused_or_cut() -> None:
    """As the job says; the words name the entry."""
    body = {"text_1": "a", "text_2": ["b", "c " * 20]}
    with pytest.raises(ContextOverflow, match="entry 1 has 21"):
        build("/v1/score", body, Classes(("a",)))
    call, _ = build("/v1/score", body, Classes(("a",)), on_overflow="trim")
    assert [len(part.token_ids) for part in call.parts] == [2, 8]


class PlayedEngine:
    """Answers each call at once, unless it dies at one; then no other is answered.

    It counts those that it has."""

    def __init__(self, *, dies_at: str = "") -> None:
        self.inside = self.most = self.left = 0
        self.dies_at = dies_at

    async def run(self, call: EngineCall, began: Callable[[], None]) -> Any:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            if call.request_id == self.dies_at:
                raise EngineDied("gone")
            await asyncio.sleep(0)
            if self.dies_at:
                await asyncio.Event().wait()
            return call.request_id
        finally:
            self.inside -= 1
            self.left += 1


def parts(number: int) -> list[EngineCall]:
    return [EngineCall(str(place), [1], None) for place in range(number)]


async def test_a_long_list_takes_a_bounded_part_of_the_engine() -> None:
    """No more than PARTS_AT_ONCE of one request are in it, and the outputs keep their order."""
    engine: Any = PlayedEngine()
    outputs = await run_parts(engine, parts(300))
    assert outputs == [str(place) for place in range(300)]
    assert engine.most == PARTS_AT_ONCE


async def test_one_part_that_fails_ends_the_others() -> None:
    """Its error is the item's, and nothing of the item stays in the engine."""
    engine: Any = PlayedEngine(dies_at="5")
    with pytest.raises(EngineDied, match="gone"):
        await run_parts(engine, parts(300))
    await asyncio.sleep(0)
    assert engine.inside == 0


def config(**more: Any) -> Any:
    hf = SimpleNamespace(
        **(
            {
                "architectures": ["BertForSequenceClassification"],
                "num_labels": 2,
                "id2label": {0: "a"},
            }
            | more
        )
    )
    return SimpleNamespace(
        runner_type="pooling",
        convert_type="none",
        use_sep_token=True,
        is_multimodal_model=False,
        hf_config=hf,
    )


def test_classes_are_what_the_models_files_name() -> None:
    """A class without a name has its number; a model that embeds, or generates, has none."""
    assert classes_of(config()) == Classes(("a", "1"))
    assert classes_of(config(type_vocab_size=2)).reads_sides
    assert classes_of(config(architectures=["BertModel"])) == Classes()
    assert classes_of(SimpleNamespace(runner_type="generate")) == Classes()


def test_pairs_that_want_a_template_are_not_joined() -> None:
    """By the model's files, or since the operator gave one: scores of other texts would look right
    and not be."""
    joined = config()
    joined.use_sep_token = False
    assert not classes_of(joined).joins
    assert not classes_of(config(), templated=True).joins


class Numbers:
    """What a tensor says of itself, as far as it is asked here."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = numbers

    def numel(self) -> int:
        return len(self._numbers)

    def isfinite(self) -> Numbers:
        return Numbers(*map(math.isfinite, self._numbers))

    def all(self) -> bool:
        return all(self._numbers)


def pooled(*numbers: float, error: str | None = None) -> Any:
    problem = None if error is None else SimpleNamespace(message=error)
    return SimpleNamespace(outputs=SimpleNamespace(data=Numbers(*numbers)), error=problem)


@pytest.mark.parametrize(
    ("outputs", "failure"),
    [
        ([pooled(0.5), pooled(0.1)], None),
        ([pooled(0.5), pooled()], "engine_aborted"),
        ([pooled(0.5), pooled(math.nan)], "invalid_answer"),
        ([pooled(0.5), pooled(1.0, error="cache miss")], "engine_failed"),
    ],
)
def test_one_part_without_an_answer_is_none_of_the_item(
    outputs: list[Any], failure: str | None
) -> None:
    """An aborted part is empty, one that overflowed has no number: neither is stored as a score,
    nor as a vector."""
    in_parts = EngineCall("a", [], None, parts=parts(2))
    missing = why_unanswered(in_parts, outputs)
    assert (missing and missing.failure) == failure
    alone = why_unanswered(EngineCall("a", [1], None), outputs[1])
    assert (alone and alone.failure) == failure
