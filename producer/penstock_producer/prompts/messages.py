"""Chat messages that come as data: a column of a row, or an example of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock_producer.errors import seen

__all__ = ["BadMessages", "checked_messages", "leading_system"]

MAX_MESSAGES: Final = 2_000  # of one request; longer conversations fit no model's context
SYSTEM_ROLES: Final = ("system", "developer")
_ROLES: Final = (*SYSTEM_ROLES, "user", "assistant", "tool", "function")
_INSTEAD_OF_CONTENT: Final = (
    "tool_calls",
    "function_call",
    "refusal",
    "audio",
)  # of an assistant's message


class BadMessages(ValueError):
    """What was given are no chat messages; ``place`` is where, such as `[2].role`."""

    def __init__(self, place: str, message: str, fix: str, value: Any) -> None:
        self.place, self.message, self.fix, self.value = place, message, fix, seen(value)
        super().__init__(message)


def checked_messages(given: Any) -> list[dict[str, Any]]:
    """The messages as they are sent: without the nulls that tables fill absent fields with.

    Raises BadMessages."""
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
    """How many of the first messages are the system's."""
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
