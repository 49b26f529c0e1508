"""A request of OpenAI's Responses as one of OpenAI's chat.

What has no equal there is refused. Thoughts of earlier answers are left out: they are the
provider's that gave them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final

from penstock_producer.dialects.fields import Fields, rows_of, subfields
from penstock_producer.dialects.from_anthropic import NO_EQUAL, length_of
from penstock_producer.prompts.messages import BadMessages

__all__ = ["translated"]

_SAME: Final = frozenset(
    {
        "model",
        "temperature",
        "top_p",
        "parallel_tool_calls",
        "user",
        "safety_identifier",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
# Values that say what a chat does anyway. What `include` asks for there is an answer's own thoughts
# in a form that only its provider reads: an answer without them is one that has none.
_MEANINGLESS: Final[Mapping[str, Collection[object] | None]] = {
    "instructions": None,
    "metadata": None,
    "stream": (False,),
    "store": (False, True),
    "background": (False,),
    "truncation": ("disabled",),
    "top_logprobs": (0,),
    "include": ([], ["reasoning.encrypted_content"]),
}
_ROLES: Final = ("user", "system", "developer", "assistant")


def translated(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a body of Responses into one of OpenAI's chat.

    Raises BadMessages, whose place is the field: `input[2].type`, `previous_response_id`.
    """
    return _FIELDS.translated(asked)


_subfields: Final = partial(subfields, no_equal=NO_EQUAL)
_rows: Final = partial(rows_of, expected="This is text, or a list of objects.")


def _input(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    messages = list[dict[str, Any]]()
    if "instructions" in given:
        messages.append({"role": "system", "content": given["instructions"]})
    if isinstance(value, str):
        return {"messages": [*messages, {"role": "user", "content": value}]}
    for at, item in enumerate(_rows(value, "input")):
        _append(messages, item, f"input[{at}]")
    return {"messages": messages}


def _append(messages: list[dict[str, Any]], item: Mapping[str, Any], place: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        messages.append(_message(item, place))
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        text = _text(item.get("output"), f"{place}.output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
    elif kind != "reasoning":
        fix = "give messages, function_call and function_call_output"
        raise BadMessages(f"{place}.type", NO_EQUAL, fix, kind)


def _message(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise BadMessages(f"{place}.role", NO_EQUAL, f"write {', '.join(_ROLES)}", role)
    if isinstance(content, str) or role == "assistant":
        return {"role": role, "content": _text(content, f"{place}.content")}
    parts = _rows(content, f"{place}.content")
    return {
        "role": role,
        "content": [_part(part, f"{place}.content[{at}]") for at, part in enumerate(parts)],
    }


def _part(part: Mapping[str, Any], place: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "input_text":
        return {"type": "text", "text": part.get("text")}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {} if part.get("detail") is None else {"detail": part["detail"]}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    fix = "give input_text, and input_image with image_url"
    raise BadMessages(f"{place}.type", NO_EQUAL, fix, kind)


def _text(value: Any, place: str) -> str:
    """Return a text, or the texts of parts. Raises BadMessages for other parts."""
    if isinstance(value, str):
        return value
    texts = list[str]()
    for at, part in enumerate(_rows(value, place)):
        text = part.get("refusal" if part.get("type") == "refusal" else "text")
        if not isinstance(text, str):
            raise BadMessages(
                f"{place}[{at}].type", NO_EQUAL, "only text can stand here", part.get("type")
            )
        texts.append(text)
    return "".join(texts)


def _tools(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    tools = list[dict[str, Any]]()
    for at, tool in enumerate(_rows(value, "tools")):
        if tool.get("type") != "function":
            raise BadMessages(f"tools[{at}].type", NO_EQUAL, "give functions", tool.get("type"))
        named = {
            name: tool[name]
            for name in ("name", "description", "parameters", "strict")
            if tool.get(name) is not None
        }
        tools.append({"type": "function", "function": named})
    return {"tools": tools}


def _choice(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(value, str):
        return {"tool_choice": value}
    if not isinstance(value, Mapping) or value.get("type") != "function":
        raise BadMessages("tool_choice", NO_EQUAL, "write a word, or one function", value)
    return {"tool_choice": {"type": "function", "function": {"name": value.get("name")}}}


def _text_form(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `text`: the form of the answer, and how much it says."""
    config = _subfields(value, "text", ("format", "verbosity"), fix="give format alone")
    written = {} if config.get("verbosity") is None else {"verbosity": config["verbosity"]}
    form = config.get("format") or {"type": "text"}
    kind = form.get("type") if isinstance(form, Mapping) else None
    if kind == "json_schema":
        named = {name: one for name, one in form.items() if name != "type"}
        return written | {"response_format": {"type": kind, "json_schema": named}}
    if kind not in ("text", "json_object"):
        raise BadMessages("text.format", NO_EQUAL, "give text, json_object or json_schema", form)
    return written if kind == "text" else written | {"response_format": {"type": kind}}


def _reasoning(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    config = _subfields(value, "reasoning", ("effort", "summary"), fix="give effort alone")
    return {} if config.get("effort") is None else {"reasoning_effort": config["effort"]}


_FIELDS: Final = Fields(
    NO_EQUAL,
    {
        "input": _input,
        "max_output_tokens": lambda most, given: length_of(given.get("model"), most),
        "tools": _tools,
        "tool_choice": _choice,
        "text": _text_form,
        "reasoning": _reasoning,
    },
    _SAME,
    _MEANINGLESS,
)
