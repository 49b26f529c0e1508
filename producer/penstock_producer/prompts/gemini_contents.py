"""Chat messages as Gemini's contents, from those of OpenAI's chat.

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

__all__ = ["NO_EQUAL", "Contents", "contents_of"]

NO_EQUAL: Final = "Gemini's generateContent has no equal for this."
_SOUNDS: Final = {"wav": "audio/wav", "mp3": "audio/mp3"}


class Contents(NamedTuple):
    system: str | None
    contents: list[dict[str, Any]]


def contents_of(messages: Sequence[Mapping[str, Any]]) -> Contents:
    """The system messages at the beginning as one text, and the others. Raises BadMessages."""
    contents: list[dict[str, Any]] = []
    called: dict[str, str] = {}  # the function of each call: its result is given by that name

    def add(message: Mapping[str, Any], place: str) -> None:
        _append(contents, _role(message), _parts(message, place, called))

    return Contents(split_system(messages, add, no_equal=NO_EQUAL, others="contents"), contents)


def _role(message: Mapping[str, Any]) -> str:
    return "model" if message["role"] == "assistant" else "user"


def _append(contents: list[dict[str, Any]], role: str, parts: list[dict[str, Any]]) -> None:
    """Results of functions that were called together are one content there."""
    are_results = all("functionResponse" in part for part in parts)
    if (
        contents
        and are_results
        and all("functionResponse" in part for part in contents[-1]["parts"])
    ):
        contents[-1]["parts"] += parts
    else:
        contents.append({"role": role, "parts": parts})


def _parts(message: Mapping[str, Any], place: str, called: dict[str, str]) -> list[dict[str, Any]]:
    content, calls = message.get("content"), message.get("tool_calls") or []
    if message["role"] == "tool":
        return [_result(message, place, called)]
    if not isinstance(calls, list):
        raise BadMessages(
            f"{place}.tool_calls", "Calls of tools are a list.", "write a list", calls
        )
    before = [] if calls and content in (None, "") else _content(content, f"{place}.content")
    return before + [
        _call(call, f"{place}.tool_calls[{index}]", called) for index, call in enumerate(calls)
    ]


def _content(content: Any, place: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"text": content}]
    if isinstance(content, list) and content:
        return [_part(part, f"{place}[{index}]") for index, part in enumerate(content)]
    raise BadMessages(
        place,
        "A content is text or a list of parts.",
        'write {"role": "user", "content": "…"}',
        content,
    )


def _part(part: Any, place: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"text": part["text"]}
    if kind == "image_url":
        return {"inlineData": _image(part.get("image_url"), f"{place}.image_url")}
    if kind == "input_audio":
        return {"inlineData": _sound(part.get("input_audio"), f"{place}.input_audio")}
    raise BadMessages(place, NO_EQUAL, "text, images and sounds can be sent", part)


def _image(image: Any, place: str) -> dict[str, str]:
    url = url_of_image(image, place, NO_EQUAL)
    embedded = embedded_image(url)
    if embedded is None:
        raise BadMessages(
            place,
            "Gemini loads no images from addresses.",
            "give it as data:image/png;base64,…",
            url,
        )
    return {"mimeType": embedded[0], "data": embedded[1]}


def _sound(sound: Any, place: str) -> dict[str, str]:
    kind = _SOUNDS.get(str(sound.get("format"))) if isinstance(sound, Mapping) else None
    if kind is None or not isinstance(sound.get("data"), str):
        raise BadMessages(
            place, "This is no sound.", f"give data and format: {' or '.join(_SOUNDS)}", sound
        )
    return {"mimeType": kind, "data": sound["data"]}


def _call(call: Any, place: str, called: dict[str, str]) -> dict[str, Any]:
    asked = function_call(call, place, NO_EQUAL)
    called[asked.id] = asked.name
    return {"functionCall": {"name": asked.name, "args": asked.arguments}}


def _result(message: Mapping[str, Any], place: str, called: Mapping[str, str]) -> dict[str, Any]:
    call = message.get("tool_call_id")
    name = called.get(call) if isinstance(call, str) else None
    if name is None:
        raise BadMessages(
            f"{place}.tool_call_id",
            "The result of a tool names a call before it.",
            "give the call's id",
            call,
        )
    text = text_of(message.get("content"), f"{place}.content")
    return {"functionResponse": {"name": name, "response": {"result": text}}}
