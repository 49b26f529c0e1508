from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_producer.errors import SpecError
from penstock_producer.sources.forms.strict_json import RowFault
from penstock_producer.sources.overrides import Overrides

CHAT = {
    "model": "m",
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "long {x} text"}],
}


def applied(overrides: dict[str, Any], request: dict[str, Any]) -> Any:
    return json.loads(Overrides(overrides).apply(json.dumps(request).encode()))


def test_nothing_to_change_keeps_the_bytes() -> None:
    """A replay without overrides sends exactly what was sent before."""
    assert Overrides({}).apply(b'{ "model": "m" }') == b'{ "model": "m" }'


def test_set_writes_top_level_fields() -> None:
    """`set` replaces and adds fields of the request and leaves the others."""
    assert applied({"set": {"model": "big", "max_tokens": 9}}, CHAT) == CHAT | {
        "model": "big",
        "max_tokens": 9,
    }


def test_prompt_rewrites_the_last_user_message() -> None:
    """The new prompt wraps the text that was sent, braces in it included, and keeps the system
    message."""
    changed = applied({"prompt": "Briefly: {prompt}"}, CHAT)
    assert [message["content"] for message in changed["messages"]] == [
        "s",
        "Briefly: long {x} text",
    ]


@pytest.mark.parametrize("field", ["input", "prompt"])
def test_prompt_rewrites_other_texts(field: str) -> None:
    """Requests without messages have their input or prompt rewritten."""
    assert applied({"prompt": "{prompt}!"}, {"model": "m", field: "t"}) == {
        "model": "m",
        field: "t!",
    }


@pytest.mark.parametrize(
    "request_",
    [{"messages": []}, {"messages": [{"role": "user", "content": [{}]}]}, {"input": [1]}],
)
def test_a_request_without_text_is_a_row_fault(request_: dict[str, Any]) -> None:
    """Where there is no plain text to rewrite, the document fails alone and by name."""
    with pytest.raises(RowFault, match="prompt_not_found"):
        applied({"prompt": "{prompt}"}, request_)


@pytest.mark.parametrize(
    "overrides",
    [
        {"set": {"seed": 2**70}},
        {"body": {"model": "m", "seed": 2**70}},
        {"prompt": "\ud800 {prompt}"},
    ],
)
def test_overrides_that_no_json_is_written_of_are_refused(overrides: dict[str, Any]) -> None:
    """They are kept with the replay."""
    with pytest.raises(SpecError):
        Overrides(overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        {"model": "x"},
        {"prompt": "no column"},
        {"prompt": "{text}"},
        {"prompt": "{"},
        {"set": {"stream": True}},
    ],
)
def test_unusable_overrides_are_refused_before_anything_is_replayed(
    overrides: dict[str, Any],
) -> None:
    """A replay with overrides that cannot work is refused as a whole."""
    with pytest.raises(SpecError):
        Overrides(overrides)
