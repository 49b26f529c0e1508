"""Lines of batch files: what is written, what is read, and what is no line at all."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from penstock_workers.lanes.batch.apis import anthropic, gemini, openai
from penstock_workers.lanes.batch.apis.anthropic import LIMITS as ANTHROPIC
from penstock_workers.lanes.batch.apis.output_lines import (
    ENDS_BYTES,
    EndlessLine,
    Line,
    LineCutter,
    TooLong,
)
from penstock_workers.lanes.batch.apis.provider import (
    BadLine,
    BatchAnswer,
    LineTooLong,
    UnreadableLine,
)

BODY = b'{"model":"m","messages":[{"role":"user","content":"\xc3\xa9"}]}'


def line(value: Any) -> Line:
    return Line(7, value if isinstance(value, bytes) else json.dumps(value).encode())


def test_a_request_beyond_the_providers_limit_is_too_large() -> None:
    """Which is another thing than a request that no batch of it takes."""
    with pytest.raises(LineTooLong, match="may have 50"):
        openai.write_line("a", "/v1/chat/completions", BODY, 50)
    with pytest.raises(LineTooLong, match="may have 50"):
        anthropic.write_line("a", "/v1/messages", BODY, ANTHROPIC._replace(line_bytes=50))
    with pytest.raises(LineTooLong, match="may have 50"):
        gemini.write_line("a", "/v1beta/generateContent", BODY, 50)


# -- cutting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_the_same_however_they_come(size: int) -> None:
    """A stream cut anywhere gives the same lines, and ends at the same place."""
    text = b"one\n\ntwo\xc3\xa9\nno end"
    cutter = LineCutter(100, 100)
    lines = [one for at in range(0, len(text), size) for one in cutter.feed(text[at : at + size])]
    assert cutter.offset == text.rindex(b"\n") + 1
    assert [*lines, *cutter.end()] == [b"one\n", b"\n", b"two\xc3\xa9\n", b"no end"]
    assert cutter.lines == 4


def test_a_line_that_is_too_long_is_passed_over() -> None:
    """Its size is said, and the lines around it are whole."""
    cutter = LineCutter(10, 1000)
    lines = [
        one for part in (b"a\n", b"x" * 300, b"y" * 20, b"z\nb\n") for one in cutter.feed(part)
    ]
    whole = b"x" * 300 + b"y" * 20 + b"z\n"
    assert lines == [b"a\n", TooLong(322, whole, whole), b"b\n"]


def test_the_ends_of_a_line_that_is_too_long_are_kept() -> None:
    """Of a bounded number of bytes each, wherever the stream was cut."""
    whole = b"".join(b"%06d" % number for number in range(5_000)) + b"\n"
    for size in (7, 1_000, 5_000, 29_000):
        cutter = LineCutter(20_000, 10**6)
        found = [
            one for at in range(0, len(whole), size) for one in cutter.feed(whole[at : at + size])
        ]
        assert found == [TooLong(len(whole), whole[:ENDS_BYTES], whole[-ENDS_BYTES:])]


def test_a_line_without_an_end_is_given_up() -> None:
    """What is read for lines that are too long has a limit."""
    cutter = LineCutter(10, 1000)
    assert not any(list(cutter.feed(b"x" * 100)) for _ in range(10))
    with pytest.raises(EndlessLine, match="more than 1100 bytes"):
        list(cutter.feed(b"x" * 100))


def test_a_beginning_is_known_again() -> None:
    """After a break the digest stands for whole lines only, those that were passed over too."""
    cutter = LineCutter(10, 1000)
    list(cutter.feed(b"one\n" + b"x" * 50 + b"\nhalf a li"))
    cutter.forget()
    assert cutter.offset == 55
    assert cutter.is_same(hashlib.sha256(b"one\n" + b"x" * 50 + b"\n").digest())
    cutter.restart()
    assert (cutter.offset, cutter.lines) == (0, 0)
    assert cutter.is_same(hashlib.sha256(b"").digest())


# -- writing ---------------------------------------------------------------------------------------


def test_bodies_are_passed_through() -> None:
    """OpenAI's line has the body's own bytes; Gemini's has no model, which is the batch's."""
    written = openai.write_line("a-1", "/v1/chat/completions", BODY, 1000)
    assert BODY in written
    assert json.loads(written) == {
        "custom_id": "a-1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": json.loads(BODY),
    }
    assert json.loads(anthropic.write_line("a-1", "/v1/messages", BODY, ANTHROPIC)) == {
        "custom_id": "a-1",
        "params": json.loads(BODY),
    }
    written = gemini.write_line(
        "a-1", "/v1beta/generateContent", b'{"model":"m","contents":[]}', 1000
    )
    assert json.loads(written) == {"key": "a-1", "request": {"contents": []}}


def test_a_body_of_several_lines_becomes_one() -> None:
    """A body that was written for people is one line in the file."""
    written = openai.write_line(
        "a", "/v1/embeddings", b'{\n  "model": "m",\n  "input": "x"\n}', 1000
    )
    assert written.count(b"\n") == 1
    assert json.loads(written)["body"] == {"model": "m", "input": "x"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"model":"m","stream":true}', "stream: true"),
        (b"[1]", "not a JSON object"),
        (b"\n", "not JSON"),
        (b'{"model":"' + b"x" * 2000 + b'"}', "may have 1000"),
    ],
)
def test_what_cannot_be_a_line_is_refused_by_name(body: bytes, why: str) -> None:
    """A request that a batch cannot hold is one document's failure, found before it is packed."""
    with pytest.raises(BadLine, match=why):
        openai.write_line("a", "/v1/chat/completions", body, 1000)


