"""Tokens reach their caller as the provider writes them, by OpenAI's and Anthropic's own clients."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import anthropic
import openai
import pytest
from anthropic.lib.streaming import MessageStreamManager
from dialect_doors import KINDS, MODEL, chats, claude, doors_of_kinds, fleet_of_kinds
from fleet import Fleet, until

from penstock_ledger import JobStore, OutcomeStore, open_database
from penstock_ledger.model import DeadLetter, Result

WAIT_S = 60.0
# events of the simulated provider before its first text, in each of its APIs, and some more
BEGUN = 6


def say(text: str) -> Any:
    return [{"role": "user", "content": f"Summarise: {text}"}]


LONG = "A lock keeps two threads apart while a queue waits for the thread that holds it longest."


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of_kinds(tmp_path_factory.mktemp("passing"), lease_s=3) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def urls(fleet: Fleet) -> Iterator[Mapping[str, str]]:
    with doors_of_kinds(fleet) as urls:
        yield urls


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def held(fleet: Fleet) -> Iterator[None]:
    """The provider stands still in the middle of each answer, until the test lets it go on."""
    fleet.provider.tell(stream_hold_after=BEGUN)
    yield
    fleet.provider.tell(stream_hold_after=None, stream_cut_after=None)


def outcomes(fleet: Fleet, word: str) -> list[Result | DeadLetter]:
    """What is stored of calls that say this word: an answer repeats it, a dead letter has it."""
    with contextlib.closing(open_database(fleet.database_url)) as database:
        store = OutcomeStore(database)
        jobs = [one.job_id for one in JobStore(database).list()]
        dead = [one for job in jobs for one in store.dead_letters(job)]
    done = [one for job in jobs for one in fleet.producer.results(job)]
    return [one for one in dead if word.encode() in one.request] + [
        one for one in done if word.encode() in one.body
    ]


def message_stream(url: str) -> MessageStreamManager[None]:
    """A long answer, as Anthropic's client reads it."""
    return claude(url).messages.stream(model=MODEL, max_tokens=100, messages=say(LONG))


def first_token(stream: Any) -> str:
    """Read a stream of chunks up to its first text."""
    found = (chunk.choices[0].delta.content for chunk in stream)
    return str(next(text for text in found if text))


def streamed(url: str, text: str) -> Any:
    return chats(url).chat.completions.create(model=MODEL, messages=say(text), stream=True)


@pytest.mark.usefixtures("held")
def test_a_chats_tokens_come_before_its_answer_is_there(
    fleet: Fleet, urls: Mapping[str, str], kind: str
) -> None:
    """The provider holds the rest until the first ones are read; then the whole has come, with why
    it ended and its usage."""
    stream = chats(urls[kind]).chat.completions.create(
        model=MODEL, messages=say(LONG), stream=True, stream_options={"include_usage": True}
    )
    chunks = [next(stream)]
    while not chunks[-1].choices[0].delta.content:
        chunks.append(next(stream))
    assert fleet.provider.in_flight() == 1, "the provider has not ended its answer"
    fleet.provider.tell(stream_hold_after=None)
    chunks += stream
    text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    whole = chats(urls[kind]).chat.completions.create(model=MODEL, messages=say(LONG))
    assert text == whole.choices[0].message.content
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "stop"
    assert chunks[-1].usage == whole.usage
    assert len({one.id for one in chunks}) == 1


@pytest.mark.usefixtures("held")
def test_a_messages_tokens_come_before_its_answer_is_there(
    fleet: Fleet, urls: Mapping[str, str], kind: str
) -> None:
    """The same by Anthropic's client, which puts the message together."""
    with message_stream(urls[kind]) as stream:
        texts = iter(stream.text_stream)
        first = next(texts)
        assert fleet.provider.in_flight() == 1, "the provider has not ended its answer"
        fleet.provider.tell(stream_hold_after=None)
        text = first + "".join(texts)
        message = stream.get_final_message()
    whole = claude(urls[kind]).messages.create(model=MODEL, max_tokens=100, messages=say(LONG))
    assert [one.to_dict() for one in message.content] == [one.to_dict() for one in whole.content]
    assert message.content[0].type == "text"
    assert text == message.content[0].text
    assert message.usage.output_tokens == whole.usage.output_tokens
    assert message.stop_reason == "end_turn"


