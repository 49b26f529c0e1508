"""Answers that are taken apart, with a process that plays the parsers: outcomes, bounds, and the
answer's form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from penstock_workers.errors import BadEngineSettings
from penstock_workers.item.answer import Answer
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Request
from penstock_workers.item.outcome import Retry
from penstock_workers.item.run.fates import FATES
from penstock_workers.lanes.gpu.children import parsers
from penstock_workers.lanes.gpu.children.line_child import LineChild, NoChild
from penstock_workers.lanes.gpu.children.parsers import (
    AnswerParsers,
    Said,
    Unreadable,
    check_parsers,
)
from penstock_workers.lanes.gpu.engine.engines import EngineCall, RequestRefused
from penstock_workers.lanes.gpu.gpu_lane import GpuLane
from penstock_workers.lanes.gpu.requests.calls import Facts, check_tools, to_parse
from penstock_workers.lanes.gpu.requests.replies import nothing_said, reply
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.settings import WorkerSettings

CONFIG = SimpleNamespace(
    model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type="llama"))
)
CALL = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"at": "x"}'},
}
THINKS = GpuSettings(model="m", reasoning_parser="deepseek_r1")


class FakeChild:
    """Does with each question what ``answers`` say; counts itself."""

    started: list[FakeChild]

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer, self.killed = answer, False

    async def ask(self, line: bytes, _within_s: float) -> Any:
        said = self.answer(orjson.loads(line))
        if isinstance(said, BaseException):
            raise said
        if said is None:
            await asyncio.Event().wait()
        return said

    def kill(self) -> None:
        self.killed = True

    async def gone(self) -> None:
        """At once."""


class Children:
    """Those that were started, each with the answer that is set then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[FakeChild] = []
        self.answer: Callable[[Any], Any] = lambda _: {"problem": "none set"}
        monkeypatch.setattr(LineChild, "start", self._start)

    async def _start(self, _program: str, _facts: bytes) -> FakeChild:
        self.started.append(FakeChild(lambda asked: self.answer(asked)))
        return self.started[-1]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    return Children(monkeypatch)


async def started(settings: GpuSettings = THINKS) -> AnswerParsers:
    parsing = AnswerParsers(settings)
    await parsing.start(CONFIG)
    return parsing


def call(**parsed: Any) -> EngineCall:
    params = SimpleNamespace(structured_outputs=None, skip_special_tokens=True, ignore_eos=False)
    return EngineCall(
        "a", [1, 2], params, facts=Facts("m", chat=True, parsed={"messages": []} | parsed)
    )


def output(*texts: str, reason: str = "stop") -> Any:
    outputs = [
        SimpleNamespace(
            index=n,
            text=text,
            token_ids=[5, 6],
            finish_reason=reason,
            stop_reason=None,
            logprobs=None,
        )
        for n, text in enumerate(texts)
    ]
    return SimpleNamespace(outputs=outputs, prompt_token_ids=[1, 2], num_cached_tokens=0)


def read(
    reasoning: str | None = None, content: str | None = None, calls: Any = ()
) -> dict[str, Any]:
    return {
        "reasoning": reasoning,
        "content": content,
        "tool_calls": list(calls),
        "reasoning_tokens": 1,
    }


