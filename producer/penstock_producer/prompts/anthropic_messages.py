"""Chat messages as Anthropic's Messages have them, from those of OpenAI's chat.

What has no equal there is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock_producer.prompts.messages import BadMessages
from penstock_producer.prompts.of_chat import (
    embedded_image,
    function_call,
    split_system,
    text_of,
    url_of_image,
)

__all__ = ["NO_EQUAL", "Conversation", "conversation_of", "parts_of"]

NO_EQUAL: Final = "Anthropic's Messages have no equal for this."


class Conversation(NamedTuple):
    system: str | None
    messages: list[dict[str, Any]]


def conversation_of(messages: Sequence[Mapping[str, Any]]) -> Conversation:
    """The system messages at the beginning as one text, and the others. Raises BadMessages."""
    others: list[dict[str, Any]] = []

    def add(message: Mapping[str, Any], place: str) -> None:
        _append(others, _translated(message, place))

    return Conversation(split_system(messages, add, no_equal=NO_EQUAL, others="messages"), others)


def parts_of(content: str | Sequence[Mapping[str, Any]], place: str) -> str | list[dict[str, Any]]:
    """A content of OpenAI's chat. Raises BadMessages."""
    if isinstance(content, str):
        return content
    return [_part(part, f"{place}[{index}]") for index, part in enumerate(content)]


def _append(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Results of tools that were called together are one message there."""
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
