"""Chat messages that come as data: a column of a row, or an example of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from penstock_producer.errors import seen

__all__ = [
    "BadMessages",
    "checked_messages",
    "embedded_image",
    "function_call",
    "leading_system",
    "split_system",
    "text_of",
    "url_of_image",
]

MAX_MESSAGES: Final = 2_000  # of one request; longer conversations fit no model's context
SYSTEM_ROLES: Final = ("system", "developer")
_ROLES: Final = (*SYSTEM_ROLES, "user", "assistant", "tool", "function")
# of an assistant's message
_INSTEAD_OF_CONTENT: Final = ("tool_calls", "function_call", "refusal", "audio")


class BadMessages(ValueError):
    """The given messages are no chat; ``place`` is where, such as `[2].role`."""

    def __init__(self, place: str, message: str, fix: str, value: Any) -> None:
        self.place, self.message, self.fix, self.value = place, message, fix, seen(value)
        super().__init__(message)


def checked_messages(given: Any) -> list[dict[str, Any]]:
    """Return the messages as they are sent: without the nulls that tables fill absent fields with.

    Raises BadMessages.
    """
    if not isinstance(given, list) or not given:
        raise BadMessages("", "Messages are a list with at least one message.", _SHAPE, given)
    if len(given) > MAX_MESSAGES:
        fix = f"keep the last {MAX_MESSAGES} at most"
        raise BadMessages("", f"There are {len(given)} messages.", fix, given[0])
    messages = [_message(one, f"[{index}]") for index, one in enumerate(given)]
    if all(message["role"] in SYSTEM_ROLES for message in messages):
        raise BadMessages(
            "", "There is no message but of the system.", "add the user's message", given
        )
    return messages


def leading_system(messages: list[dict[str, Any]]) -> int:
    """Return how many of the first messages are the system's."""
    return next(
        index for index, message in enumerate(messages) if message["role"] not in SYSTEM_ROLES
    )


def _message(given: Any, place: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise BadMessages(place, "A message is an object.", _SHAPE, given)
    role, content = given.get("role"), given.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadMessages(
            f"{place}.role", "A message has one of the roles.", f"write {', '.join(_ROLES)}", role
        )
    message = {str(name): value for name, value in given.items() if value is not None}
    if content is None:
        if role != "assistant" or not any(message.get(name) for name in _INSTEAD_OF_CONTENT):
            raise BadMessages(
                f"{place}.content", "A message has a content.", "write it, as text", content
            )
        message["content"] = None
    elif isinstance(content, list) and content:
        message["content"] = [
            _part(part, f"{place}.content[{index}]") for index, part in enumerate(content)
        ]
    elif not isinstance(content, str):
        raise BadMessages(
            f"{place}.content", "A content is text or a list of parts.", _SHAPE, content
        )
    return message


def _part(given: Any, place: str) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
        raise BadMessages(place, "A part of a content is an object with a type.", _PART, given)
    if given["type"] == "text" and not isinstance(given.get("text"), str):
        raise BadMessages(
            f"{place}.text", "A part of type text has a text.", _PART, given.get("text")
        )
    return {str(name): value for name, value in given.items() if value is not None}


_SHAPE: Final = 'write [{"role": "user", "content": "…"}]'
_PART: Final = 'write {"type": "text", "text": "…"}'


# What an answer has beside its text, and its client sends back with it: thoughts, which say nothing
# to another model, and empty lists of notes.
_LEFT_OUT: Final[Mapping[str, tuple[object, ...] | None]] = {
    "reasoning_content": None,
    "annotations": ([],),
}
_TAKEN: Final = {
    "user": frozenset({"role", "content"}),
    "assistant": frozenset({"role", "content", "tool_calls"}),
    "tool": frozenset({"role", "content", "tool_call_id"}),
    "system": frozenset({"role", "content"}),
    "developer": frozenset({"role", "content"}),
}


class FunctionCall(NamedTuple):
    id: str
    name: str
    arguments: dict[str, Any]


def split_system(
    messages: Sequence[Mapping[str, Any]],
    add: Callable[[Mapping[str, Any], str], None],
    *,
    no_equal: str,
    others: str,
) -> str | None:
    """Return the system messages at the beginning as one text.

    All ``others``, as the API calls them, are given to ``add`` with their places. Raises
    BadMessages.
    """
    system: list[str] = []
    is_behind = False
    for index, message in enumerate(messages):
        place = f"[{index}]"
        _refuse_unknown(message, place, no_equal)
        if message["role"] not in SYSTEM_ROLES:
            is_behind = True
            add(message, place)
        elif is_behind:
            fix = f"put it first: there is one system text, before all {others}"
            raise BadMessages(
                f"{place}.role", "A system message stands behind others.", fix, message["role"]
            )
        else:
            system.append(text_of(message.get("content"), f"{place}.content"))
    return "\n\n".join(system) or None


def text_of(content: Any, place: str) -> str:
    """Return the text of a system message, or of a function's result. Raises BadMessages.

    Other content than text is refused.
    """
    if isinstance(content, str):
        return content
    texts = (
        [part.get("text") for part in content if isinstance(part, Mapping)]
        if isinstance(content, list)
        else []
    )
    if not texts or len(texts) != len(content) or not all(isinstance(text, str) for text in texts):
        raise BadMessages(place, "Only text can stand here.", "write it as text", content)
    return "".join(text for text in texts if isinstance(text, str))


def function_call(call: Any, place: str, no_equal: str) -> FunctionCall:
    """Read one of ``tool_calls``. Raises BadMessages."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if (
        not isinstance(function, Mapping)
        or not isinstance(name, str)
        or not isinstance(call.get("id"), str)
    ):
        raise BadMessages(place, no_equal, "give calls of functions, each with id and name", call)
    try:
        arguments = orjson.loads(function.get("arguments") or "{}")
    except (orjson.JSONDecodeError, TypeError):
        arguments = None
    if not isinstance(arguments, dict):
        fix, seen = "write a JSON object, as text", function.get("arguments")
        raise BadMessages(
            f"{place}.function.arguments", "The arguments are not a JSON object.", fix, seen
        )
    return FunctionCall(call["id"], name, arguments)


def url_of_image(image: Any, place: str, no_equal: str) -> Any:
    """Return the URL of an ``image_url``, which may say nothing of its detail.

    Raises BadMessages.
    """
    if isinstance(image, Mapping) and image.get("detail") not in (None, "auto"):
        raise BadMessages(f"{place}.detail", no_equal, "leave it out", image["detail"])
    return image.get("url") if isinstance(image, Mapping) else image


def embedded_image(url: Any) -> tuple[str, str] | None:
    """Return the media type and the base64 of an image that is in its address.

    None for other addresses.
    """
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if comma and head.startswith("data:image/") and head.endswith(";base64"):
        return head.removeprefix("data:").removesuffix(";base64"), data
    return None


def _refuse_unknown(message: Mapping[str, Any], place: str, no_equal: str) -> None:
    role = message.get("role")
    taken = _TAKEN.get(role) if isinstance(role, str) else None
    if taken is None:
        raise BadMessages(f"{place}.role", no_equal, f"write {', '.join(_TAKEN)}", role)
    for name, value in message.items():
        if role == "assistant" and name in _LEFT_OUT:
            values = _LEFT_OUT[name]
            if values is None or value in values:
                continue
        if name not in taken and value is not None:
            raise BadMessages(f"{place}.{name}", no_equal, "leave it out", value)
