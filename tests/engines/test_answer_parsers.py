"""vLLM's own parsers of reasoning and tool calls: with a tiny model's answers, and with scripted
ones."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from engines.tiny_model import Shape, make_model

from penstock_workers.errors import BadEngineSettings
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Request
from penstock_workers.lanes.gpu.children import parsers
from penstock_workers.lanes.gpu.children.parsers import AnswerParsers, Unreadable, check_parsers
from penstock_workers.lanes.gpu.engine.engines import EngineCall
from penstock_workers.lanes.gpu.gpu_lane import GpuLane
from penstock_workers.lanes.gpu.requests.calls import Facts
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.settings import WorkerSettings

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"at": {"enum": ["net", "file"]}},
            "required": ["at"],
            "additionalProperties": False,
        },
    },
}
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer has the marks of thoughts and calls, and whose template shows the
    tools."""
    folder = make_model(tmp_path_factory.mktemp("thinker"), "llama", Shape(marks=MARKS))
    file = folder / "chat_template.jinja"
    file.write_text("{% if tools %}{{ tools | tojson }}\n{% endif %}" + file.read_text())
    return folder


def settings(model: Path, **gpu: Any) -> WorkerSettings:
    engine = {
        "max_model_len": 1024,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "gpu_memory_utilization": 0.5,
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }
    return WorkerSettings(
        lane="gpu",
        gpu=GpuSettings(model=str(model), in_process=True, max_num_seqs=8, engine=engine, **gpu),
    )


THINKS: dict[str, Any] = {"reasoning_parser": "deepseek_r1", "tool_parser": "hermes"}


def config_of(model: Path) -> Any:
    """What an engine would have of this model, without one."""
    make = import_module("vllm").AsyncEngineArgs
    return SimpleNamespace(
        model_config=make(model=str(model), max_model_len=1024).create_model_config()
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parsing(thinker: Path) -> AsyncIterator[AnswerParsers]:
    begun = AnswerParsers(GpuSettings(model="m", **THINKS))
    await begun.start(config_of(thinker))
    yield begun
    await begun.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lane(thinker: Path) -> AsyncIterator[GpuLane]:
    hosted = GpuLane(settings(thinker, tool_parser="hermes"), give_up=pytest.fail)
    await hosted.start()
    yield hosted
    await hosted.close()


async def tried(lane: GpuLane, **fields: Any) -> Tried:
    body = {
        "messages": [{"role": "user", "content": "import os"}],
        "max_tokens": 16,
        "temperature": 0,
    } | fields
    prepared = await lane.prepare(
        Request("tag", "default", "/v1/chat/completions", json.dumps(body).encode(), 60.0)
    )
    return prepared.refused or await lane.infer(prepared)


def scripted(text: str, **parsed: Any) -> tuple[EngineCall, Any]:
    call = EngineCall(
        "a", [1], SimpleNamespace(), facts=Facts("m", chat=True, parsed={"messages": []} | parsed)
    )
    return call, SimpleNamespace(outputs=[SimpleNamespace(text=text, token_ids=[1, 2, 3])])


async def test_names_are_vllms_own(thinker: Path) -> None:
    """A name that the installed vLLM does not have stops the start with those that it has."""
    for setting in ("reasoning_parser", "tool_parser"):
        named: dict[str, Any] = {setting: "hermess"}
        with pytest.raises(
            BadEngineSettings, match=rf"gpu\.{setting} = 'hermess': this vLLM \(.*\) has .*, qwen3"
        ):
            check_parsers(GpuSettings(model="m", **named))
    check_parsers(GpuSettings(model="m", reasoning_parser="qwen3", tool_parser="hermes"))


async def test_a_parser_that_does_not_suit_the_model_stops_the_start(tiny_llama: Path) -> None:
    """Its tokenizer lacks the marks of thoughts: the error has the parser's own reason."""
    begun = AnswerParsers(GpuSettings(model="m", reasoning_parser="deepseek_r1"))
    with pytest.raises(
        BadEngineSettings,
        match=r"gpu\.reasoning_parser 'deepseek_r1' cannot be used with this model",
    ):
        await begun.start(config_of(tiny_llama))
    await begun.close()


async def test_scripted_answers_are_taken_apart(parsing: AnswerParsers) -> None:
    """Thoughts, words and calls each in their place, by the parsers of the installed vLLM."""
    asked = {"tools": [TOOL], "tool_choice": "auto"}
    text = '<think>hm</think>yes<tool_call>{"name": "look", "arguments": {"at": "net"}}</tool_call>'
    said = await parsing.read(*scripted(text, **asked))
    assert said is not None
    assert (said[0].reasoning, said[0].content) == ("hm", "yes")
    (called,) = said[0].tool_calls
    assert called["function"] == {"name": "look", "arguments": '{"at": "net"}'}
    assert called["type"] == "function"
    assert called["id"]
    half = await parsing.read(*scripted("<think>never ends", **asked))
    assert half is not None
    assert half[0].is_empty
    assert half[0].reasoning == "never ends"
    twice = await parsing.read(
        *scripted(text + text.partition("yes")[2], **asked, parallel_tool_calls=False)
    )
    assert twice is not None
    assert len(twice[0].tool_calls) == 1


def blanks(lane: GpuLane) -> dict[str, int]:
    """Against tokens of blanks: a schema lets them come for ever, and this model would write
    them."""
    assert lane._host.engine is not None
    tokenizer = lane._host.engine.tokenizer()
    return {
        str(number): -100
        for number in range(len(tokenizer))
        if tokenizer.decode([number]).isspace()
    }


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
async def test_a_tool_that_must_be_called_is_called(lane: GpuLane, choice: Any) -> None:
    """The parser constrains the engine, so that even a model of random weights calls the tool as
    its schema has it."""
    answer = await tried(
        lane,
        tools=[TOOL],
        tool_choice=choice,
        max_tokens=200,
        logit_bias=blanks(lane),
        parallel_tool_calls=False,
    )
    assert isinstance(answer, Answer), answer
    assert answer.status == 200, answer.body
    (made,) = json.loads(answer.body)["choices"]
    assert "tool_calls" in made["message"], made
    called = made["message"]["tool_calls"][0]["function"]
    assert called["name"] == "look"
    assert json.loads(called["arguments"])["at"] in ("net", "file")
    assert made["finish_reason"] == ("tool_calls" if choice == "required" else "stop")


async def test_half_a_call_is_no_answer(lane: GpuLane) -> None:
    """Where a call was required: it was cut, and the reason says what to raise."""
    answer = await tried(lane, tools=[TOOL], tool_choice="required", max_tokens=3)
    assert isinstance(answer, NoAnswer), answer
    assert (
        answer.failure,
        "before it had a whole call of a tool: raise max_tokens" in answer.detail,
    ) == (
        "empty_answer",
        True,
    )


async def test_a_tool_that_is_not_there_is_refused(lane: GpuLane) -> None:
    """By vLLM's own check of the request, with its words."""
    refused = await tried(
        lane, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "hop"}}
    )
    assert isinstance(refused, Answer)
    assert refused.status == 400
    assert b"does not match any of the specified `tools`" in refused.body


