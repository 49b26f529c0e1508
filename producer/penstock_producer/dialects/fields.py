"""All translations of requests share the walk over fields, messages and parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from penstock_producer.prompts.messages import BadMessages, checked_messages

__all__ = [
    "Fields",
    "Writer",
    "body_messages",
    "content_of",
    "name_of",
    "one_of",
    "rows_of",
    "subfields",
    "tool_calls",
    "tools_of",
]

_Read = TypeVar("_Read")
Writer = Callable[[Any, Mapping[str, Any]], dict[str, Any]]
"""A field's value, and all fields of its request, to fields of the other API."""

_ELSEWHERE: Final = "leave it out, or send the request to a provider that has it"


class Fields(NamedTuple):
    """The fields of a request as another API writes them."""

    no_equal: str  # the refusal of what it has no equal for
    writers: Mapping[str, Writer]
    same: Collection[str] = ()  # of the same name there
    # values that say what the other API does anyway; None: any value, as a writer reads the field
    meaningless: Mapping[str, Collection[object] | None] = {}

    def translated(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Translate a request. Raises BadMessages, whose place is the field."""
        given = {name: value for name, value in request.items() if value is not None}
        body: dict[str, Any] = {}
        for name, value in given.items():
            if name in self.writers:
                body |= self.writers[name](value, given)
            elif name in self.same:
                body[name] = value
            elif (usual := self.meaningless.get(name, ())) is not None and value not in usual:
                raise BadMessages(name, self.no_equal, _ELSEWHERE, value)
        return body


def one_of(field: str, words: Mapping[str, str], no_equal: str) -> Writer:
    """Return what writes a field that has other words in the other API."""

    def write(value: Any, _given: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(value, str) or value not in words:
            raise BadMessages(field, no_equal, f"write {' or '.join(words)}", value)
        return {field: words[value]}

    return write


def subfields(
    value: Any, place: str, taken: Collection[str], *, no_equal: str, fix: str
) -> Mapping[str, Any]:
    """Return a field that is an object. Raises BadMessages where it has others than ``taken``."""
    config = value if isinstance(value, Mapping) else {"": value}
    for name in config.keys() - set(taken):
        raise BadMessages(f"{place}.{name}".rstrip("."), no_equal, fix, value)
    return config


def rows_of(value: Any, place: str, expected: str) -> Sequence[Mapping[str, Any]]:
    """Return a list of objects. Raises BadMessages."""
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise BadMessages(place, expected, "write a list", value)
    return value


# -- of OpenAI's chat, whatever it is translated into


def body_messages(value: Any, read: Callable[[list[dict[str, Any]]], _Read]) -> _Read:
    """Read the messages of a body. Raises BadMessages, whose place begins with their field."""
    try:
        return read(checked_messages(value))
    except BadMessages as error:
        error.place = f"messages{error.place}"
        raise


def content_of(
    content: Any, place: str, part: Callable[[Any, str], dict[str, Any]]
) -> str | list[dict[str, Any]]:
    """Return a content: its text, or its parts as ``part`` writes them. Raises BadMessages."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        return [part(one, f"{place}[{index}]") for index, one in enumerate(content)]
    fix = 'write {"role": "user", "content": "…"}'
    raise BadMessages(place, "A content is text or a list of parts.", fix, content)


def tool_calls(
    message: Mapping[str, Any], place: str, call: Callable[[Any, str], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the calls of a message, as ``call`` writes them. Raises BadMessages."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        where = f"{place}.tool_calls"
        raise BadMessages(where, "Calls of tools are a list.", "write a list", calls)
    return [call(one, f"{place}.tool_calls[{index}]") for index, one in enumerate(calls)]


def tools_of(
    value: Any, tool: Callable[[Mapping[str, Any], str], dict[str, Any]], *, no_equal: str, fix: str
) -> list[dict[str, Any]]:
    """Return the functions of `tools`, as ``tool`` writes them. Raises BadMessages."""
    if not isinstance(value, list):
        raise BadMessages("tools", "Tools are a list.", "write a list", value)
    written = list[dict[str, Any]]()
    for index, one in enumerate(value):
        is_function = isinstance(one, Mapping) and one.get("type") == "function"
        function = one.get("function") if is_function else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadMessages(f"tools[{index}]", no_equal, fix, one)
        written.append(tool(function, f"tools[{index}]"))
    return written


def name_of(choice: Any) -> str | None:
    """Return the name of the one function that `tool_choice` asks for, where it names one."""
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None
