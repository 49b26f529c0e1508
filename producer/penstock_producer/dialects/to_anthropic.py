"""A request of OpenAI's chat as one of Anthropic's Messages.

What has no equal there is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock_producer.dialects.fields import (
    Fields,
    body_messages,
    content_of,
    name_of,
    one_of,
    tool_calls,
    tools_of,
)
from penstock_producer.dialects.from_anthropic import EFFORTS
from penstock_producer.prompts.messages import (
    BadMessages,
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
    used = tool_calls(message, place, _tool_use)
    if used and content in (None, ""):
        return {"role": message["role"], "content": used}
    said = content_of(content, f"{place}.content", _part)
    if used:
        said = [*([{"type": "text", "text": said}] if isinstance(said, str) else said), *used]
    return {"role": message["role"], "content": said}


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
_MEANINGLESS: Final[Mapping[str, Collection[object]]] = {
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
    return _FIELDS.translated(chat)


def _messages(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    system, messages = body_messages(value, conversation_of)
    return {"messages": messages} if system is None else {"system": system, "messages": messages}


def _temperature(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(value, int | float) and value > 1:
        raise BadMessages("temperature", "Anthropic takes 0 to 1.", "lower it", value)
    return {"temperature": value}


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


_TOOLS: Final = "give functions, each with a name"


def _tool(function: Mapping[str, Any], _place: str) -> dict[str, Any]:
    about = {name: function[name] for name in ("description", "strict") if function.get(name)}
    takes = function.get("parameters") or {"type": "object"}
    return {"name": function["name"], **about, "input_schema": takes}


def _choice(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `tool_choice`, with `parallel_tool_calls`, which belongs to it there."""
    together = given.get("parallel_tool_calls", True)
    value = given.get("tool_choice", "auto")
    if (name := name_of(value)) is not None:
        choice: Mapping[str, Any] | None = {"type": "tool", "name": name}
    else:
        choice = _CHOICES.get(value) if isinstance(value, str) else None
    if choice is None or not isinstance(together, bool):
        raise BadMessages(
            "tool_choice", NO_EQUAL, f"write {', '.join(_CHOICES)}, or one function", value
        )
    alone = {"disable_parallel_tool_use": True} if not together and choice["type"] != "none" else {}
    return {"tool_choice": {**choice, **alone}}


_FIELDS: Final = Fields(
    NO_EQUAL,
    {
        "messages": _messages,
        "max_completion_tokens": lambda most, _: {"max_tokens": most},
        "temperature": _temperature,
        "stop": lambda value, _: {"stop_sequences": [value] if isinstance(value, str) else value},
        "user": lambda value, _: {"metadata": {"user_id": value}},
        "safety_identifier": lambda value, _: {"metadata": {"user_id": value}},
        "service_tier": one_of("service_tier", _TIERS, NO_EQUAL),
        "response_format": _form,
        "reasoning_effort": _form,
        "tools": lambda value, _: {"tools": tools_of(value, _tool, no_equal=NO_EQUAL, fix=_TOOLS)},
        "tool_choice": _choice,
        "parallel_tool_calls": _choice,
    },
    _SAME,
    _MEANINGLESS,
)
