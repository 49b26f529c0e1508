"""The operator's chat template: where it is read from, what it replaces, and what stops the
start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock_workers.errors import BadEngineSettings
from penstock_workers.item.lane import Request
from penstock_workers.lanes.gpu.engine.adapters import Adapters
from penstock_workers.lanes.gpu.requests.calls import CallBuilder, ModelFacts
from penstock_workers.lanes.gpu.requests.prompts import MAX_BYTES, Tokenizers, read_template
from penstock_workers.lanes.gpu.settings import GpuSettings

FACTS = ModelFacts(frozenset({"m"}), context=100, defaults={}, pools=False)


class Rendered(Exception):
    """Which template was rendered."""


class Tokenizer:
    """Says which template it would render."""

    chat_template = "the model's"

    def __len__(self) -> int:
        return 10

    def apply_chat_template(self, *_: Any, chat_template: str | None = None, **__: Any) -> str:
        raise Rendered(chat_template or self.chat_template)


@pytest.mark.parametrize(
    ("given", "rendered"), [(None, "the model's"), ("the operator's", "the operator's")]
)
def test_the_operators_template_is_rendered(given: str | None, rendered: str) -> None:
    """It takes the place of the model's for every document, and the engine's own tokenizer keeps
    what it has."""
    tokenizer = Tokenizer()
    builder = CallBuilder(
        GpuSettings(model="m"), Tokenizers(tokenizer, given), FACTS, Adapters({}, "m")
    )
    body = orjson.dumps({"messages": [{"role": "user", "content": "hello"}]})
    with pytest.raises(Exception, match=rendered):
        builder.build(Request("tag", "default", "/v1/chat/completions", body, 10.0))
    assert tokenizer.chat_template == "the model's"


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    """A path that is wrong, a folder, a file of weights and one that is not text are refused with
    setting and path."""
    (tmp_path / "weights").write_bytes(b"{" * (MAX_BYTES + 1))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.jinja", "weights", "binary", "."):
        with pytest.raises(BadEngineSettings, match=r"gpu\.chat_template: ") as caught:
            read_template(str(tmp_path / name))
        assert str(tmp_path) in str(caught.value)


def test_none_given_is_none_read() -> None:
    """Without the setting the model's own template stays, and nothing is imported for it."""
    assert read_template(None) is None


def test_a_server_beside_the_worker_has_its_own() -> None:
    """With upstream_url the server renders, so the setting is refused instead of ignored."""
    with pytest.raises(ValueError, match="leave out chat_template"):
        GpuSettings(upstream_url="http://127.0.0.1:8000/v1", chat_template="{{ messages }}")
