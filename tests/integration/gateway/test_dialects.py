"""OpenAI's and Anthropic's own clients, unmodified, in front of providers of every kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import anthropic
import openai
import pytest
from dialect_doors import KINDS, MODEL, chats, claude, doors_of_kinds, fleet_of_kinds
from doors import asked
from fleet import Fleet, until

from penstock_gateway.direct import routes, streams
from penstock_producer import ProducerSettings
from penstock_producer.job.provider_facts import ProviderFacts

SAY: Any = [{"role": "user", "content": "Say something."}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
ANSWERED: Any = [
    *SAY,
    {"role": "assistant", "content": "Look", "tool_calls": [{"id": "c", "type": "function"}]},
    {"role": "tool", "tool_call_id": "c", "content": "4"},
]
ANSWERED[1]["tool_calls"][0]["function"] = {"name": "f", "arguments": "{}"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of_kinds(tmp_path_factory.mktemp("dialects")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def urls(fleet: Fleet) -> Iterator[Mapping[str, str]]:
    """A server in front of each kind of provider."""
    with doors_of_kinds(fleet) as urls:
        yield urls


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, urls: Mapping[str, str]) -> str:
    return urls[request.param]


def test_openais_chat_is_answered_by_every_provider(url: str) -> None:
    """A text, its usage and why it ended; a limit of tokens reaches the provider; a conversation
    with calls of tools is taken."""
    client = chats(url)
    answer = client.chat.completions.create(model=MODEL, messages=SAY)
    assert answer.choices[0].message.content
    assert (answer.object, answer.choices[0].finish_reason) == ("chat.completion", "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    cut = client.chat.completions.create(model=MODEL, messages=SAY, max_tokens=1)
    assert cut.choices[0].finish_reason == "length"
    again = client.chat.completions.create(model=MODEL, messages=ANSWERED, tools=[TOOL])
    assert again.choices


def test_anthropics_messages_are_answered_by_every_provider(url: str) -> None:
    """By `client.messages.create`, with a system text, and with the results of tools."""
    client = claude(url)
    answer = client.messages.create(model=MODEL, max_tokens=50, messages=SAY, system="Be brief.")
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert (answer.type, answer.role, answer.stop_reason) == ("message", "assistant", "end_turn")
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0
    cut = client.messages.create(model=MODEL, max_tokens=1, messages=SAY)
    assert cut.stop_reason == "max_tokens"
    used: Any = [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]
    result: Any = [{"type": "tool_result", "tool_use_id": "c", "content": "4"}]
    again = client.messages.create(
        model=MODEL,
        max_tokens=50,
        messages=[
            *SAY,
            {"role": "assistant", "content": used},
            {"role": "user", "content": result},
        ],
        tools=[{"name": "f", "input_schema": {"type": "object"}}],
    )
    assert again.content


def test_openais_responses_are_answered_by_every_provider(url: str) -> None:
    """By `client.responses.create`: its text, its usage, and what was asked."""
    answer = chats(url).responses.create(
        model=MODEL, input="Say something.", instructions="Be brief.", max_output_tokens=50
    )
    assert answer.output_text
    assert (answer.object, answer.status, answer.instructions) == (
        "response",
        "completed",
        "Be brief.",
    )
    assert answer.usage is not None
    assert answer.usage.output_tokens > 0
    cut = chats(url).responses.create(model=MODEL, input="Say something.", max_output_tokens=1)
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


def test_several_prompts_are_answered_by_every_provider(url: str) -> None:
    """Each output has its text and usage, whatever API the provider has."""
    answer = asked(
        f"{url}/v1/batch/sync",
        b'{"model": "sim-small", "prompts": ["a", "b"]}',
        method="POST",
        **{"content-type": "application/json"},
    )
    outputs = answer.content["outputs"]
    assert all(one["text"] and one["usage"]["completion_tokens"] for one in outputs)


def test_answers_are_stored_as_they_came(fleet: Fleet, urls: Mapping[str, str]) -> None:
    """The job has the provider's own form, and the same key brings the caller's again."""
    body = '{"model": "sim-small", "max_tokens": 9, "messages": [{"role": "user", "content": "k"}]}'
    headers = {"content-type": "application/json", "idempotency-key": "once"}
    first, again = (
        asked(f"{urls['anthropic']}/v1/chat/completions", body.encode(), method="POST", **headers)
        for _ in range(2)
    )
    assert again.headers["idempotent-replayed"] == "true"
    assert again.content["choices"] == first.content["choices"]
    job, document = first.headers["x-penstock-job"], first.headers["x-penstock-document"]
    stored = [one for one in fleet.producer.results(job) if one.key.doc_id == document]
    assert [one.json()["type"] for one in stored] == ["message"]


def test_openais_chat_is_streamed(url: str) -> None:
    """By the client's own stream: the text, why it ended, and usage where it is asked for."""
    chunks = list(
        chats(url).chat.completions.create(
            model=MODEL, messages=SAY, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0
    with chats(url).chat.completions.stream(model=MODEL, messages=SAY) as stream:
        assert stream.get_final_completion().choices[0].message.content


def test_anthropics_messages_are_streamed(url: str) -> None:
    """By `client.messages.stream`, which puts the message together again."""
    with claude(url).messages.stream(model=MODEL, max_tokens=50, messages=SAY) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text
    assert message.content[0].type == "text"
    assert message.content[0].text == text
    assert (message.stop_reason, message.usage.output_tokens > 0) == ("end_turn", True)


def test_openais_responses_are_streamed(url: str) -> None:
    """By `client.responses.stream`, which puts the response together again."""
    with chats(url).responses.stream(model=MODEL, input="Say something.") as stream:
        events = list(stream)
        response = stream.get_final_response()
    assert events[0].type == "response.created"
    assert "".join(one.delta for one in events if one.type == "response.output_text.delta")
    assert response.output_text


def test_a_stream_that_waits_is_kept_and_says_how_it_failed(
    fleet: Fleet, urls: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comments until the answer is there; a failure is an event that each client raises."""
    monkeypatch.setattr(routes, "SOON_S", 0.0)
    monkeypatch.setattr(streams, "QUIET_S", 0.05)
    fleet.provider.tell(latency_ms=400)
    try:
        body = b'{"model": "sim-small", "stream": true, "messages": [{"role": "user", "content": "x"}]}'
        headers = {"content-type": "application/json"}
        answer = asked(f"{urls['openai']}/v1/chat/completions", body, method="POST", **headers)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.body.count(b": still there\n\n") > 2
        assert answer.body.endswith(b"data: [DONE]\n\n")
        late = {"X-Penstock-Timeout": "0.1"}
        for url in urls.values():
            with pytest.raises(openai.APIError, match="no answer in"):
                list(
                    chats(url).chat.completions.create(
                        model=MODEL, messages=SAY, stream=True, extra_headers=late
                    )
                )
            with (
                pytest.raises(anthropic.APIStatusError, match="no answer in"),
                claude(url).messages.stream(
                    model=MODEL, max_tokens=5, messages=SAY, extra_headers=late
                ) as stream,
            ):
                stream.get_final_message()
    finally:
        fleet.provider.tell(latency_ms=5)


def test_what_is_refused_soon_has_its_status_though_it_is_streamed(
    urls: Mapping[str, str],
) -> None:
    """So that a client acts on it as on any other."""
    with pytest.raises(openai.BadRequestError) as caught:
        chats(urls["anthropic"]).chat.completions.create(
            model=MODEL, messages=SAY, seed=3, stream=True
        )
    assert caught.value.param == "seed"


def test_what_a_provider_has_no_equal_for_is_refused_by_its_field(urls: Mapping[str, str]) -> None:
    """Before anything is queued, in the words of the caller's client."""
    with pytest.raises(openai.BadRequestError) as caught:
        chats(urls["anthropic"]).chat.completions.create(model=MODEL, messages=SAY, seed=3)
    assert caught.value.param == "seed"
    document: Any = [{"type": "document", "source": {"type": "text", "data": "x"}}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.type"):
        claude(urls["openai"]).messages.create(
            model=MODEL, max_tokens=5, messages=[{"role": "user", "content": document}]
        )
    with pytest.raises(openai.BadRequestError) as caught:
        chats(urls["gemini"]).responses.create(model=MODEL, input="x", previous_response_id="resp")
    assert caught.value.param == "previous_response_id"


def test_what_nothing_here_answers_is_not_tried_again(urls: Mapping[str, str]) -> None:
    """Embeddings in front of a provider that has none: 400 with the reason, and no "try again"."""
    with pytest.raises(openai.BadRequestError, match="Nothing here answers /v1/embeddings"):
        chats(urls["anthropic"]).embeddings.create(model=MODEL, input="x")


def test_errors_have_the_callers_envelope(urls: Mapping[str, str]) -> None:
    """Anthropic's below `/v1/messages`, also where the provider is one of OpenAI's kind."""
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude(urls["openai"]).messages.create(model=MODEL, max_tokens=5, messages=[])
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude(urls["openai"]).messages.create(model=MODEL, messages=SAY, max_tokens=0)


def test_models_that_the_provider_lists_are_listed(urls: Mapping[str, str]) -> None:
    """Workers have asked the provider, and their heartbeats say what it has."""
    until(lambda: bool(list(chats(urls["openai"]).models.list())), 30, "models are listed")
    assert MODEL in [one.id for one in claude(urls["openai"]).models.list()]


def test_settings_of_producers_have_the_kinds() -> None:
    """Without settings a provider is one of OpenAI's kind, and responses go to it as chats."""
    assert not ProducerSettings().prices("default").has_responses
    assert ProviderFacts(base_url="https://api.openai.com/v1").has_responses
    assert ProviderFacts(base_url="http://x/v1", endpoints=("/v1/responses",)).has_responses
