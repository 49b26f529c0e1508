"""A request of OpenAI's chat as one of Gemini's generateContent.

What has no equal there is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from penstock_producer.dialects.answers import signature_of
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

__all__ = ["NO_EQUAL", "Contents", "translated"]

NO_EQUAL: Final = "Gemini's generateContent has no equal for this."
_SOUNDS: Final = {"wav": "audio/wav", "mp3": "audio/mp3"}


class Contents(NamedTuple):
    system: str | None
    contents: list[dict[str, Any]]


def contents_of(messages: Sequence[Mapping[str, Any]]) -> Contents:
    """Return the system messages at the beginning as one text, and the others.

    Raises BadMessages.
    """
    contents: list[dict[str, Any]] = []
    called: dict[str, str] = {}  # the function of each call: its result is given by that name

    def add(message: Mapping[str, Any], place: str) -> None:
        role = "model" if message["role"] == "assistant" else "user"
        _append(contents, role, _parts(message, place, called))

    return Contents(split_system(messages, add, no_equal=NO_EQUAL, others="contents"), contents)


def _append(contents: list[dict[str, Any]], role: str, parts: list[dict[str, Any]]) -> None:
    """Append parts; results of functions that were called together are one content there."""
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
    if message["role"] == "tool":
        return [_result(message, place, called)]
    content = message.get("content")
    calls = tool_calls(message, place, partial(_call, called))
    if calls and content in (None, ""):
        return calls
    said = content_of(content, f"{place}.content", _part)
    return [*([{"text": said}] if isinstance(said, str) else said), *calls]


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


def _call(called: dict[str, str], call: Any, place: str) -> dict[str, Any]:
    asked = function_call(call, place, NO_EQUAL)
    called[asked.id] = asked.name
    part = {"functionCall": {"name": asked.name, "args": asked.arguments}}
    signature = signature_of(call)
    return part if signature is None else part | {"thoughtSignature": signature}


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


# Names in generationConfig of what OpenAI's chat has beside its messages.
_NAMES: Final[Mapping[str, str]] = {
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "n": "candidateCount",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
# Values that say what generateContent does anyway.
_MEANINGLESS: Final[Mapping[str, Collection[object]]] = {
    "stream": (False,),
    "logprobs": (False,),
    "store": (False,),
    "modalities": (["text"],),
    "logit_bias": ({},),
    "parallel_tool_calls": (True,),
}
# Of OpenAI, as generateContent has them; None: what it does anyway.
_TIERS: Final[Mapping[str, str | None]] = {
    "auto": None,
    "default": None,
    "flex": "flex",
    "priority": "priority",
}
# of thought, as Google's own translation of OpenAI's words has them
_THOUGHTS: Final = {"none": 0, "minimal": 1_024, "low": 1_024, "medium": 8_192, "high": 24_576}
_MODES: Final = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


def translated(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a body of OpenAI's chat into one of Gemini.

    Raises BadMessages, whose place is the field: `tools[0]`, `logprobs`, `messages[2].role`.
    """
    config = {name: value for name, value in chat.items() if name in _CONFIG.writers}
    body = _FIELDS.translated({name: chat[name] for name in chat if name not in config})
    written = _CONFIG.translated(config)
    return body | ({"generationConfig": written} if written else {})


def _renamed(there: str) -> Writer:
    return lambda value, _: {there: value}


def _messages(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    system, contents = body_messages(value, contents_of)
    return {"contents": contents} | (
        {} if system is None else {"systemInstruction": {"parts": [{"text": system}]}}
    )


def _form(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the form of the answer: `response_format`."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"responseMimeType": "application/json"}
    told = value.get("json_schema") if kind == "json_schema" else None
    schema = told.get("schema") if isinstance(told, Mapping) else None
    if not isinstance(schema, Mapping):
        raise BadMessages(
            "response_format",
            NO_EQUAL,
            "give text, json_object, or json_schema with its schema",
            value,
        )
    return {"responseMimeType": "application/json", "responseJsonSchema": schema}


def _thinking(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, str) or value not in _THOUGHTS:
        raise BadMessages("reasoning_effort", NO_EQUAL, f"write {', '.join(_THOUGHTS)}", value)
    return {"thinkingConfig": {"thinkingBudget": _THOUGHTS[value]}}


def _tools(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    fix = "give functions that are not strict"

    def tool(function: Mapping[str, Any], place: str) -> dict[str, Any]:
        if function.get("strict"):
            raise BadMessages(place, NO_EQUAL, fix, function)
        taken = {"description": "description", "parameters": "parametersJsonSchema"}
        about = {there: function[here] for here, there in taken.items() if function.get(here)}
        return {"name": function["name"], **about}

    return {"tools": [{"functionDeclarations": tools_of(value, tool, no_equal=NO_EQUAL, fix=fix)}]}


def _choice(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    if (name := name_of(value)) is not None:
        return {
            "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [name]}}
        }
    mode = _MODES.get(value) if isinstance(value, str) else None
    if mode is None:
        raise BadMessages(
            "tool_choice", NO_EQUAL, f"write {', '.join(_MODES)}, or one function", value
        )
    return {"toolConfig": {"functionCallingConfig": {"mode": mode}}}


_CONFIG: Final = Fields(
    NO_EQUAL,
    {
        **{name: _renamed(there) for name, there in _NAMES.items()},
        "stop": lambda value, _: {"stopSequences": [value] if isinstance(value, str) else value},
        "response_format": _form,
        "reasoning_effort": _thinking,
    },
)


def _tier(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, str) or value not in _TIERS:
        raise BadMessages("service_tier", NO_EQUAL, f"write {', '.join(_TIERS)}", value)
    return {} if _TIERS[value] is None else {"serviceTier": _TIERS[value]}


_FIELDS: Final = Fields(
    NO_EQUAL,
    {"messages": _messages, "tools": _tools, "tool_choice": _choice, "service_tier": _tier},
    ("model",),
    _MEANINGLESS,
)
