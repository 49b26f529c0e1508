"""What the simulated provider answers, without a socket and with the clock in the test's hands."""

from __future__ import annotations

import base64
import json
from array import array
from datetime import date
from math import hypot
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from penstock_simulate.answers.answers import chars_per_token, count_as
from penstock_simulate.answers.calls import CHAT, COMPLETIONS, EMBEDDINGS, GENERATE
from penstock_simulate.choices import BadSetting
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.provider import Provider
from penstock_simulate.reply import Reply

PROMPT = "Summarise: Open the file and read all of it. Then close it."


def chat(model: str = "sim-small", **more: Any) -> bytes:
    return json.dumps(
        {"model": model, "messages": [{"role": "user", "content": PROMPT}], **more}
    ).encode()


def ask(
    provider: Provider,
    raw: bytes,
    *,
    tag: str | None = "job:doc",
    endpoint: str = CHAT,
    key: str | None = None,
) -> Reply:
    call = provider.open_call(endpoint, raw, tag, key)
    reply = provider.decide(call, now=0.0)
    provider.close_call(call, reply, unread=False)
    return reply


def code_of(reply: Reply) -> tuple[int, str | None]:
    return reply.status, json.loads(reply.body)["error"]["code"]


def text_of(reply: Reply) -> str:
    content = json.loads(reply.body)["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


def test_an_answer_follows_from_the_request() -> None:
    """The same request gets the same bytes from any simulator: a category, the first sentence and
    its usage."""
    first, second = (ask(Provider(SimulatorConfig()), chat()) for _ in range(2))
    assert first.body == second.body
    assert text_of(first) == "Category: files\nSummary: Open the file and read all of it."
    usage = json.loads(first.body)["usage"]
    assert usage == {"prompt_tokens": 15, "completion_tokens": 15, "total_tokens": 30}


def test_max_tokens_cuts_the_answer() -> None:
    """A short allowance gives finish_reason `length` and never more tokens than allowed."""
    body = json.loads(ask(Provider(SimulatorConfig()), chat(max_tokens=3)).body)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3


def test_a_schema_gets_an_instance() -> None:
    """Requests for structured output are answered with JSON of the asked shape."""
    schema = {
        "type": "object",
        "properties": {
            "label": {"type": "string", "enum": ["a", "b"]},
            "score": {"type": "number", "minimum": 2},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}},
            "sure": {"type": ["boolean", "null"]},
        },
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = json.loads(text_of(ask(Provider(SimulatorConfig()), chat(response_format=wanted))))
    assert found["label"] in ("a", "b")
    assert found | {"label": ""} == {"label": "", "score": 2, "tags": ["Open"], "sure": True}
    said = {"role": "user", "content": f"As JSON. {PROMPT}"}
    plain = chat(response_format={"type": "json_object"}, messages=[said])
    assert json.loads(text_of(ask(Provider(SimulatorConfig()), plain)))["category"] == "files"


class Part(BaseModel):
    """Nested in Ticket."""

    name: str = Field(min_length=200)
    sizes: list[int] = Field(min_length=3)
    next: Part | None


Label = Literal["a", "b"]


class Ticket(BaseModel):
    """With what models are written with."""

    label: Label
    on: date
    score: float = Field(gt=2, multiple_of=5)
    share: int = Field(le=-3)
    parts: list[Part]
    pair: tuple[int, str]
    more: dict[str, int]


TAKES = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD = {"name": "add", "parameters": TAKES}
SAY = {"name": "say"}


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ("required", "say"),
        ({"type": "function", "function": {"name": "add"}}, "add"),
        ("auto", None),
        ({"function": []}, None),
    ],
)
def test_a_tool_that_must_be_used_is_called(choice: Any, called: str | None) -> None:
    """A chat calls it, with arguments of its schema; the model's own choice is an answer in words."""
    tools = [7, {"type": "function", "function": SAY}, {"type": "function", "function": ADD}]
    body = json.loads(ask(Provider(SimulatorConfig()), chat(tools=tools, tool_choice=choice)).body)
    (made,) = body["choices"]
    assert (made["finish_reason"], "tool_calls" in made["message"]) == (
        "tool_calls" if called else "stop",
        called is not None,
    )
    for one in made["message"].get("tool_calls", ()):
        assert one["function"]["name"] == called
        arguments = json.loads(one["function"]["arguments"])
        assert isinstance(arguments.get("a", 0), int)
        assert set(arguments) == ({"a"} if called == "add" else set())


