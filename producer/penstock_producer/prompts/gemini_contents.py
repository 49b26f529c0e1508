"""Chat messages as Gemini's contents, from those of OpenAI's chat. What has no equal there is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from penstock_producer.prompts.messages import SYSTEM_ROLES, BadMessages

__all__ = ["NO_EQUAL", "Contents", "contents_of"]

NO_EQUAL: Final = "Gemini's generateContent has no equal for this."
_KEPT: Final = {
    "user": frozenset({"role", "content"}),
    "assistant": frozenset({"role", "content", "tool_calls"}),
    "tool": frozenset({"role", "content", "tool_call_id"}),
    "system": frozenset({"role", "content"}),
    "developer": frozenset({"role", "content"}),
}
_SOUNDS: Final = {"wav": "audio/wav", "mp3": "audio/mp3"}


class Contents(NamedTuple):
    system: str | None
    contents: list[dict[str, Any]]


def contents_of(messages: Sequence[Mapping[str, Any]]) -> Contents:
    """The system messages at the beginning as one text, and the others. Raises BadMessages."""
    system: list[str] = []
    contents: list[dict[str, Any]] = []
    called: dict[str, str] = {}  # the function of each call: its result is given by that name
    for index, message in enumerate(messages):
        place = f"[{index}]"
        _refuse_unknown(message, place)
        if message["role"] not in SYSTEM_ROLES:
            _append(contents, _role(message), _parts(message, place, called))
        elif contents:
            fix = "put it first: there is one system text, before all contents"
            raise BadMessages(f"{place}.role", "A system message stands behind others.", fix, message["role"])
        else:
            system.append(_text_of(message.get("content"), f"{place}.content"))
    return Contents("\n\n".join(system) or None, contents)


def _refuse_unknown(message: Mapping[str, Any], place: str) -> None:
    role = message.get("role")
    kept = _KEPT.get(role) if isinstance(role, str) else None
    if kept is None:
        raise BadMessages(f"{place}.role", NO_EQUAL, f"write {', '.join(_KEPT)}", role)
    for name, value in message.items():
        if name not in kept and value is not None:
            raise BadMessages(f"{place}.{name}", NO_EQUAL, "leave it out", value)


def _role(message: Mapping[str, Any]) -> str:
    return "model" if message["role"] == "assistant" else "user"


def _append(contents: list[dict[str, Any]], role: str, parts: list[dict[str, Any]]) -> None:
    """Results of functions that were called together are one content there."""
    are_results = all("functionResponse" in part for part in parts)
    if contents and are_results and all("functionResponse" in part for part in contents[-1]["parts"]):
        contents[-1]["parts"] += parts
    else:
        contents.append({"role": role, "parts": parts})


def _parts(message: Mapping[str, Any], place: str, called: dict[str, str]) -> list[dict[str, Any]]:
    content, calls = message.get("content"), message.get("tool_calls") or []
    if message["role"] == "tool":
        return [_result(message, place, called)]
    if not isinstance(calls, list):
        raise BadMessages(f"{place}.tool_calls", "Calls of tools are a list.", "write a list", calls)
    before = [] if calls and content in (None, "") else _content(content, f"{place}.content")
    return before + [_call(call, f"{place}.tool_calls[{index}]", called) for index, call in enumerate(calls)]


def _content(content: Any, place: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"text": content}]
    if isinstance(content, list) and content:
        return [_part(part, f"{place}[{index}]") for index, part in enumerate(content)]
    raise BadMessages(place, "A content is text or a list of parts.", 'write {"role": "user", "content": "…"}', content)


def _text_of(content: Any, place: str) -> str:
    """Of a system message, or a function's result: text alone."""
    parts = _content(content, place)
    if not all("text" in part for part in parts):
        raise BadMessages(place, "Only text can stand here.", "write it as text", content)
    return "".join(part["text"] for part in parts)


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
    url = image.get("url") if isinstance(image, Mapping) else image
    if isinstance(image, Mapping) and image.get("detail") not in (None, "auto"):
        raise BadMessages(f"{place}.detail", NO_EQUAL, "leave it out", image["detail"])
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if comma and head.startswith("data:image/") and head.endswith(";base64"):
        return {"mimeType": head.removeprefix("data:").removesuffix(";base64"), "data": data}
    raise BadMessages(place, "Gemini loads no images from addresses.", "give it as data:image/png;base64,…", url)


def _sound(sound: Any, place: str) -> dict[str, str]:
    kind = _SOUNDS.get(str(sound.get("format"))) if isinstance(sound, Mapping) else None
    if kind is None or not isinstance(sound.get("data"), str):
        raise BadMessages(place, "This is no sound.", f"give data and format: {' or '.join(_SOUNDS)}", sound)
    return {"mimeType": kind, "data": sound["data"]}


def _call(call: Any, place: str, called: dict[str, str]) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not isinstance(call.get("id"), str):
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
    called[call["id"]] = name
    return {"functionCall": {"name": name, "args": arguments}}


def _result(message: Mapping[str, Any], place: str, called: Mapping[str, str]) -> dict[str, Any]:
    call = message.get("tool_call_id")
    name = called.get(call) if isinstance(call, str) else None
    if name is None:
        raise BadMessages(
            f"{place}.tool_call_id", "The result of a tool names a call before it.", "give the call's id", call
        )
    text = _text_of(message.get("content"), f"{place}.content")
    return {"functionResponse": {"name": name, "response": {"result": text}}}
