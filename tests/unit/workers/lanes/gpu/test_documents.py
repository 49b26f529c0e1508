"""What documents may not ask of the engine. No engine is needed to refuse it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock_workers.item.lane import Request
from penstock_workers.lanes.gpu.engine.adapters import Adapters
from penstock_workers.lanes.gpu.engine.engines import RequestRefused
from penstock_workers.lanes.gpu.requests.calls import CallBuilder, ModelFacts
from penstock_workers.lanes.gpu.requests.prompts import Tokenizers
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.gpu.sidecar import SidecarLane
from penstock_workers.settings import WorkerSettings

FACTS = ModelFacts(frozenset({"m"}), context=100, defaults={}, pools=False)
MESSAGES = [{"role": "user", "content": "hello"}]
TEMPLATE = "{% for x in range(10**9) %}{% endfor %}"


class Tokenizer:
    """Has ten tokens, and must not be asked to run anything."""

    def __len__(self) -> int:
        return 10

    def apply_chat_template(self, *_: Any, **__: Any) -> str:
        raise AssertionError("a document's template was run")


def refused(body: dict[str, Any], endpoint: str = "/v1/chat/completions") -> str:
    builder = CallBuilder(GpuSettings(model="m"), Tokenizers(Tokenizer()), FACTS, Adapters({}, "m"))
    with pytest.raises(RequestRefused) as caught:
        builder.build(
            Request("tag", "default", endpoint, orjson.dumps({"model": "m"} | body), 10.0)
        )
    assert type(caught.value) is RequestRefused
    return str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"chat_template": TEMPLATE}, "chat_template: a document may not bring its own"),
        (
            {"chat_template_kwargs": {"chat_template": TEMPLATE}},
            "chat_template_kwargs: 'chat_template' may not be set",
        ),
        (
            {"chat_template_kwargs": {"tokenize": True, "tools": []}},
            "'tokenize', 'tools' may not be set",
        ),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs is list"),
    ],
)
def test_a_document_brings_no_template(more: dict[str, Any], words: str) -> None:
    """A template is a program; it is refused by name, and never run (B21)."""
    assert words in refused({"messages": MESSAGES} | more)


@pytest.mark.parametrize("token", [10, -1, True, 1.0, None])
def test_token_ids_are_those_of_the_model(token: object) -> None:
    """Wrong types and numbers beyond the vocabulary are refused with their place (B21)."""
    assert f"prompt[1] is {token!r}: token ids" in refused(
        {"prompt": [3, token]}, "/v1/completions"
    )
    assert "stop_token_ids[0]" in refused(
        {"prompt": [3], "stop_token_ids": [token]}, "/v1/completions"
    )


@pytest.mark.parametrize(
    "biases",
    [
        {"x": 1},
        {"10": 1},
        {"-1": 1},
        {"3": "much"},
        [1],
        {"9" * 40: 1},
        {"3": 100.5},
        {"3": -1e308},
    ],
)
def test_biases_are_for_tokens_of_the_model(biases: object) -> None:
    """Refused once, instead of tried four times as an unexpected error (B21)."""
    assert "logit_bias" in refused({"prompt": [3], "logit_bias": biases}, "/v1/completions")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","chat_template":"{{1}}"}',
        b'{"model":"m","chat\\u005ftemplate_kwargs":{"chat_template":"x"}}',
        b'{"model":"m","temperature":NaN,"chat_template":"{{1}}"}',
    ],
)
async def test_a_server_of_ours_is_not_given_a_template(body: bytes) -> None:
    """However the name is written (B21)."""
    lane = SidecarLane(
        WorkerSettings(lane="gpu", gpu=GpuSettings(upstream_url="http://127.0.0.1:9/v1"))
    )
    prepared = await lane.prepare(Request("tag", "default", "/v1/chat/completions", body, 10.0))
    assert prepared.refused is not None
    assert prepared.refused.status == 400
    plain = await lane.prepare(
        Request("tag", "default", "/v1/chat/completions", b'{"model":"m","a":"\\u00e9"}', 10.0)
    )
    assert plain.refused is None