@pytest.mark.usefixtures("held")
def test_a_responses_tokens_come_before_its_answer_is_there(
    fleet: Fleet, urls: Mapping[str, str], kind: str
) -> None:
    """The same by OpenAI's client for responses, which puts the response together."""
    asked: Any = {"model": MODEL, "input": f"Summarise: {LONG}"}
    with chats(urls[kind]).responses.stream(**asked) as stream:
        events = iter(stream)
        seen = [next(events)]
        while seen[-1].type != "response.output_text.delta":
            seen.append(next(events))
        assert fleet.provider.in_flight() == 1, "the provider has not ended its answer"
        fleet.provider.tell(stream_hold_after=None)
        seen += events
        response = stream.get_final_response()
    whole = chats(urls[kind]).responses.create(**asked)
    assert response.output_text == whole.output_text
    assert response.usage == whole.usage
    text = "".join(one.delta for one in seen if one.type == "response.output_text.delta")
    assert text == whole.output_text
    assert [one.sequence_number for one in seen if hasattr(one, "sequence_number")] == list(
        range(len(seen))
    )


TOOL: Any = {
    "type": "object",
    "properties": {"category": {"type": "string"}, "reason": {"type": "string"}},
    "required": ["category", "reason"],
}


def test_calls_of_tools_are_the_same_as_without_a_stream(
    urls: Mapping[str, str], kind: str
) -> None:
    """Put together by each of the clients, from the bits that each provider sends."""
    function: Any = {"type": "function", "function": {"name": "sort", "parameters": TOOL}}
    call: Any = {"model": MODEL, "messages": say(LONG), "tools": [function]}
    call["tool_choice"] = {"type": "function", "function": {"name": "sort"}}
    with chats(urls[kind]).chat.completions.stream(**call) as stream:
        found = stream.get_final_completion().choices[0].message.tool_calls
    whole = chats(urls[kind]).chat.completions.create(**call).choices[0].message.tool_calls
    assert found is not None
    assert whole is not None
    (one,), (other,) = found, whole
    assert other.type == "function"
    assert one.id
    assert one.function.name == other.function.name == "sort"
    assert json.loads(one.function.arguments) == json.loads(other.function.arguments)
    message: Any = {"model": MODEL, "max_tokens": 100, "messages": say(LONG)}
    message["tools"] = [{"name": "sort", "input_schema": TOOL}]
    message["tool_choice"] = {"type": "tool", "name": "sort"}
    with claude(urls[kind]).messages.stream(**message) as written:
        used = written.get_final_message()
    plain = claude(urls[kind]).messages.create(**message)
    assert used.stop_reason == plain.stop_reason == "tool_use"
    blocks = [[{**one.to_dict(), "id": ""} for one in made.content] for made in (used, plain)]
    assert blocks[0] == blocks[1]


@pytest.mark.usefixtures("held")
def test_a_stream_that_breaks_is_a_failure_with_its_fate_and_its_cost(
    fleet: Fleet, urls: Mapping[str, str], kind: str
) -> None:
    """The client raises; the call is not made again, since its beginning was read; the dead letter
    says why and has about what the provider has charged."""
    stream = streamed(urls[kind], f"broken{kind} {LONG}")
    assert first_token(stream)
    fleet.provider.tell(stream_cut_after=BEGUN)
    with pytest.raises(openai.APIError, match="connection"):
        list(stream)
    (letter,) = outcomes(fleet, f"broken{kind}")
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.attempts, letter.calls) == ("connection_lost", 1, 1)
    assert letter.prompt_tokens
    assert letter.completion_tokens


@pytest.mark.usefixtures("held")
def test_anthropics_client_raises_what_breaks_a_stream(
    fleet: Fleet, urls: Mapping[str, str], kind: str
) -> None:
    """By the error event of its own API."""
    with message_stream(urls[kind]) as stream:
        texts = iter(stream.text_stream)
        assert next(texts)
        fleet.provider.tell(stream_cut_after=BEGUN)
        with pytest.raises(anthropic.APIStatusError, match="connection"):
            list(texts)


def test_a_stream_that_breaks_before_its_first_token_is_made_again(
    fleet: Fleet, urls: Mapping[str, str], kind: str
) -> None:
    """Nothing was read, so the call is retried as any other, and its caller notices nothing."""
    fleet.provider.tell(stream_cut_after=0)
    before = fleet.provider_calls()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(lambda: list(streamed(urls[kind], f"again{kind} {LONG}")))
        until(lambda: fleet.provider_calls() > before + 1, WAIT_S, "the call is made again")
        fleet.provider.tell(stream_cut_after=None)
        assert read.result(WAIT_S)[-1].choices[0].finish_reason == "stop"
    (result,) = outcomes(fleet, f"again{kind}")
    assert isinstance(result, Result)
    assert result.calls >= 2