def test_gemini_takes_its_own_endpoint() -> None:
    """A body of another dialect does not get into its batches."""
    with pytest.raises(BadLine, match="/v1beta/generateContent"):
        gemini.write_line("a", "/v1/chat/completions", BODY, 1000)


def test_anthropic_takes_its_own_endpoint_and_shorter_ids() -> None:
    """The batch's mark goes before each id, so an id has 55 characters at most."""
    with pytest.raises(BadLine, match="/v1/messages"):
        anthropic.write_line("a", "/v1/chat/completions", BODY, ANTHROPIC)
    with pytest.raises(BadLine, match="1 to 55"):
        anthropic.write_line("a" * 56, "/v1/messages", BODY, ANTHROPIC)


# -- OpenAI's answers ------------------------------------------------------------------------------


def test_openais_answers() -> None:
    """A success keeps its body byte by byte, a refusal its status, and what got no answer its
    code."""
    text = (
        b'{"id":"batch_req_1","custom_id":"a","response":{"status_code":200,"request_id":"r","body":{"x": '
        b'1.50}},"error":null}'
    )
    assert openai.read_line("f", line(text)) == BatchAnswer("a", 200, b'{"x": 1.50}', "r")
    refused = {
        "custom_id": "a",
        "response": {"status_code": 400, "body": {"error": {"code": "c"}}},
        "error": None,
    }
    read = openai.read_line("f", line(refused))
    assert isinstance(read, BatchAnswer)
    assert (read.status, json.loads(read.body), read.error) == (400, {"error": {"code": "c"}}, None)
    expired = {
        "custom_id": "a",
        "response": None,
        "error": {"code": "batch_expired", "message": "too late"},
    }
    assert openai.read_line("f", line(expired)) == BatchAnswer(
        "a", None, b"", None, "batch_expired", "too late"
    )


