"""Which models a provider lists, as a worker reads them."""

from __future__ import annotations

import json

import pytest

from penstock_producer.feed.queues import TEXT_BYTES
from penstock_workers.lanes.api.polls import ModelList, names_in
from penstock_workers.provider_calls import list_address
from penstock_workers.settings import ProviderSettings


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({"object": "list", "data": [{"id": "a"}, {"id": "b/c"}]}, ["a", "b/c"]),
        ({"models": [{"name": "models/gemini-x"}]}, ["gemini-x"]),
        ({"data": [{"id": 7}, {}, 7, {"id": ""}, {"id": "x" * 513}, {"id": "a\nb"}]}, []),
        ({"data": {"id": "a"}}, []),
        ([], []),
        (7, []),
    ],
)
def test_names_are_read_from_lists_of_every_form(said: object, names: list[str]) -> None:
    """OpenAI's, Anthropic's and Gemini's; what is no name of a model is left out."""
    assert names_in(json.dumps(said).encode()) == names
    assert names_in(b"{") == []


def test_a_heartbeat_has_as_many_names_as_fit() -> None:
    """None where no provider was asked; of very many names a part."""
    models = ModelList({"default": ProviderSettings(base_url="http://127.0.0.1:1")})
    assert models.to_text() is None
    models._names = {"default": [f"model-{number:08}" for number in range(10_000)], "none": []}
    text = models.to_text()
    assert text is not None
    assert len(text) <= TEXT_BYTES
    assert json.loads(text)["default"][0] == "model-00000000"
    assert "none" not in json.loads(text)


def test_lists_are_asked_where_calls_go() -> None:
    """Behind the base URL, with its version or without."""
    assert (
        list_address(ProviderSettings(kind="openai", base_url="http://x/v1"))
        == "http://x/v1/models"
    )
    assert (
        list_address(ProviderSettings(kind="openai", base_url="http://x")) == "http://x/v1/models"
    )
    assert (
        list_address(ProviderSettings(kind="anthropic", base_url="https://x"))
        == "https://x/v1/models"
    )
    assert (
        list_address(ProviderSettings(kind="gemini", base_url="https://x/v1beta"))
        == "https://x/v1beta/models"
    )
