"""A request body of OpenAI's chat as one of Anthropic's Messages: everything in it has an equal
there, or it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock_producer.prompts.anthropic_messages import NO_EQUAL, conversation_of
from penstock_producer.prompts.messages import BadMessages, checked_messages

__all__ = ["translated"]

# Names that are the same in both, or belong to Anthropic alone.
_SAME: Final = frozenset({"model", "top_p", "top_k", "thinking", "max_tokens", "stop_sequences"})
# Values that say what Anthropic's Messages do anyway.
_MEANINGLESS: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (1,),
    "stream": (False,),
    "logprobs": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "modalities": (["text"],),
    "logit_bias": ({},),
}
_TIERS: Final = {"auto": "auto", "default": "standard_only"}
_CHOICES: Final = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}


def translated(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Raises BadMessages, whose place is the field: `tools[0]`, `seed`, `messages[2].role`."""
    given = {name: value for name, value in chat.items() if value is not None}
    body: dict[str, Any] = {}
    for name, value in given.items():
        write = _WRITERS.get(name)
        if write is not None:
            body |= write(value, given)
        elif name in _SAME:
            body[name] = value
        elif value not in _MEANINGLESS.get(name, ()):
            raise BadMessages(
                name, NO_EQUAL, "leave it out, or send the request to a provider that has it", value
            )
    return body


def _messages(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        system, messages = conversation_of(checked_messages(value))
    except BadMessages as error:
        error.place = f"messages{error.place}"
        raise
    return {"messages": messages} if system is None else {"system": system, "messages": messages}


def _longest(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    return {"max_tokens": value}


def _temperature(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(value, int | float) and value > 1:
        raise BadMessages("temperature", "Anthropic takes 0 to 1.", "lower it", value)
    return {"temperature": value}


def _stop(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    return {"stop_sequences": [value] if isinstance(value, str) else value}


def _user(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"user_id": value}}


def _tier(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, str) or value not in _TIERS:
        raise BadMessages("service_tier", NO_EQUAL, f"write {' or '.join(_TIERS)}", value)
    return {"service_tier": _TIERS[value]}


def _tools(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, list):
        raise BadMessages("tools", "Tools are a list.", "write a list", value)
    return {"tools": [_tool(tool, f"tools[{index}]") for index, tool in enumerate(value)]}


def _tool(tool: Any, place: str) -> dict[str, Any]:
    function = (
        tool.get("function")
        if isinstance(tool, Mapping) and tool.get("type") == "function"
        else None
    )
    if (
        not isinstance(function, Mapping)
        or not isinstance(function.get("name"), str)
        or function.get("strict")
    ):
        raise BadMessages(place, NO_EQUAL, "give functions that are not strict", tool)
    about = {"description": function["description"]} if function.get("description") else {}
    return {
        "name": function["name"],
        **about,
        "input_schema": function.get("parameters") or {"type": "object"},
    }


def _choice(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """With `parallel_tool_calls`, which belongs to it there."""
    together = given.get("parallel_tool_calls", True)
    value = given.get("tool_choice", "auto")
    choice = _CHOICES.get(value) if isinstance(value, str) else _named(value)
    if choice is None or not isinstance(together, bool):
        raise BadMessages(
            "tool_choice", NO_EQUAL, f"write {', '.join(_CHOICES)}, or one function", value
        )
    alone = {"disable_parallel_tool_use": True} if not together and choice["type"] != "none" else {}
    return {"tool_choice": {**choice, **alone}}


def _named(value: Any) -> dict[str, Any] | None:
    function = value.get("function") if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return {"type": "tool", "name": name} if isinstance(name, str) else None


_WRITERS: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], dict[str, Any]]]] = {
    "messages": _messages,
    "max_completion_tokens": _longest,
    "temperature": _temperature,
    "stop": _stop,
    "user": _user,
    "safety_identifier": _user,
    "service_tier": _tier,
    "tools": _tools,
    "tool_choice": _choice,
    "parallel_tool_calls": _choice,
}
