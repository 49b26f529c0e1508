"""The tools that a document offers to the model, and how its answers are to be taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock_workers.lanes.gpu.children.parser_child import PROTOCOL
from penstock_workers.lanes.gpu.engine.engines import RequestRefused
from penstock_workers.lanes.gpu.engine.upstream import upstream
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.shown import shown

FIELDS: Final = ("tools", "tool_choice", "parallel_tool_calls")
TOOLS_MAX: Final = 128  # as at OpenAI


def check_tools(body: dict[str, Any], *, has_parser: bool, chat: bool) -> None:
    """Tools into the form in which vLLM's server gives them to chat templates.

    Raises RequestRefused."""
    named = [name for name in FIELDS if body.get(name) not in (None, [])]
    if not named:
        return
    if not chat:
        raise RequestRefused(f"{named[0]}: completions call no tools; send a chat")
    if not has_parser:
        raise RequestRefused(
            f"{named[0]}: this worker has no tool parser: set gpu.tool_parser, or use the sidecar "
            "(gpu.upstream_url)"
        )
    tools = body.get("tools")
    if not isinstance(tools, list) or not tools:
        raise RequestRefused(
            f"tools is {shown(tools)}, and {named[0]} is set: give a list of tools, or leave it out"
        )
    if len(tools) > TOOLS_MAX:
        raise RequestRefused(f"tools has {len(tools)} entries, and may have {TOOLS_MAX}")
    make = upstream(PROTOCOL, "ChatCompletionToolsParam")
    try:
        body["tools"] = [make.model_validate(tool).model_dump() for tool in tools]
    except ValueError as error:  # pydantic's
        raise RequestRefused(f"tools: {error}") from error


def to_parse(body: Mapping[str, Any], settings: GpuSettings) -> dict[str, Any] | None:
    """What vLLM's parsers need to know of this chat; None where its answers are taken as they
    are."""
    tools = body.get("tools") or None
    if settings.reasoning_parser is None and (settings.tool_parser is None or tools is None):
        return None
    request: dict[str, Any] = {
        "messages": [],
        "chat_template_kwargs": body.get("chat_template_kwargs") or {},
    }
    if body.get("skip_special_tokens") is not None:
        request["skip_special_tokens"] = body["skip_special_tokens"]
    if tools is None:
        return request
    given = {name: body[name] for name in FIELDS if body.get(name) is not None}
    return request | {"tool_choice": "auto"} | given


def must_call(parsed: Mapping[str, Any] | None) -> bool:
    """Whether the request wants a call whatever else is said: of any tool, or of one that it
    names."""
    choice = (parsed or {}).get("tool_choice")
    return choice == "required" or isinstance(choice, dict)