@pytest.mark.parametrize("names", [["add"], None, 7])
def test_geminis_tool_that_must_be_used_is_called(names: Any) -> None:
    """As in a chat."""
    contents = [{"role": "user", "parts": [{"text": PROMPT}]}]
    given = {"name": "add", "parametersJsonSchema": TAKES}
    calling = {"mode": "ANY", "allowedFunctionNames": names}
    body = {
        "contents": contents,
        "tools": [{"functionDeclarations": [given]}],
        "toolConfig": {"functionCallingConfig": calling},
    }
    provider = Provider(SimulatorConfig())
    call = provider.open_call(GENERATE, json.dumps(body).encode(), "job:doc", None)
    call.model = "gemini"
    answer = json.loads(provider.decide(call, now=0.0).body)
    (part,) = answer["candidates"][0]["content"]["parts"]
    assert part["functionCall"]["name"] == "add"
    assert set(part["functionCall"]["args"]) == {"a"}


def test_an_answer_fits_the_schema_of_a_model() -> None:
    """References, limits, dates, tuples and recursion of a Pydantic model: the model takes the
    answer."""
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": Ticket.model_json_schema()},
    }
    answer = text_of(ask(Provider(SimulatorConfig()), chat(response_format=wanted)))
    assert len(Ticket.model_validate_json(answer).parts[0].sizes) == 3


LOOSE = {"type": "object", "properties": {"a": {"type": "string"}}}
CLOSED = LOOSE | {"required": ["a"], "additionalProperties": False}


def json_schema(schema: dict[str, Any], *, strict: bool = False) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}


@pytest.mark.parametrize(
    ("structured", "wanted", "told"),
    [
        ("json_schema", json_schema(LOOSE, strict=True), "'additionalProperties' is required"),
        (
            "json_schema",
            json_schema(CLOSED | {"required": []}, strict=True),
            "'required' is required",
        ),
        ("json_schema", json_schema({"type": "array"}), "got 'type: \"array\"'"),
        ("json_schema", {"type": "json_object"}, "must contain the word 'json'"),
        ("json_schema", {"type": "yaml"}, "'response_format.type' must be one of"),
        (
            "json_object",
            json_schema(CLOSED),
            "'response_format' of type 'json_schema' is not supported",
        ),
        (
            "none",
            {"type": "json_object"},
            "'response_format' of type 'json_object' is not supported",
        ),
        ("json_schema", json_schema(CLOSED, strict=True), None),
        ("json_schema", json_schema(LOOSE), None),
        ("none", {"type": "text"}, None),
    ],
)
def test_formats_are_refused_as_providers_refuse_them(
    structured: str, wanted: dict[str, Any], told: str | None
) -> None:
    """With a 400 that names response_format, by what the provider takes and by OpenAI's rules for
    strict schemas."""
    reply = ask(Provider(SimulatorConfig(structured=structured)), chat(response_format=wanted))
    assert reply.status == (200 if told is None else 400)
    assert told is None or told in json.loads(reply.body)["error"]["message"]


def test_a_format_may_be_ignored() -> None:
    """As Anthropic's OpenAI-compatible endpoint does: the answer is a text."""
    reply = ask(
        Provider(SimulatorConfig(structured="ignored")), chat(response_format=json_schema(CLOSED))
    )
    assert text_of(reply).startswith("Category: files")


def test_completions_answer_with_text() -> None:
    """The older endpoint takes `prompt` and answers with `text`."""
    raw = json.dumps({"model": "m", "prompt": PROMPT}).encode()
    body = json.loads(ask(Provider(SimulatorConfig()), raw, endpoint=COMPLETIONS).body)
    assert body["choices"][0]["text"].startswith("Category: files")


