"""A request of Anthropic's Messages as one of OpenAI's chat.

What has no equal there is refused. Thoughts of earlier answers and marks of caches are left out:
neither says anything to another model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson

from penstock_producer.dialects.fields import Fields, one_of, rows_of, subfields
from penstock_producer.prompts.messages import BadMessages

__all__ = ["EFFORTS", "NO_EQUAL", "length_of", "translated"]

NO_EQUAL: Final = "OpenAI's chat has no equal for this."
EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
# the most tokens of thought that a word of OpenAI's stands for; more are the last one
_THOUGHTS: Final = ((2_048, "low"), (8_192, "medium"))
# OpenAI's own models, which refuse `max_tokens`; other servers may not know the newer name
_OPENAIS: Final = re.compile(r"(?:gpt-|chatgpt-|o\d)")
_TIERS: Final = {"auto": "auto", "standard_only": "default"}
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_THINKING: Final = ("thinking", "redacted_thinking")


def translated(message: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a body of Messages into one of OpenAI's chat.

    Raises BadMessages, whose place is the field: `tools[0].type`, `container`.
    """
    return _FIELDS.translated(message)


def length_of(model: Any, most: Any) -> dict[str, Any]:
    """Return how long an answer may be, by the name that the model's server takes."""
    is_openais = isinstance(model, str) and _OPENAIS.match(model) is not None
    return {"max_completion_tokens" if is_openais else "max_tokens": most}


_subfields: Final = partial(subfields, no_equal=NO_EQUAL)
_rows: Final = partial(rows_of, expected="This is a list of objects.")