def body(said: Said, reason: str = "stop", **parsed: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(reply(call(**parsed), output("raw", reason=reason), [said]))
    return made


async def test_what_a_model_thinks_is_apart_from_what_it_says(children: Children) -> None:
    """In the field of vLLM's own server, with its tokens in the usage; the content has none of
    it."""
    parsing = await started()
    children.answer = lambda asked: {"read": [read("hm", "yes") for _ in asked["answers"]]}
    said = await parsing.read(call(), output("<think>hm</think>yes"))
    assert said is not None
    made = json.loads(reply(call(), output("<think>hm</think>yes"), said))
    assert made["choices"][0]["message"] == {
        "role": "assistant",
        "content": "yes",
        "reasoning": "hm",
    }
    assert made["choices"][0]["finish_reason"] == "stop"
    assert made["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_thinking_alone_is_no_answer(reason: str) -> None:
    """Cut in its thoughts, or ended with them: a failure that says what to do, and never a
    success."""
    thought = Said("hm", None, [], 3)
    missing = nothing_said(output("x", reason=reason).outputs, [thought])
    assert missing is not None
    assert missing.failure == "empty_answer"
    assert ("raise max_tokens" in missing.detail) == (reason == "length")
    assert nothing_said(output("x", "y").outputs, [thought, Said(None, "yes", [], 0)]) is None


def test_a_required_call_that_is_missing_is_no_answer() -> None:
    """Half of its text is not stored as if it were an answer for people."""
    half, whole = Said(None, "<tool_call>{", [], 0), Said(None, None, [CALL], 0)
    outputs = output("x", reason="length").outputs
    missing = nothing_said(outputs, [half], must_call=True)
    assert missing is not None
    assert "before it had a whole call of a tool: raise max_tokens" in missing.detail
    assert nothing_said(outputs, [half]) is None
    assert nothing_said(outputs, [whole], must_call=True) is None


@pytest.mark.parametrize(
    ("choice", "reason", "ends"),
    [
        ("auto", "stop", "tool_calls"),
        ("auto", "length", "tool_calls"),
        ("required", "stop", "tool_calls"),
        ("required", "length", "length"),
        ({"type": "function", "function": {"name": "look"}}, "stop", "stop"),
    ],
)
def test_calls_of_tools_are_as_vllms_server_writes_them(
    choice: Any, reason: str, ends: str
) -> None:
    """Content null, the calls beside it, and the finish reason by what was asked for; the item is a
    success."""
    made = body(Said(None, None, [CALL], 0), reason, tools=[{}], tool_choice=choice)
    assert made["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL],
    }
    assert made["choices"][0]["finish_reason"] == ends
    assert isinstance(name_failure(Answer(200, {}, json.dumps(made).encode(), 1), 0.0), Reply)


async def test_a_parser_that_raises_costs_its_own_item(children: Children) -> None:
    """The next answer is read by the same process."""
    parsing = await started()
    children.answer = lambda _: {"problem": "KeyError: 'name'"}
    with pytest.raises(
        Unreadable, match=r"gpu\.reasoning_parser 'deepseek_r1' cannot read the answer: KeyError"
    ):
        await parsing.read(call(), output("x"))
    children.answer = lambda _: {"read": [read(content="y")]}
    assert await parsing.read(call(), output("x"))
    assert len(children.started) == 1


@pytest.mark.parametrize("error", [TimeoutError(), EOFError(), BrokenPipeError()])
async def test_a_parser_that_hangs_or_dies_is_ended_and_begun_anew(
    children: Children, error: Exception
) -> None:
    """That item fails by name, one that died at the second try; the process is killed, and the next
    answer has another."""
    parsing = await started()
    children.answer = lambda _: error
    with pytest.raises(Unreadable, match=r"takes longer than|ends the process"):
        await parsing.read(call(), output("x"))
    children.answer = lambda _: {"read": [read(content="y")]}
    assert await parsing.read(call(), output("x"))
    tries = 1 if isinstance(error, TimeoutError) else 2
    assert [child.killed for child in children.started] == [True] * tries + [False]


async def test_an_item_that_is_cancelled_does_not_take_anothers_answer(children: Children) -> None:
    """Its question is still answered, to the end, before the next one is asked."""
    parsing = await started()
    asked: list[Any] = []
    release = asyncio.Event()

    async def ask(line: bytes, _within_s: float) -> Any:
        asked.append(orjson.loads(line)["answers"][0]["text"])
        await release.wait()
        return {"read": [read(content=asked[-1])]}

    children.started[0].ask = ask  # type: ignore[method-assign]
    first = asyncio.create_task(parsing.read(call(), output("one")))
    second = asyncio.create_task(parsing.read(call(), output("two")))
    for _ in range(5):
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    release.set()
    said = await second
    assert said is not None
    assert said[0].content == "two"
    assert asked == ["one", "two"]
    await parsing.close()


async def test_tools_change_what_the_engine_is_asked(children: Children) -> None:
    """Special tokens and constraints are as the parser needs them; equal tools are asked for
    once."""
    parsing = await started(GpuSettings(model="m", tool_parser="hermes"))
    questions: list[Any] = []

    def needs(asked: Any) -> dict[str, Any]:
        questions.append(asked)
        return {"skip_special_tokens": False, "constraint": None}

    children.answer = needs
    for _ in range(3):
        one = call(tools=[{"a": 1}], tool_choice="auto")
        await parsing.ask_for(one)
        assert one.params.skip_special_tokens is False
    assert len(questions) == 1
    children.answer = lambda _: {"problem": "ValidationError: no such tool"}
    with pytest.raises(
        RequestRefused, match=r"gpu\.tool_parser 'hermes' refuses them: ValidationError"
    ):
        await parsing.ask_for(call(tools=[{"a": 2}], tool_choice="auto"))


async def test_a_model_that_the_parsers_do_not_suit_stops_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the parser's own reason; and gpt-oss is for the sidecar, since vLLM's server alone reads
    its chats."""

    async def fails(_program: str, _facts: bytes) -> LineChild:
        raise NoChild("RuntimeError: could not locate think start/end tokens in the tokenizer!")

    monkeypatch.setattr(LineChild, "start", fails)
    with pytest.raises(BadEngineSettings, match="could not locate think"):
        await started()
    harmony = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type="gpt_oss"))
    )
    with pytest.raises(BadEngineSettings, match="use the sidecar"):
        await AnswerParsers(THINKS).start(harmony)


def test_a_vllm_without_parsers_is_told_to_use_the_sidecar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before minutes of loading."""

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(parsers, "import_module", missing)
    with pytest.raises(BadEngineSettings, match=r"gpu\.reasoning_parser: .*or use the sidecar"):
        check_parsers(THINKS)
    check_parsers(GpuSettings(model="m"))


@pytest.mark.parametrize("name", ["tools", "tool_choice", "parallel_tool_calls"])
def test_tools_without_a_parser_are_refused_by_name(name: str) -> None:
    """An answer with a call in its text would be stored as if it were one for people."""
    with pytest.raises(
        RequestRefused,
        match=f"^{name}: this worker has no tool parser: set gpu.tool_parser, or use",
    ):
        check_tools({name: "auto"}, has_parser=False, chat=True)
    with pytest.raises(RequestRefused, match="completions call no tools"):
        check_tools({name: "auto"}, has_parser=True, chat=False)
    check_tools({"tools": [], "tool_choice": None}, has_parser=False, chat=True)


@pytest.mark.parametrize(
    "tools",
    ["all", {"type": "function"}, None, [{"type": "function"}] * 129],
    ids=["text", "one", "none", "many"],
)
def test_tools_are_a_list_of_some(tools: Any) -> None:
    """Anything else is refused before vLLM has it."""
    with pytest.raises(RequestRefused, match=r"^tools "):
        check_tools({"tools": tools, "tool_choice": "auto"}, has_parser=True, chat=True)


def test_answers_are_taken_apart_only_where_there_is_something_to_find() -> None:
    """With a tool parser alone, chats without tools are left as they are."""
    tools = GpuSettings(model="m", tool_parser="hermes")
    assert to_parse({"messages": []}, tools) is None
    assert to_parse({"messages": []}, GpuSettings(model="m")) is None
    assert to_parse({"messages": []}, THINKS) == {"messages": [], "chat_template_kwargs": {}}
    asked = to_parse({"tools": [{}], "parallel_tool_calls": False}, tools)
    assert asked is not None
    assert (asked["tool_choice"], asked["parallel_tool_calls"]) == ("auto", False)


def test_a_server_beside_the_worker_has_parsers_of_its_own() -> None:
    """With upstream_url the server parses, so the settings are refused instead of ignored."""
    with pytest.raises(ValueError, match="leave out reasoning_parser, tool_parser"):
        GpuSettings(
            upstream_url="http://127.0.0.1:8000/v1", reasoning_parser="qwen3", tool_parser="hermes"
        )


async def test_what_is_no_fault_of_the_request_is_tried_again(children: Children) -> None:
    """A process of the parsers that dies before the engine is asked makes no dead letter at the
    first try."""
    lane = GpuLane(
        WorkerSettings(lane="gpu", gpu=GpuSettings(model="m", tool_parser="hermes")),
        give_up=pytest.fail,
    )
    await lane._parsers.start(CONFIG)
    calls = SimpleNamespace(
        build=lambda _: (call(tools=[{}], tool_choice="auto"), 5), decodes_media=False
    )
    lane._host.built = SimpleNamespace(calls=calls)  # type: ignore[assignment]
    children.answer = lambda _: EOFError()
    prepared = await lane.prepare(Request("tag", "default", "/v1/chat/completions", b"{}", 10.0))
    assert prepared.refused is not None
    failure = name_failure(prepared.refused, 0.0)
    assert isinstance(failure, Failure)
    assert FATES[failure.name].outcome is Retry
    await lane.close()
