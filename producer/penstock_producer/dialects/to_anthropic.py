"""A request of OpenAI's chat as one of Anthropic's Messages.

What has no equal there is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock_producer.dialects.from_anthropic import EFFORTS
from penstock_producer.prompts.messages import (
    BadMessages,
    checked_messages,
    embedded_image,
    function_call,
    split_system,
    text_of,
    url_of_image,
)

__all__ = ["NO_EQUAL", "Conversation", "conversation_of", "parts_of", "translated"]

NO_EQUAL: Final = "Anthropic's Messages have no equal for this."


class Conversation(NamedTuple):
    system: str | None
    messages: list[dict[str, Any]]


def conversation_of(messages: Sequence[Mapping[str, Any]]) -> Conversation:
    """Return the system messages at the beginning as one text, and the others.

    Raises BadMessages.
    """
    others: list[dict[str, Any]] = []

    def add(message: Mapping[str, Any], place: str) -> None:
        _append(others, _translated(message, place))

    return Conversation(split_system(messages, add, no_equal=NO_EQUAL, others="messages"), others)


def parts_of(content: str | Sequence[Mapping[str, Any]], place: str) -> str | list[dict[str, Any]]:
    """Translate a content of OpenAI's chat. Raises BadMessages."""
    if isinstance(content, str):
        return content
    return [_part(part, f"{place}[{index}]") for index, part in enumerate(content)]


def _append(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Append a message; results of tools that were called together are one message there."""
    if messages and _is_results(message) and _is_results(messages[-1]):
        messages[-1]["content"] += message["content"]
    else:
        messages.append(message)


def _is_results(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    return (
        isinstance(content, list)
        and bool(content)
        and all(part["type"] == "tool_result" for part in content)
    )


def _translated(message: Mapping[str, Any], place: str) -> dict[str, Any]:
    content = message.get("content")
    if message["role"] == "tool":
        call = message.get("tool_call_id")
        if not isinstance(call, str) or not call:
            raise BadMessages(
                f"{place}.tool_call_id",
                "The result of a tool names its call.",
                "give the call's id",
                call,
            )
        result = {
            "type": "tool_result",
            "tool_use_id": call,
            "content": text_of(content, f"{place}.content"),
        }
        return {"role": "user", "content": [result]}
    calls = message.get("tool_calls") or []
    if not calls:
        return {"role": message["role"], "content": _content(content, f"{place}.content")}
    if not isinstance(calls, list):
        raise BadMessages(
            f"{place}.tool_calls", "Calls of tools are a list.", "write a list", calls
        )
    before = [] if content in (None, "") else _content(content, f"{place}.content")
    blocks = [{"type": "text", "text": before}] if isinstance(before, str) else before
    used = [_tool_use(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return {"role": message["role"], "content": [*blocks, *used]}


def _content(content: Any, place: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        return parts_of(content, place)
    raise BadMessages(
        place,
        "A content is text or a list of parts.",
        'write {"role": "user", "content": "…"}',
        content,
    )


def _tool_use(call: Any, place: str) -> dict[str, Any]:
    asked = function_call(call, place, NO_EQUAL)
    return {"type": "tool_use", "id": asked.id, "name": asked.name, "input": asked.arguments}


def _part(part: Any, place: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        return {"type": "image", "source": _image(part.get("image_url"), f"{place}.image_url")}
    raise BadMessages(place, NO_EQUAL, "text and images can be sent", part)


def _image(image: Any, place: str) -> dict[str, str]:
    url = url_of_image(image, place, NO_EQUAL)
    if isinstance(url, str) and url.startswith("https://"):
        return {"type": "url", "url": url}
    embedded = embedded_image(url)
    if embedded is None:
        raise BadMessages(
            place, "This is no image.", "give an https:// address, or data:image/png;base64,…", url
        )
    return {"type": "base64", "media_type": embedded[0], "data": embedded[1]}


# Names that are the same in both, or belong to Anthropic alone.
_SAME: Final = frozenset({"model", "top_p", "top_k", "thinking", "max_tokens", "stop_sequences"})
# OpenAI's words of effort that Anthropic has others for
_EFFORTS: Final = {"minimal": "low", **{word: word for word in EFFORTS}}
# Values that say what Anthropic's Messages do anyway.
_MEANINGLESS: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (1,),
    "stream": (False,),
    "logprobs": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "store": (False,),
    "modalities": (["text"],),
    "logit_bias": ({},),
}
_TIERS: Final = {"auto": "auto", "default": "standard_only"}
_CHOICES: Final = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}


def translated(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a body of OpenAI's chat into one of Messages.

    Raises BadMessages, whose place is the field: `tools[0]`, `seed`, `messages[2].role`.
    """
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


def _form(_value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `response_format` and `reasoning_effort`, which are one field there."""
    form, effort = given.get("response_format", {"type": "text"}), given.get("reasoning_effort")
    config: dict[str, Any] = {}
    told = form.get("json_schema") if isinstance(form, Mapping) else None
    schema = told.get("schema") if isinstance(told, Mapping) else None
    if isinstance(schema, Mapping) and form.get("type") == "json_schema":
        config["format"] = {"type": "json_schema", "schema": schema}
    elif form != {"type": "text"}:
        fix = "give text, or json_schema with its schema"
        raise BadMessages("response_format", NO_EQUAL, fix, form)
    if effort == "none":
        return ({"output_config": config} if config else {}) | {"thinking": {"type": "disabled"}}
    if effort is not None and (not isinstance(effort, str) or effort not in _EFFORTS):
        fix = f"write none, {', '.join(_EFFORTS)}"
        raise BadMessages("reasoning_effort", NO_EQUAL, fix, effort)
    config |= {"effort": _EFFORTS[effort]} if effort is not None else {}
    return {"output_config": config} if config else {}


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
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadMessages(place, NO_EQUAL, "give functions, each with a name", tool)
    about = {name: function[name] for name in ("description", "strict") if function.get(name)}
    return {
        "name": function["name"],
        **about,
        "input_schema": function.get("parameters") or {"type": "object"},
    }


def _choice(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `tool_choice`, with `parallel_tool_calls`, which belongs to it there."""
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
    "response_format": _form,
    "reasoning_effort": _form,
    "tools": _tools,
    "tool_choice": _choice,
    "parallel_tool_calls": _choice,
}
