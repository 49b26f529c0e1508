"""The texts in requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["answer_text", "sent_text"]


def answer_text(answer: Any) -> str | None:
    """Return the text of a chat completion, a completion, a response or a message.

    None for other answers.
    """
    if not isinstance(answer, Mapping):
        return None
    choice = _first(answer.get("choices"))
    for text in (
        _at(choice.get("message"), "content"),
        choice.get("text"),
        answer.get("output_text"),
    ):
        if isinstance(text, str):
            return text
    candidate = _first(answer.get("candidates"))  # Gemini's
    parts = [
        part
        for part in _mappings(_at(candidate.get("content"), "parts"))
        if not part.get("thought")
    ]
    # a message of Anthropic has its parts itself
    for holder in (answer, *_mappings(answer.get("output"))):
        parts += _mappings(holder.get("content"))
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    return "".join(texts) if texts else None


def sent_text(request: Any) -> str | None:
    """Return the text that a request asked about.

    It is its last message of a user, its input or its prompt; None where that is not text.
    """
    if not isinstance(request, Mapping):
        return None
    for message in reversed(_mappings(request.get("messages"))):
        if message.get("role") == "user" and isinstance(message.get("content"), str):
            return str(message["content"])
    return next(
        (request[name] for name in ("input", "prompt") if isinstance(request.get(name), str)), None
    )


def _first(value: Any) -> Mapping[str, Any]:
    return next(iter(_mappings(value)), {})


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _at(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None
