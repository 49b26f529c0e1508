"""A request of OpenAI's chat as one of Amazon Bedrock's Converse.

The names are those of botocore's service model of bedrock-runtime (2023-09-30, Converse). What has
no equal there is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from penstock_producer.dialects.fields import (
    Fields,
    Writer,
    body_messages,
    content_of,
    name_of,
    tool_calls,
    tools_of,
)
from penstock_producer.prompts.messages import (
    BadMessages,
    embedded_image,
    function_call,
    split_system,
    text_of,
    url_of_image,
)

__all__ = ["NO_EQUAL", "translated"]

NO_EQUAL: Final = "Bedrock's Converse has no equal for this."
_FORMATS: Final = ("png", "jpeg", "gif", "webp")


class _Conversation(NamedTuple):
    system: str | None
    messages: list[dict[str, Any]]


def _conversation_of(messages: Sequence[Mapping[str, Any]]) -> _Conversation:
    """Return the system messages at the beginning as one text, and the others.

    Raises BadMessages."""
    turns: list[dict[str, Any]] = []

    def add(message: Mapping[str, Any], place: str) -> None:
        is_result = message["role"] == "tool"
        blocks = [_result(message, place)] if is_result else _blocks(message, place)
        if is_result and turns and "toolResult" in turns[-1]["content"][-1]:
            turns[-1]["content"] += blocks  # of tools that were used together
        else:
            role = "assistant" if message["role"] == "assistant" else "user"
            turns.append({"role": role, "content": blocks})

    return _Conversation(split_system(messages, add, no_equal=NO_EQUAL, others="messages"), turns)


def _blocks(message: Mapping[str, Any], place: str) -> list[dict[str, Any]]:
    content = message.get("content")
    used = tool_calls(message, place, _tool_use)
    if used and content in (None, ""):
        return used
    said = content_of(content, f"{place}.content", _part)
    return [*([{"text": said}] if isinstance(said, str) else said), *used]


def _result(message: Mapping[str, Any], place: str) -> dict[str, Any]:
    call = message.get("tool_call_id")
    if not isinstance(call, str) or not call:
        raise BadMessages(
            f"{place}.tool_call_id",
            "The result of a tool names its call.",
            "give the call's id",
            call,
        )
    text = text_of(message.get("content"), f"{place}.content")
    return {"toolResult": {"toolUseId": call, "content": [{"text": text}]}}


def _tool_use(call: Any, place: str) -> dict[str, Any]:
    asked = function_call(call, place, NO_EQUAL)
    return {"toolUse": {"toolUseId": asked.id, "name": asked.name, "input": asked.arguments}}


def _part(part: Any, place: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"text": part["text"]}
    if kind == "image_url":
        return {"image": _image(part.get("image_url"), f"{place}.image_url")}
    raise BadMessages(place, NO_EQUAL, "text and images can be sent", part)


def _image(image: Any, place: str) -> dict[str, Any]:
    url = url_of_image(image, place, NO_EQUAL)
    embedded = embedded_image(url)
    kind = None if embedded is None else embedded[0].removeprefix("image/")
    if embedded is None or kind not in _FORMATS:
        raise BadMessages(
            place,
            f"Bedrock takes images of {', '.join(_FORMATS)}, and loads none from addresses.",
            "give it as data:image/png;base64,…",
            url,
        )
    return {"format": kind, "source": {"bytes": embedded[1]}}


# Names in inferenceConfig of what OpenAI's chat has beside its messages.
_NAMES: Final[Mapping[str, str]] = {
    "max_tokens": "maxTokens",
    "max_completion_tokens": "maxTokens",
    "top_p": "topP",
}
# Values that say what Converse does anyway.
_MEANINGLESS: Final[Mapping[str, Collection[object]]] = {
    "n": (1,),
    "stream": (False,),
    "logprobs": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "store": (False,),
    "modalities": (["text"],),
    "logit_bias": ({},),
    "parallel_tool_calls": (True,),
}
_CHOICES: Final = {"auto": "auto", "required": "any"}


def translated(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a body of OpenAI's chat into one of Converse.

    Raises BadMessages, whose place is the field: `tools[0]`, `seed`, `messages[2].role`.
    """
    config = {name: value for name, value in chat.items() if name in _CONFIG.writers}
    choice = chat.get("tool_choice")
    left = {name: chat[name] for name in chat if name not in config and name != "tool_choice"}
    body = _FIELDS.translated(left)
    if choice is not None:
        tools = body.get("toolConfig", {"tools": []})
        body["toolConfig"] = {**tools, "toolChoice": _chosen(choice)}
    written = _CONFIG.translated(config)
    return body | ({"inferenceConfig": written} if written else {})


def _renamed(there: str) -> Writer:
    return lambda value, _: {there: value}


def _messages(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    system, messages = body_messages(value, _conversation_of)
    return {"messages": messages} | ({} if system is None else {"system": [{"text": system}]})


def _temperature(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(value, int | float) and value > 1:
        raise BadMessages("temperature", "Bedrock takes 0 to 1.", "lower it", value)
    return {"temperature": value}


def _form(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the form of the answer: `response_format`."""
    if value == {"type": "text"}:
        return {}
    told = value.get("json_schema") if isinstance(value, Mapping) else None
    schema = told.get("schema") if isinstance(told, Mapping) else None
    if not isinstance(told, Mapping) or not isinstance(schema, Mapping):
        fix = "give text, or json_schema with its schema"
        raise BadMessages("response_format", NO_EQUAL, fix, value)
    about = {name: told[name] for name in ("name", "description") if told.get(name)}
    structure = {"jsonSchema": {"schema": orjson.dumps(schema).decode(), **about}}
    return {"outputConfig": {"textFormat": {"type": "json_schema", "structure": structure}}}


_TOOLS: Final = "give functions, each with a name"


def _tool(function: Mapping[str, Any], _place: str) -> dict[str, Any]:
    about = {name: function[name] for name in ("description", "strict") if function.get(name)}
    takes = {"json": function.get("parameters") or {"type": "object"}}
    return {"toolSpec": {"name": function["name"], **about, "inputSchema": takes}}


def _tools(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    return {"toolConfig": {"tools": tools_of(value, _tool, no_equal=NO_EQUAL, fix=_TOOLS)}}


def _chosen(value: Any) -> dict[str, Any]:
    if (name := name_of(value)) is not None:
        return {"tool": {"name": name}}
    mode = _CHOICES.get(value) if isinstance(value, str) else None
    if mode is None:
        fix = f"write {' or '.join(_CHOICES)}, or one function"
        raise BadMessages("tool_choice", NO_EQUAL, fix, value)
    return {mode: {}}


_CONFIG: Final = Fields(
    NO_EQUAL,
    {
        **{name: _renamed(there) for name, there in _NAMES.items()},
        "temperature": _temperature,
        "stop": lambda value, _: {"stopSequences": [value] if isinstance(value, str) else value},
    },
)
_FIELDS: Final = Fields(
    NO_EQUAL,
    {"messages": _messages, "tools": _tools, "response_format": _form},
    ("model",),
    _MEANINGLESS,
)
