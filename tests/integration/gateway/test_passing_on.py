"""Tokens reach their caller as the provider writes them, by OpenAI's and Anthropic's own clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import pytest
from dialect_doors import KINDS, MODEL, chats, claude, doors_of_kinds, fleet_of_kinds
from fleet import Fleet, until

from penstock_ledger.model import DeadLetter, Result

WAIT_S = 60.0
# events of the simulated provider before its first text, in each of its APIs, and some more
BEGUN = 6


def say(text: str) -> Any:
    return [{"role": "user", "content": f"Summarise: {text}"}]


LONG = "A lock keeps two threads apart while a queue waits for the thread that holds it longest."


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of_kinds(tmp_path_factory.mktemp("passing"), visibility_timeout_s=3) as fleet:
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
    """The provider stands still in the middle of each answer, until it is told to go on."""
    fleet.provider.tell(stream_hold_after=BEGUN)
    yield
    fleet.provider.tell(stream_hold_after=None, stream_cut_after=None)


def outcomes(fleet: Fleet, text: str) -> list[Result | DeadLetter]:
    """What is stored of calls that say this."""
    found: list[Result | DeadLetter] = []
    for job in fleet.producer.jobs():
        if job.job_key.startswith("direct/"):
            found += fleet.producer.results(job.job_id)
            found += fleet.producer.dead_letters(job.job_id)
    asked = fleet.requests_with(text)
    return [one for one in found if one.key.doc_id in asked]


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
    with claude(urls[kind]).messages.stream(
        model=MODEL, max_tokens=100, messages=say(LONG)
    ) as stream:
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