@pytest.mark.usefixtures("held")
def test_a_stream_has_its_callers_time_from_each_token_to_the_next(
    fleet: Fleet, urls: Mapping[str, str]
) -> None:
    """An answer that takes longer than that in all is read to its end; one that stands still is
    not."""
    limit_s = 2.0
    began, sent = time.monotonic(), BEGUN
    stream = chats(urls["openai"]).chat.completions.create(
        model=MODEL,
        messages=say(f"slowly {LONG}"),
        stream=True,
        extra_headers={"X-Penstock-Timeout": str(limit_s)},
    )
    assert first_token(stream)
    while time.monotonic() - began < 1.5 * limit_s:
        time.sleep(limit_s / 4)
        sent += 1
        fleet.provider.tell(stream_hold_after=sent)
        assert first_token(stream)
    with pytest.raises(openai.APIError, match="no answer in"):
        list(stream)


@pytest.mark.usefixtures("held")
def test_each_caller_reads_its_own_answer(fleet: Fleet, urls: Mapping[str, str]) -> None:
    """Three at one door at a time, while all of their answers are half written."""
    words = ("alpha", "beta", "gamma")
    begun = Barrier(len(words) + 1)

    def read(word: str) -> str:
        stream = streamed(urls["openai"], f"{word} {word} {word} {LONG}")
        first = first_token(stream)
        begun.wait(WAIT_S)
        return first + "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with ThreadPoolExecutor(len(words)) as pool:
        reading = [pool.submit(read, word) for word in words]
        begun.wait(WAIT_S)
        fleet.provider.tell(stream_hold_after=None)
        for word, one in zip(words, reading, strict=True):
            text = one.result(WAIT_S)
            assert text.count(word) == 3
            assert not any(other in text for other in words if other != word)


@pytest.mark.usefixtures("held")
def test_a_caller_that_leaves_in_the_middle_costs_no_answer(
    fleet: Fleet, urls: Mapping[str, str]
) -> None:
    """A worker has begun its call: it runs to its end and is kept, as without a stream."""
    stream = streamed(urls["openai"], f"leaving {LONG}")
    assert first_token(stream)
    stream.close()
    fleet.provider.tell(stream_hold_after=None)
    until(lambda: outcomes(fleet, "leaving"), WAIT_S, "the answer is stored")
    (result,) = outcomes(fleet, "leaving")
    assert isinstance(result, Result)
    assert result.calls == 1


@pytest.mark.usefixtures("held")
def test_a_worker_that_is_killed_in_the_middle_is_followed_by_another(
    fleet: Fleet, urls: Mapping[str, str]
) -> None:
    """The next worker's answer begins with what was read, so its rest follows: no text comes twice
    and none is missing."""
    stream = streamed(urls["openai"], f"killed {LONG}")
    first = first_token(stream)
    (worker,) = [one for one in fleet.processes if one.alive and one.name.startswith("api")]
    worker.kill()
    fleet.provider.tell(stream_hold_after=None)
    fleet.ready(fleet.worker(16))
    text = first + "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text.count("killed") == 1
    (result,) = outcomes(fleet, "killed")
    assert isinstance(result, Result)
    assert result.json()["choices"][0]["message"]["content"] == text


@pytest.mark.usefixtures("held")
def test_a_server_beside_a_gpu_worker_streams_too(fleet: Fleet, urls: Mapping[str, str]) -> None:
    """Lane `gpu` asks such a server as lane `api` asks a provider. The last test here: the doors
    ask that worker for a while after its end."""
    fleet.ready(fleet.worker(8, lane="gpu", gpu__upstream_url=fleet.provider.url))
    client = chats(urls["openai"])
    until(
        lambda: any(one.owned_by == "penstock" for one in client.models.list()),
        WAIT_S,
        "the model is served",
    )
    stream = streamed(urls["openai"], f"beside {LONG}")
    assert first_token(stream)
    assert fleet.provider.in_flight() == 1
    fleet.provider.tell(stream_hold_after=None)
    assert list(stream)[-1].choices[0].finish_reason == "stop"
    (result,) = outcomes(fleet, "beside")
    assert isinstance(result, Result)
    with contextlib.closing(open_database(fleet.database_url)) as database:
        assert JobStore(database).get(result.key.job_id).lane == "gpu"
