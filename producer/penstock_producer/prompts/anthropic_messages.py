"""Chat messages as Anthropic's Messages have them, from those of OpenAI's chat. What has no equal there is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from penstock_producer.prompts.messages import SYSTEM_ROLES, BadMessages

__all__ = ["NO_EQUAL", "Conversation", "conversation_of", "parts_of"]

NO_EQUAL: Final = "Anthropic's Messages have no equal for this."
_KEPT: Final = {
    "user": frozenset({"role", "content"}),
    "assistant": frozenset({"role", "content", "tool_calls"}),
    "tool": frozenset({"role", "content", "tool_call_id"}),
    "system": frozenset({"role", "content"}),
    "developer": frozenset({"role", "content"}),
}


class Conversation(NamedTuple):
    system: str | None
    messages: list[dict[str, Any]]


def conversation_of(messages: Sequence[Mapping[str, Any]]) -> Conversation:
    """The system messages at the beginning as one text, and the others. Raises BadMessages."""
    system: list[str] = []
    others: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        place = f"[{index}]"
        _refuse_unknown(message, place)
        if message["role"] not in SYSTEM_ROLES:
            _append(others, _translated(message, place))
        elif others:
            fix = "put it first: there is one system text, before all messages"
            raise BadMessages(f"{place}.role", "A system message stands behind others.", fix, message["role"])
        else:
            system.append(_text_of(message.get("content"), f"{place}.content"))
    return Conversation("\n\n".join(system) or None, others)


def parts_of(content: str | Sequence[Mapping[str, Any]], place: str) -> str | list[dict[str, Any]]:
    """A content of OpenAI's chat. Raises BadMessages."""
    if isinstance(content, str):
        return content
    return [_part(part, f"{place}[{index}]") for index, part in enumerate(content)]


def _refuse_unknown(message: Mapping[str, Any], place: str) -> None:
    role = message.get("role")
    kept = _KEPT.get(role) if isinstance(role, str) else None
    if kept is None:
        raise BadMessages(f"{place}.role", NO_EQUAL, f"write {', '.join(_KEPT)}", role)
    for name, value in message.items():
        if name not in kept and value is not None:
            raise BadMessages(f"{place}.{name}", NO_EQUAL, "leave it out", value)


def _append(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Results of tools that were called together are one message there."""
    if messages and _is_results(message) and _is_results(messages[-1]):
        messages[-1]["content"] += message["content"]
    else:
        messages.append(message)


def _is_results(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    return isinstance(content, list) and bool(content) and all(part["type"] == "tool_result" for part in content)


def _translated(message: Mapping[str, Any], place: str) -> dict[str, Any]:
    content = message.get("content")
    if message["role"] == "tool":
        call = message.get("tool_call_id")
        if not isinstance(call, str) or not call:
            raise BadMessages(
                f"{place}.tool_call_id", "The result of a tool names its call.", "give the call's id", call
            )
        result = {"type": "tool_result", "tool_use_id": call, "content": _text_of(content, f"{place}.content")}
        return {"role": "user", "content": [result]}
    calls = message.get("tool_calls") or []
    if not calls:
        return {"role": message["role"], "content": _content(content, f"{place}.content")}
    if not isinstance(calls, list):
        raise BadMessages(f"{place}.tool_calls", "Calls of tools are a list.", "write a list", calls)
    before = [] if content in (None, "") else _content(content, f"{place}.content")
    blocks = [{"type": "text", "text": before}] if isinstance(before, str) else before
    used = [_tool_use(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return {"role": message["role"], "content": [*blocks, *used]}


def _content(content: Any, place: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        return parts_of(content, place)
    raise BadMessages(place, "A content is text or a list of parts.", 'write {"role": "user", "content": "…"}', content)


def _text_of(content: Any, place: str) -> str:
    """Of a system message, or a tool's result: text alone."""
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    if not texts or len(texts) != len(content) or not all(isinstance(text, str) for text in texts):
        raise BadMessages(place, "Only text can stand here.", "write it as text", content)
    return "".join(text for text in texts if isinstance(text, str))


def _tool_use(call: Any, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if (
        not isinstance(function, Mapping)
        or not isinstance(function.get("name"), str)
        or not isinstance(call.get("id"), str)
    ):
        raise BadMessages(place, NO_EQUAL, "give calls of functions, each with id and name", call)
    try:
        arguments = orjson.loads(function.get("arguments") or "{}")
    except (orjson.JSONDecodeError, TypeError):
        arguments = None
    if not isinstance(arguments, dict):
        fix = "write a JSON object, as text"
        raise BadMessages(
            f"{place}.function.arguments", "The arguments are not a JSON object.", fix, function.get("arguments")
        )
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}


def _part(part: Any, place: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        return {"type": "image", "source": _image(part.get("image_url"), f"{place}.image_url")}
    raise BadMessages(place, NO_EQUAL, "text and images can be sent", part)


def _image(image: Any, place: str) -> dict[str, str]:
    url = image.get("url") if isinstance(image, Mapping) else image
    if isinstance(image, Mapping) and image.get("detail") not in (None, "auto"):
        raise BadMessages(f"{place}.detail", NO_EQUAL, "leave it out", image["detail"])
    if isinstance(url, str) and url.startswith("https://"):
        return {"type": "url", "url": url}
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if comma and head.startswith("data:image/") and head.endswith(";base64"):
        return {"type": "base64", "media_type": head.removeprefix("data:").removesuffix(";base64"), "data": data}
    raise BadMessages(place, "This is no image.", "give an https:// address, or data:image/png;base64,…", url)
