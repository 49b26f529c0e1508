"""A request body of Gemini: parameters stand together in one field, and the system text in another.

One of OpenAI's chat becomes such a body where everything in it has an equal there, and is refused
otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from penstock_producer.job.spec import JobSpec
from penstock_producer.prompts.gemini_contents import NO_EQUAL, contents_of
from penstock_producer.prompts.messages import BadMessages, checked_messages

__all__ = ["GeminiBodies", "translated", "with_defaults"]

# Names in generationConfig of what OpenAI's chat has beside its messages.
_CONFIG: Final[Mapping[str, str]] = {
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
_MEANINGLESS: Final[Mapping[str, tuple[object, ...]]] = {
    "stream": (False,),
    "logprobs": (False,),
    "store": (False,),
    "modalities": (["text"],),
    "logit_bias": ({},),
    "parallel_tool_calls": (True,),
    "service_tier": ("auto", "default"),
}
_MODES: Final = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


class GeminiBodies:
    """Builds the body for one rendered text."""

    def __init__(self, spec: JobSpec) -> None:
        system = (
            {} if spec.system is None else {"systemInstruction": {"parts": [{"text": spec.system}]}}
        )
        head = orjson.dumps({"model": spec.model} | system)
        self._head = head[:-1] + b',"contents":[{"role":"user","parts":[{"text":'
        self._params = spec.sent_params()
        self._end = _end(self._params)

    def __call__(
        self, content: str | list[dict[str, Any]], params: Mapping[str, Any] | None = None
    ) -> bytes:
        """``content`` is a text. ``params`` are the document's own, as they are sent."""
        end = _end({**self._params, **params}) if params else self._end
        return b"".join((self._head, orjson.dumps(content), b"}]}]", end))


def with_defaults(
    given: dict[str, Any], model: str | None, params: Mapping[str, Any]
) -> dict[str, Any]:
    """A body with what the job says where the body does not."""
    filled = {**({} if model is None else {"model": model}), **given}
    own = given.get("generationConfig", {})
    return (
        filled | {"generationConfig": {**params, **own}}
        if params and isinstance(own, dict)
        else filled
    )


def translated(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Raises BadMessages, whose place is the field: `tools[0]`, `logprobs`, `messages[2].role`."""
    body: dict[str, Any] = {}
    config: dict[str, Any] = {}
    for name, value in chat.items():
        if name == "model" and value is not None:
            body[name] = value
        elif name in _CONFIG and value is not None:
            config[_CONFIG[name]] = value
        elif name in _IN_CONFIG and value is not None:
            config |= _IN_CONFIG[name](value)
        elif name in _WRITERS and value is not None:
            body |= _WRITERS[name](value)
        elif value is not None and value not in _MEANINGLESS.get(name, ()):
            raise BadMessages(
                name, NO_EQUAL, "leave it out, or send the request to a provider that has it", value
            )
    return body | ({"generationConfig": config} if config else {})


def _messages(value: Any) -> dict[str, Any]:
    try:
        system, contents = contents_of(checked_messages(value))
    except BadMessages as error:
        error.place = f"messages{error.place}"
        raise
    return {"contents": contents} | (
        {} if system is None else {"systemInstruction": {"parts": [{"text": system}]}}
    )


def _stop(value: Any) -> dict[str, Any]:
    return {"stopSequences": [value] if isinstance(value, str) else value}


def _form(value: Any) -> dict[str, Any]:
    """Of the answer: `response_format`."""
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


def _tools(value: Any) -> dict[str, Any]:
    if not isinstance(value, list):
        raise BadMessages("tools", "Tools are a list.", "write a list", value)
    return {
        "tools": [
            {
                "functionDeclarations": [
                    _tool(tool, f"tools[{index}]") for index, tool in enumerate(value)
                ]
            }
        ]
    }


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
    takes = {"parametersJsonSchema": function["parameters"]} if function.get("parameters") else {}
    return {"name": function["name"], **about, **takes}


def _choice(value: Any) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if isinstance(name, str):
        return {
            "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [name]}}
        }
    mode = _MODES.get(value) if isinstance(value, str) else None
    if mode is None:
        raise BadMessages(
            "tool_choice", NO_EQUAL, f"write {', '.join(_MODES)}, or one function", value
        )
    return {"toolConfig": {"functionCallingConfig": {"mode": mode}}}


_IN_CONFIG: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "stop": _stop,
    "response_format": _form,
}
_WRITERS: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "messages": _messages,
    "tools": _tools,
    "tool_choice": _choice,
}


def _end(params: Mapping[str, Any]) -> bytes:
    return b',"generationConfig":' + orjson.dumps(dict(params)) + b"}" if params else b"}"