async def test_a_parser_that_takes_too_long_costs_its_own_item(
    parsing: AnswerParsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is killed, and the next answer is read by another one."""
    before = parsing._child
    with monkeypatch.context() as patch:
        patch.setattr(parsers, "READ_S", 0.0001)
        with pytest.raises(Unreadable, match="takes longer than"):
            await parsing.read(*scripted("<think>a</think>" + "b" * 1_000_000))
    said = await parsing.read(*scripted("<think>a</think>b"))
    assert said is not None
    assert said[0].content == "b"
    assert parsing._child is not before


async def test_a_conversation_with_calls_in_it_is_rendered(lane: GpuLane) -> None:
    """Calls and their results of earlier turns are messages like others; hostile ones are refused
    by name."""
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "look", "arguments": '{"at": "net"}'},
    }
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "nothing"},
    ]
    body = {"messages": messages, "tools": [TOOL], "max_tokens": 2}
    request = Request("tag", "default", "/v1/chat/completions", json.dumps(body).encode(), 60.0)
    prepared = await lane.prepare(request)
    assert prepared.refused is None, prepared.refused
    for calls in ("all", ["x"], [{"function": 3}], [{"type": "custom"}]):
        hostile = [messages[0], messages[1] | {"tool_calls": calls}]
        answer = await tried(lane, messages=hostile)
        assert isinstance(answer, Answer), calls
        assert answer.status in (200, 400)


async def test_a_model_that_only_thinks_has_not_answered(thinker: Path) -> None:
    """Cut in its thoughts: no success without an answer, and the reason says what to raise.

    A schema waits for their end."""
    hosted = GpuLane(settings(thinker, **THINKS), give_up=pytest.fail)
    await hosted.start()
    try:
        plain = await tried(hosted, ignore_eos=True)
        bound = await tried(hosted, structured_outputs={"choice": ["yes", "no"]}, ignore_eos=True)
    finally:
        await hosted.close()
    for answer in (plain, bound):
        assert isinstance(answer, NoAnswer), answer
        assert answer.failure == "empty_answer"
        assert "raise max_tokens" in answer.detail