def test_embeddings_are_unit_vectors_of_the_asked_length() -> None:
    """Equal texts get equal vectors of length 1, in floats or in base64, as many as there are
    inputs."""
    raw = {"model": "e", "input": ["one", "two", "one"], "dimensions": 64}
    body = json.loads(
        ask(Provider(SimulatorConfig()), json.dumps(raw).encode(), endpoint=EMBEDDINGS).body
    )
    vectors = [entry["embedding"] for entry in body["data"]]
    assert [len(vector) for vector in vectors] == [64, 64, 64]
    assert vectors[0] == vectors[2] != vectors[1]
    assert hypot(*vectors[1]) == pytest.approx(1)
    packed = json.dumps(raw | {"encoding_format": "base64"}).encode()
    coded = json.loads(ask(Provider(SimulatorConfig()), packed, endpoint=EMBEDDINGS).body)
    found = array("f", base64.b64decode(coded["data"][1]["embedding"]))
    assert list(found) == pytest.approx(vectors[1], abs=1e-6)


@pytest.mark.parametrize(
    ("endpoint", "raw"),
    [
        (CHAT, b"{"),
        (CHAT, b"[]"),
        (CHAT, b'{"messages":[{"role":"user","content":"x"}]}'),
        (CHAT, b'{"model":"m"}'),
        (CHAT, b'{"model":"m","messages":[]}'),
        (CHAT, chat(max_tokens=0)),
        (CHAT, chat(max_tokens="7")),
        (COMPLETIONS, b'{"model":"m","prompt":7}'),
        (EMBEDDINGS, b'{"model":"m","input":[]}'),
        (EMBEDDINGS, b'{"model":"m","input":["x",""]}'),
        (EMBEDDINGS, b'{"model":"m","input":"x","stream":true}'),
        (EMBEDDINGS, b'{"model":"m","input":"x","dimensions":0}'),
    ],
)
def test_an_unusable_request_gets_a_400_with_an_openai_error(endpoint: str, raw: bytes) -> None:
    """Nonsense is refused as the provider would, and counted as a call."""
    provider = Provider(SimulatorConfig())
    reply = ask(provider, raw, endpoint=endpoint)
    assert reply.status == 400
    assert json.loads(reply.body)["error"]["type"] == "invalid_request_error"
    assert provider.book.stats()["by_status"] == {"400": 1}


def test_a_wrong_key_gets_401_and_costs_no_request() -> None:
    """With an API key set, only that key is served; a stranger's calls do not use up the limits."""
    provider = Provider(SimulatorConfig(api_key="right", rpm=60, depth_s=1))
    assert code_of(ask(provider, chat())) == (401, "invalid_api_key")
    assert code_of(ask(provider, chat(), key="Bearer wröng")) == (401, "invalid_api_key")
    assert ask(provider, chat(), key="Bearer right").good


def test_an_empty_account_stays_empty() -> None:
    """After the paid calls every call gets insufficient_quota without Retry-After, until a
    reset."""
    provider = Provider(SimulatorConfig(credit_calls=2))
    replies = [ask(provider, chat()) for _ in range(4)]
    assert [reply.good for reply in replies] == [True, True, False, False]
    assert code_of(replies[2]) == (429, "insufficient_quota")
    assert "retry-after" not in replies[2].headers
    provider.reset()
    assert ask(provider, chat()).good


def test_a_call_over_the_limit_is_told_how_long_to_wait() -> None:
    """429 carries Retry-After in whole seconds and in milliseconds, the rate-limit headers and
    OpenAI's error."""
    provider = Provider(SimulatorConfig(rpm=30, depth_s=1))
    assert ask(provider, chat()).headers["x-ratelimit-remaining-requests"] == "29"
    refused = ask(provider, chat())
    assert code_of(refused) == (429, "rate_limit_exceeded")
    assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("2", "2000")
    assert refused.headers["x-ratelimit-reset-requests"] == "2s"
    assert refused.delay_s == 0
    assert provider.book.stats()["over_limit"] == {"requests": 1}


