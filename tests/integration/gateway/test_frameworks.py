"""Frameworks that stand on the clients of OpenAI and Anthropic, unmodified, where they are
installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from doors import door
from fleet import Fleet
from servers import free_port

from penstock_gateway.settings import DirectFields, GatewayFields, GatewaySettings
from penstock_producer.job.endpoints import Kind
from penstock_producer.job.provider_facts import ProviderFacts

KINDS: tuple[Kind, ...] = ("openai", "anthropic", "gemini")
MODEL = "sim-small"
SCHEMA = {
    "title": "Ticket",
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in front of one kind of provider."""
    kind: Kind = request.param
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


def conversation() -> list[Any]:
    """What was asked, a call of a tool, and its result."""
    messages: Any = pytest.importorskip("langchain_core.messages")
    call = {"id": "1", "name": "add", "args": {"a": 1}}
    return [
        messages.SystemMessage("Be brief."),
        messages.HumanMessage("Add."),
        messages.AIMessage("", tool_calls=[call]),
        messages.ToolMessage("3", tool_call_id="1"),
    ]


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


@pytest.mark.parametrize("of_responses", [False, True])
def test_langchain_of_openai_is_answered(url: str, of_responses: bool) -> None:
    """Its batch, its stream, tools, and structured output, by chats and by responses."""
    langchain: Any = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(
        model=MODEL,
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        use_responses_api=of_responses,
    )
    assert all(one.content for one in model.batch(["a", "b", "c"]))
    assert any(one.content for one in model.stream("a"))
    assert model.invoke("a").usage_metadata["output_tokens"] > 0
    assert model.bind_tools([ADD]).invoke(conversation()).content
    ticket = model.with_structured_output(SCHEMA, method="json_schema").invoke("a")
    assert isinstance(ticket["name"], str)


def test_langchain_of_anthropic_is_answered(url: str) -> None:
    """Its batch, its stream and tools."""
    langchain: Any = pytest.importorskip("langchain_anthropic")
    model = langchain.ChatAnthropic(
        model=MODEL, base_url=url, api_key="none", max_retries=0, max_tokens=50
    )
    assert all(one.content for one in model.batch(["a", "b"]))
    assert any(one.content for one in model.stream("a"))
    assert model.bind_tools([ADD]).invoke(conversation()).content


def test_llama_index_is_answered(url: str) -> None:
    """Its completions, and its stream."""
    llama: Any = pytest.importorskip("llama_index.llms.openai")
    model = llama.OpenAI(model="gpt-4o-mini", api_base=f"{url}/v1", api_key="none", max_retries=0)
    assert str(model.complete("a"))
    assert "".join(one.delta or "" for one in model.stream_complete("a"))