def test_vllms_errors_have_a_body() -> None:
    """vLLM puts a refusal beside a response without a body: it becomes the body that real time
    would have shown."""
    vllm = {
        "id": "v",
        "custom_id": "a",
        "response": {"status_code": 400, "request_id": "r", "body": None},
        "error": {"message": "too long", "type": "BadRequestError", "code": 400},
    }
    read = openai.read_line("f", line(vllm))
    assert isinstance(read, BatchAnswer)
    assert (read.status, read.error, read.message) == (400, "400", "too long")
    assert json.loads(read.body) == {"error": vllm["error"]}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b'"a"',
        b'{"custom_id":7,"response":null}',
        b"{}",
        b"\xff\xfe",
        b'{"custom_id":"a"}',
        b'{"custom_id":"","error":{"code":"x"}}',
        b'{"custom_id":"a","response":[]}',
        b'{"custom_id":"a","response":{"status_code":"200","body":{}}}',
        b'{"custom_id":"a","response":{"status_code":true}}',
        b'{"custom_id":"' + b"a" * 600 + b'","error":{"code":"x"}}',
        b'{"custom_id":"a","response":{"status_code":200,"bo',
        b'{"custom_id":"a\\u0000b","error":{"code":"x"}}',
        b'{"custom_id":"a","error":' + b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("read_line", [openai.read_line, anthropic.read_line, gemini.read_line])
def test_what_is_no_answer_is_one_unreadable_line(read_line: Any, text: bytes) -> None:
    """Whatever a line holds, it ends as a value that names output and line."""
    read = read_line("file-1", line(text))
    assert isinstance(read, UnreadableLine), read
    assert (read.output, read.line) == ("file-1", 7)
    assert len(read.why) < 700


# -- Anthropic's and Gemini's ----------------------------------------------------------------------


def of_anthropic(result: Any) -> tuple[str, BatchAnswer]:
    read = anthropic.read_line("b", line({"custom_id": "2c9e41ab-a-1", "result": result}))
    assert not isinstance(read, UnreadableLine), read
    return read.mark, read.answer


def test_anthropics_results() -> None:
    """The mark is taken off the id; an error gets the status that it has in real time; other ends
    have their names."""
    assert of_anthropic({"type": "succeeded", "message": {"id": "m"}}) == (
        "2c9e41ab",
        BatchAnswer("a-1", 200, b'{"id": "m"}'),
    )
    envelope = {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "busy"},
        "request_id": "req_1",
    }
    _, answer = of_anthropic({"type": "errored", "error": envelope})
    assert (answer.status, answer.error, answer.message, answer.request_id) == (
        529,
        "overloaded_error",
        "busy",
        "req_1",
    )
    assert json.loads(answer.body) == envelope
    assert of_anthropic({"type": "expired"})[1] == BatchAnswer(
        "a-1", None, b"", error="batch_expired"
    )
    assert of_anthropic({"type": "canceled"})[1] == BatchAnswer(
        "a-1", None, b"", error="batch_cancelled"
    )


@pytest.mark.parametrize(
    "result",
    [{"type": "succeeded"}, {"type": "errored", "error": []}, {"type": "new"}, {}, 3, None],
)
def test_a_result_of_anthropic_without_content_is_unreadable(result: Any) -> None:
    """A result of an unknown type is no answer, and no defect either."""
    text = {"custom_id": "2c9e41ab-a", "result": result}
    assert isinstance(anthropic.read_line("b", line(text)), UnreadableLine)


def test_geminis_responses() -> None:
    """An error has a code of google.rpc, which becomes an HTTP status."""
    good = gemini.read_line("f", line(b'{"key":"a","response":{"candidates": []}}'))
    assert good == BatchAnswer("a", 200, b'{"candidates": []}')
    for code, status in ((8, 429), (3, 400), (429, 429), (99, 500), ("x", 500), (None, 500)):
        error = {"code": code, "message": "no", "status": "RESOURCE_EXHAUSTED"}
        read = gemini.read_line("f", line({"key": "a", "error": error}))
        assert isinstance(read, BatchAnswer)
        assert (read.status, read.error, read.message) == (status, "RESOURCE_EXHAUSTED", "no")
        assert json.loads(read.body) == {"error": error}