@pytest.mark.parametrize(
    ("charge", "left"), [("reserve", 100_000 - 15 - 500), ("actual", 100_000 - 30)]
)
def test_tokens_are_charged_as_configured(charge: str, left: int) -> None:
    """`reserve` takes the prompt and max_tokens for good; `actual` takes what usage says."""
    provider = Provider(SimulatorConfig(tpm=100_000, depth_s=60, charge=charge))
    assert ask(provider, chat(max_tokens=500)).headers["x-ratelimit-remaining-tokens"] == str(left)


def test_calls_beyond_the_concurrency_are_refused() -> None:
    """One call more than may be in flight gets 429; when one leaves, the next is served."""
    provider = Provider(SimulatorConfig(max_concurrency=2))
    calls = [provider.open_call(CHAT, chat(), f"job:{number}", None) for number in range(2)]
    replies = [provider.decide(call, 0.0) for call in calls]
    assert all(reply.good for reply in replies)
    assert code_of(ask(provider, chat())) == (429, "rate_limit_exceeded")
    provider.close_call(calls[0], replies[0], unread=False)
    assert ask(provider, chat()).good
    assert provider.book.stats()["max_in_flight"] == 3


def test_poisoned_documents_fail_with_a_400_every_time() -> None:
    """A poisoned document fails alike in every call; only an overflow is cured, by a long-context
    model."""
    provider = Provider(SimulatorConfig(poison_rate=1))
    seen: dict[str | None, bool] = {}
    for number in range(40):
        tag = f"job:doc-{number}"
        first, second = (
            code_of(ask(provider, chat(), tag=tag)),
            code_of(ask(provider, chat(), tag=tag)),
        )
        assert first == second
        assert first[0] == 400
        seen[first[1]] = ask(provider, chat(model="sim-large-long"), tag=tag).good
    assert seen == {
        "invalid_value": False,
        "context_length_exceeded": True,
        "content_filter": False,
    }


def test_losses_and_duplicates_show() -> None:
    """Statistics name every document answered more than once, whether by tag or by the hash of the
    body."""
    provider = Provider(SimulatorConfig())
    for tag in ("job:a", "job:a", "job:b", None, None):
        ask(provider, chat(), tag=tag)
    stats = provider.book.stats()
    assert (stats["requests"], stats["documents"], stats["answered_more_than_once"]) == (5, 3, 2)
    repeated = provider.book.calls(least=2)
    assert repeated.pop("job:a") == {"calls": 2, "ok": 2}
    (by_hash,) = repeated
    assert by_hash.startswith("body-")


def test_the_log_holds_a_call_before_its_answer(tmp_path: Path) -> None:
    """A call is on disk when its reply is decided, before anything is sent, and a reset keeps the
    log."""
    log = tmp_path / "calls.jsonl"
    provider = Provider(SimulatorConfig(call_log=log, error_rate=1))
    provider.decide(provider.open_call(CHAT, chat(), "job:ä", None), 0.0)
    provider.reset()
    provider.decide(provider.open_call(CHAT, chat(), "job:ä", None), 0.0)
    provider.book.close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["document"], line["call"], line["outcome"]) for line in lines] == [
        ("job:ä", 1, "500")
    ] * 2


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """The message names the flag and the path."""
    with pytest.raises(
        BadSetting, match=r"--call-log: cannot write '.*missing/calls': No such file"
    ):
        Provider(SimulatorConfig(call_log=tmp_path / "missing" / "calls"))


def test_an_encoding_that_cannot_be_used_is_refused() -> None:
    """Before anything is served, with the name: tiktoken knows no such one, or is not there."""
    with pytest.raises(BadSetting, match="--encoding no-such-one cannot be used"):
        count_as("no-such-one")
    assert chars_per_token("six letters") == 4  # and characters count on
