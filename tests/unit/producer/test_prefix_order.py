"""Which documents are put next to each other, and when."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from penstock_producer import JobSpec
from penstock_producer.feed.feeder_plan import in_prefix_order, wants_order
from penstock_producer.sources import Document

CHAT = "/v1/chat/completions"


def documents(*bodies: dict[str, Any]) -> list[Document]:
    return [
        Document(f"d{number}", orjson.dumps(body), str(number), number, {})
        for number, body in enumerate(bodies)
    ]


def order(endpoint: str, *bodies: dict[str, Any]) -> list[str]:
    return [document.doc_id for document in in_prefix_order(documents(*bodies), endpoint)]


def chat(text: str, system: str | None = None, **more: Any) -> dict[str, Any]:
    head = [{"role": "system", "content": system}] if system else []
    return {"model": "m", **more, "messages": [*head, {"role": "user", "content": text}]}


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"lane": "gpu", "prompt": "{text}"}, True),
        ({"lane": "gpu"}, False),
        ({"lane": "api", "prompt": "{text}", "model": "m"}, False),
        ({"lane": "embed", "prompt": "{text}", "endpoint": "/v1/embeddings"}, False),
        ({"lane": "gpu", "prompt": "{text}", "prefix_order": False}, False),
        ({"lane": "api", "prefix_order": True}, True),
        ({"lane": "api", "prompt_cache": "auto"}, True),
        ({"lane": "api", "prompt_cache": "on", "prefix_order": False}, False),
    ],
)
def test_gpu_jobs_with_a_prompt_are_ordered_unless_the_spec_says(
    spec: dict[str, Any], wanted: bool
) -> None:
    """An explicit choice wins; without one only our own engines get another order than the
    file's."""
    assert wants_order(JobSpec(**spec)) is wanted


def test_alike_beginnings_come_together() -> None:
    """The system text first, then the user's: as a prompt is rendered."""
    bodies = [chat("b2", "Z"), chat("a1", "Y"), chat("a1", "Z"), chat("b1", "Z"), chat("z", "Y")]
    assert order(CHAT, *bodies) == ["d1", "d4", "d2", "d3", "d0"]


def test_parameters_before_the_text_do_not_tear_prompts_apart() -> None:
    """Only what the prompt is made of counts, wherever the body has it."""
    bodies = [chat("b", temperature=0.1), chat("a", temperature=0.9), chat("a2", temperature=0.1)]
    assert order(CHAT, *bodies) == ["d1", "d2", "d0"]


def test_what_is_rendered_first_is_compared_first() -> None:
    """Tools and instructions stand before the text in a prompt, though a body may have them behind
    it."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert order(CHAT, {**chat("a"), "tools": tools}, chat("b"), {**chat("b"), "tools": tools}) == [
        "d1",
        "d0",
        "d2",
    ]
    asked = [
        {"input": "a", "instructions": "Z"},
        {"input": "b", "instructions": "Y"},
        {"input": "b", "instructions": "Z"},
    ]
    assert order("/v1/responses", *asked) == ["d1", "d0", "d2"]
    systems = [("a", "Z"), ("b", "Y"), ("a", "Y")]
    messages = [{**chat(text), "system": system} for text, system in systems]
    assert order("/v1/messages", *messages) == ["d2", "d1", "d0"]


@pytest.mark.parametrize(
    ("endpoint", "field"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input"), ("/x", "y")]
)
def test_other_endpoints_have_their_own_field(endpoint: str, field: str) -> None:
    """Where no field is known the whole body is compared."""
    assert order(endpoint, {field: "b"}, {field: "a"}, {field: "ab"}) == ["d1", "d2", "d0"]


def test_a_text_that_quotes_the_field_is_not_taken_for_it() -> None:
    """Quotes inside a text are escaped, so only the field itself is found."""
    bodies: list[dict[str, Any]] = [
        {"user": '"messages":z', "messages": ["b"]},
        {"user": "y", "messages": ["a"]},
        {"other": 1},
    ]
    assert order(CHAT, *bodies) == ["d1", "d0", "d2"]


def test_equal_prompts_keep_their_order_and_the_order_is_always_the_same() -> None:
    """Stable, and independent of chance: a step that is repeated publishes in the same order."""
    chosen = random.Random(7)
    bodies = [chat(chosen.choice("abc") + ' é\n"' * chosen.randint(0, 2)) for _ in range(200)]
    first = order(CHAT, *bodies)
    assert first == order(CHAT, *bodies)
    texts = [bodies[int(name[1:])]["messages"][0]["content"] for name in first]
    runs = [text for number, text in enumerate(texts) if number == 0 or texts[number - 1] != text]
    assert len(runs) == len(set(texts))
    for text in runs:
        same = [int(name[1:]) for name, seen in zip(first, texts, strict=True) if seen == text]
        assert same == sorted(same)