def _messages(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    messages = list[dict[str, Any]]()
    if "system" in given:
        messages.append({"role": "system", "content": _text(given["system"], "system")})
    for at, message in enumerate(_rows(value, "messages")):
        place = f"messages[{at}]"
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant"):
            raise BadMessages(f"{place}.role", NO_EQUAL, "write user or assistant", role)
        for name in message.keys() - {"role", "content"}:
            raise BadMessages(f"{place}.{name}", NO_EQUAL, "leave it out", message[name])
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
        else:
            blocks = _rows(content, f"{place}.content")
            write = _of_user if role == "user" else _of_assistant
            messages += write(blocks, f"{place}.content")
    return {"messages": messages}


def _of_user(blocks: Sequence[Mapping[str, Any]], place: str) -> list[dict[str, Any]]:
    """Return the results of tools, each a message of its own there, before what the user says."""
    results, parts = list[dict[str, Any]](), list[dict[str, Any]]()
    for at, block in enumerate(blocks):
        if block.get("type") == "tool_result":
            results.append(_result(block, f"{place}[{at}]"))
        else:
            parts.append(_part(block, f"{place}[{at}]"))
    return results + ([{"role": "user", "content": parts}] if parts else [])


def _of_assistant(blocks: Sequence[Mapping[str, Any]], place: str) -> list[dict[str, Any]]:
    texts, calls = list[str](), list[dict[str, Any]]()
    for at, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "tool_use" and isinstance(block.get("name"), str):
            function = {
                "name": block["name"],
                "arguments": orjson.dumps(block.get("input") or {}).decode(),
            }
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind not in _THINKING:
            raise BadMessages(f"{place}[{at}].type", NO_EQUAL, "give text and tool_use", kind)
    said = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    return [said | ({"tool_calls": calls} if calls else {})]


def _result(block: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Translate the result of a tool; one that failed says so in its text, as it has no field."""
    content = block.get("content")
    text = "" if content in (None, []) else _text(content, f"{place}.content")
    told = f"Error: {text}" if block.get("is_error") else text
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": told}


def _part(block: Mapping[str, Any], place: str) -> dict[str, Any]:
    kind, source = block.get("type"), block.get("source")
    if kind == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    if kind != "image":
        raise BadMessages(f"{place}.type", NO_EQUAL, "give text, image and tool_result", kind)
    source = source if isinstance(source, Mapping) else {}
    url = source.get("url") if source.get("type") == "url" else None
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        url = f"data:{source.get('media_type')};base64,{source['data']}"
    if not isinstance(url, str):
        raise BadMessages(f"{place}.source", NO_EQUAL, "give an image as base64 or url", source)
    return {"type": "image_url", "image_url": {"url": url}}


def _text(value: Any, place: str) -> str:
    """Return a text, or the texts of blocks. Raises BadMessages for other blocks."""
    if isinstance(value, str):
        return value
    texts = list[str]()
    for at, block in enumerate(_rows(value, place)):
        if block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise BadMessages(
                f"{place}[{at}].type", NO_EQUAL, "only text can stand here", block.get("type")
            )
        texts.append(block["text"])
    return "\n\n".join(texts)


def _tool(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise BadMessages(f"{place}.type", NO_EQUAL, "give tools of your own", tool["type"])
    taken = {"name", "description", "input_schema", "strict", "type", "cache_control"}
    for name in tool.keys() - taken:
        raise BadMessages(f"{place}.{name}", NO_EQUAL, "leave it out", tool[name])
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
        "strict": tool.get("strict") or None,
    }
    kept = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": kept}


def _choice(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    kind = value.get("type") if isinstance(value, Mapping) else None
    together = {"parallel_tool_calls": False} if kind and value.get(_ALONE) else {}
    if kind == "tool":
        named = {"type": "function", "function": {"name": value.get("name")}}
        return {"tool_choice": named} | together
    if not isinstance(kind, str) or kind not in _CHOICES:
        fix = f"give the type {', '.join(_CHOICES)}, or tool with its name"
        raise BadMessages("tool_choice", NO_EQUAL, fix, value)
    return {"tool_choice": _CHOICES[kind]} | together


_ALONE: Final = "disable_parallel_tool_use"


def _thinking(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate thoughts into an effort, by how many tokens they may have.

    An effort that the request names itself goes before.
    """
    kind = value.get("type") if isinstance(value, Mapping) else None
    most = value.get("budget_tokens") if kind == "enabled" else None
    if kind in ("disabled", "adaptive") or _effort_in(given):
        return {}
    if not isinstance(most, int):
        raise BadMessages("thinking", NO_EQUAL, "give disabled, adaptive, or enabled", value)
    return {"reasoning_effort": next((word for top, word in _THOUGHTS if most <= top), "high")}


def _effort_in(given: Mapping[str, Any]) -> Any:
    config = given.get("output_config")
    return config.get("effort") if isinstance(config, Mapping) else None


def _output(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `output_config`: the effort, and the form of the answer."""
    config = _subfields(value, "output_config", ("effort", "format"), fix="leave it out")
    effort, form = _effort_in(given), config.get("format")
    if effort is not None and effort not in EFFORTS:
        raise BadMessages("output_config.effort", NO_EQUAL, f"write {', '.join(EFFORTS)}", effort)
    written = {} if effort is None else {"reasoning_effort": effort}
    if form is None:
        return written
    schema = form.get("schema") if isinstance(form, Mapping) else None
    if not isinstance(schema, Mapping) or form.get("type") != "json_schema":
        raise BadMessages("output_config.format", NO_EQUAL, "give json_schema and schema", form)
    named = {"name": "answer", "schema": schema, "strict": True}
    return written | {"response_format": {"type": "json_schema", "json_schema": named}}


def _metadata(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
    given = _subfields(value, "metadata", ("user_id",), fix="give user_id alone")
    return {} if given.get("user_id") is None else {"user": given["user_id"]}


_FIELDS: Final = Fields(
    NO_EQUAL,
    {
        "messages": _messages,
        "max_tokens": lambda most, given: length_of(given.get("model"), most),
        "stop_sequences": lambda value, _: {"stop": value} if value else {},
        "tools": lambda value, _: {
            "tools": [_tool(one, f"tools[{at}]") for at, one in enumerate(_rows(value, "tools"))]
        },
        "tool_choice": _choice,
        "thinking": _thinking,
        "output_config": _output,
        "metadata": _metadata,
        "service_tier": one_of("service_tier", _TIERS, NO_EQUAL),
    },
    same=("model", "temperature", "top_p", "top_k"),
    meaningless={"stream": (False,), "system": None, "cache_control": None},
)
