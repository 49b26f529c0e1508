"""What other APIs take of OpenAI's chat messages alike, and the refusal of the rest; ``no_equal``
says which API refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from penstock_producer.prompts.messages import SYSTEM_ROLES, BadMessages

__all__ = [
    "FunctionCall",
    "embedded_image",
    "function_call",
    "split_system",
    "text_of",
    "url_of_image",
]

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
    """The system messages at the beginning as one text; all ``others``, as the API calls them, are
    given to ``add`` with their places. Raises BadMessages."""
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
    """Of a system message, or a function's result: text alone. Raises BadMessages."""
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
    """One of ``tool_calls``. Raises BadMessages."""
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
    """Of an ``image_url``, which may say nothing of its detail. Raises BadMessages."""
    if isinstance(image, Mapping) and image.get("detail") not in (None, "auto"):
        raise BadMessages(f"{place}.detail", no_equal, "leave it out", image["detail"])
    return image.get("url") if isinstance(image, Mapping) else image


def embedded_image(url: Any) -> tuple[str, str] | None:
    """The media type and the base64 of an image that is in its address; None for other
    addresses."""
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
        if name not in taken and value is not None:
            raise BadMessages(f"{place}.{name}", no_equal, "leave it out", value)
