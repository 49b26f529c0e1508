from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_producer.errors import InvalidDocument
from penstock_producer.job.spec import JobSpec
from penstock_producer.open_job import DocumentChecker

PLAIN = DocumentChecker(JobSpec(prompt="Sum: {text}", model="m"), 1000)
BODIES = DocumentChecker(JobSpec(model="default", params={"max_tokens": 3}), 1000)
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def test_records_go_through_the_prompt() -> None:
    """With a prompt, a pushed record becomes a request; an integer id becomes text."""
    doc_id, body = PLAIN.check(7, {"text": "é\u2028"})
    assert doc_id == "7"
    assert json.loads(body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Sum: é\u2028"}],
    }


@pytest.mark.parametrize("form", [dict, json.dumps, lambda body: json.dumps(body).encode()])
def test_bodies_are_completed_and_kept(form: Any) -> None:
    """Without a prompt, a pushed body is kept, and the spec fills in what it lacks; JSON text and
    bytes will do."""
    _, body = BODIES.check("a", form(CHAT | {"max_tokens": 1}))
    assert json.loads(body) == CHAT | {"model": "default", "max_tokens": 1}


@pytest.mark.parametrize(
    ("doc_id", "document", "code"),
    [
        ("", CHAT, "invalid_id"),
        ("a\n", CHAT, "invalid_id"),
        (True, CHAT, "invalid_id"),
        ("a", {"messages": []}, "invalid_request"),
        ("a", CHAT | {"stream": True}, "streaming_unsupported"),
        ("a", CHAT | {"x": float("nan")}, "invalid_json"),
        ("a", CHAT | {"x": object()}, "invalid_json"),
        ("a", CHAT | {"x": 2**64}, "invalid_number"),
        ("a", CHAT | {"x": "\u0000"}, "nul_character"),
        ("a", CHAT | {"x": "\ud800"}, "invalid_unicode"),
        ("a", CHAT | {"x": "y" * 2000}, "line_too_long"),
        ("a", '{"messages": ["\ud800"]}', "invalid_unicode"),
        ("a", b"nonsense", "invalid_json_line"),
        ("a", b"[]", "invalid_json_line"),
    ],
)
def test_pushed_documents_are_checked_like_lines(doc_id: Any, document: Any, code: str) -> None:
    """What a file may not hold, a service may not push: the same checks and the same codes."""
    with pytest.raises(InvalidDocument) as caught:
        BODIES.check(doc_id, document)
    assert caught.value.code == code
