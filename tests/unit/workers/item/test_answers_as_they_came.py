"""A stored answer is what the provider sent, byte for byte: whatever its key is, and whatever
stands in the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_ledger import redaction
from penstock_ledger.model import ItemKey, Result
from penstock_ledger.redaction import redact, redact_excerpt, remember
from penstock_producer.outputs import on_one_line, output_line
from penstock_workers.item.answer import Answer, excerpt
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.api import api_lane
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.lanes.batch.apis import anthropic, gemini, openai
from penstock_workers.lanes.batch.apis.output_lines import Line
from penstock_workers.lanes.batch.apis.provider import BadLine, BatchAnswer
from penstock_workers.lanes.batch.apis.reading import request_body
from penstock_workers.settings import ProviderSettings

KEYS = (
    "",
    "x",
    "text",
    "ollama",
    "EMPTY",
    "type",
    "message",
    '"',
    "\\",
    "sk-no-key-required",
    "sk-a1b2c3d4e5f60718",
)
FORMS: dict[str, Callable[[str], bytes]] = {
    "openai": lambda said: (
        b'{"choices":[{"message":{"content":%b},"finish_reason":"stop"}]}' % said.encode()
    ),
    "anthropic": lambda said: (
        b'{"type":"message","content":[{"type":"text","text":%b}]}' % said.encode()
    ),
    "gemini": lambda said: (
        b'{\n "candidates": [{"content": {"parts": [{"text": %b}]}}]\n}' % said.encode()
    ),
    "odd numbers": lambda said: (
        b'{"a":1,"a":2,"n":[12345678901234567890123,1E5,-0.0,0.1000,1e400,-1E+999],"choices":[{"text":%b}]}'
        % said.encode()
    ),
}
PIECES = st.sampled_from(
    [*KEYS, "The ollama server", "\\ud83d", "\\u0000", "\u2028", "\u202e", "e\u0301", "\ufeff", " "]
)


def quoted(text: str) -> str:
    return (
        '"'
        + text.replace("\\ud", "\1")
        .replace("\\u0", "\2")
        .replace("\\", "\\\\")
        .replace('"', '\\"')
        .replace("\1", "\\ud")
        .replace("\2", "\\u0")
        + '"'
    )


ANSWERS = st.tuples(
    st.sampled_from(sorted(FORMS)), st.lists(PIECES, min_size=1, max_size=5).map("".join)
).map(lambda made: FORMS[made[0]](quoted(made[1])))


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_texts", ())
    monkeypatch.setattr(redaction, "_bytes", ())


class Provider:
    """Takes the place of the HTTP client: it gives the same answer to every call."""

    def __init__(self, status: int, body: bytes) -> None:
        self._answer = Answer(status, {}, body, 0)

    async def post(self, *_: Any, **__: Any) -> Answer:
        return self._answer

    async def close(self) -> None:
        """Nothing is open."""


def asked(key: str, body: bytes, status: int = 200) -> Answer:
    """What the lane api makes of an answer to a call that was sent with this key."""

    async def ask() -> Answer:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KEY_OF_TEST", key)
            patch.setattr(api_lane, "make_client", lambda *_: Provider(status, body))
            provider = ProviderSettings(base_url="http://127.0.0.1:1/v1", api_key_env="KEY_OF_TEST")
            lane = ApiLane({"default": provider})
            await lane.start()
            tried = await lane.infer(
                Prepared(Request("t", "default", "/v1/chat/completions", b"{}", 5.0))
            )
            assert isinstance(tried, Answer)
            return tried

    return asyncio.run(ask())


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KEYS[1:]), ANSWERS)
def test_an_answer_is_stored_as_it_came_whatever_the_key_is(key: str, body: bytes) -> None:
    """In the lane api, for each form of answers, up to the line of the results (M1)."""
    reply = name_failure(asked(key, body), 0.0)
    assert isinstance(reply, Reply), reply
    assert reply.body == body
    stored = Result(ItemKey("j", 1, "d"), 200, reply.body, None, None, None, None, None, 0, 0, 1, 1)
    assert on_one_line(body) in output_line(stored)


BATCH_LINES: dict[str, tuple[bytes, Callable[[str, Line], Any]]] = {
    "openai": (
        b'{"custom_id":"a", "response":{"status_code":200,"body": %b}, "error":null}',
        openai.read_line,
    ),
    "gemini": (b'{"key": "a", "response": %b}', gemini.read_line),
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*BATCH_LINES, "anthropic"]), st.sampled_from(KEYS[1:]), ANSWERS)
def test_an_answer_of_a_batch_is_read_as_it_came(dialect: str, key: str, body: bytes) -> None:
    """Numbers, keys that stand twice, blanks and half an emoji are not written anew (M1)."""
    remember(key)
    body = on_one_line(body)
    if dialect == "anthropic":
        line = b'{"custom_id":"a","result":{"type":"succeeded","message": %b}}' % body
        read = anthropic.read_line("out", Line(1, line))
        answer = read.answer if isinstance(read, anthropic.Read) else read
    else:
        form, read_line = BATCH_LINES[dialect]
        answer = read_line("out", Line(1, form % body))
    assert isinstance(answer, BatchAnswer), answer
    assert (answer.status, answer.body) == (200, body)


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_a_refusal_loses_the_key(status: int) -> None:
    """It is only words, and goes to logs, Redis and dead letters (M1, B14)."""
    key = KEYS[-1]
    body = orjson.dumps({"error": {"message": f"Incorrect API key: {key}"}})
    answer = asked(key, body, status)
    assert key.encode() not in answer.body
    failure = name_failure(answer, 0.0)
    assert isinstance(failure, Failure)
    assert key not in failure.detail


@pytest.mark.parametrize(
    "body", [b'{"error": "the key is %b"}', b'{"choices": [], "said": "%b"}', b"<html>%b</html>"]
)
def test_a_failed_answer_loses_the_key_in_its_words_and_its_excerpt(body: bytes) -> None:
    """A 200 that is no answer becomes a dead letter, which shows no secret, at the cut of its
    excerpt neither (M1, B14)."""
    key = KEYS[-1].encode()
    answer = asked(key.decode(), body % key)
    failure = name_failure(answer, 0.0)
    assert isinstance(failure, Failure)
    assert key.decode() not in failure.detail
    for size in range(1, len(body) + len(key)):
        shown = excerpt(answer.body, size)
        assert shown is not None
        assert key[: redaction.MIN_CHARS] not in shown


@given(st.sampled_from(KEYS[:9]), st.text(max_size=30))
def test_what_can_be_no_secret_hides_nothing_in_an_error(key: str, words: str) -> None:
    """Local servers take any key, so that people give a word; errors stay readable (M1)."""
    remember(key)
    said = f"The {key} server says: no text of type {key}, {key[:3]}"
    assert redact(said, cut=True) == said
    assert redact_excerpt(said.encode(), 10) == said.encode()[:10]


@pytest.mark.parametrize(
    "key", ["placeholder", "12345678", "x" * 40, "-" * 20, "        ", "changeme"]
)
def test_a_word_a_number_and_a_line_are_no_secrets(key: str) -> None:
    """They stand in ordinary texts, which would become unreadable."""
    remember(key)
    assert redact(f"a {key} b") == f"a {key} b"


@pytest.mark.parametrize(
    "key", ["token-abc123", "correcthorsebattery", "7f3a9c21", "1234567890123456", "p@ss/word"]
)
def test_what_can_be_a_secret_is_hidden(key: str) -> None:
    """From eight characters on, where they are neither letters alone nor digits alone; from sixteen
    on in any case."""
    remember(key)
    assert redact(f"a {key} b") == "a [redacted] b"


def test_a_request_of_a_batch_keeps_its_bytes() -> None:
    """Only its line ends become blanks: numbers and fields are not written anew (M1)."""
    body = b'{"n":12345678901234567890123, "n": 1E5,\n "stream":false}\r\n'
    assert request_body(body) == b'{"n":12345678901234567890123, "n": 1E5,  "stream":false}'
    with pytest.raises(BadLine, match="stream"):
        request_body(b'{"stream": true}')
