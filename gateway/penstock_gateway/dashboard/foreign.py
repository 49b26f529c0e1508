"""Text that others wrote (documents, models, providers), made safe to show.

Nothing in it acts, and nothing in it hides. Templates escape what would be markup. Here control
characters and those that reorder a line become visible escapes, and long texts are cut, with all of
it one click away.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from penstock_ledger.redaction import several_lines

__all__ = ["Shown", "Turn", "answer_of", "json_text", "prompt_of", "shown"]

FIRST_CHARS: Final = 1_200  # of one text before a person asks for all of it
MOST_CHARS: Final = 100_000  # of one text on a page at all
TURNS_MAX: Final = 50  # of one conversation
ROLE_CHARS: Final = 40
INDENTED_MAX: Final = 10 * MOST_CHARS  # of a body with its indents
_ENCODER: Final = json.JSONEncoder(indent=2, ensure_ascii=False)
_HIDES: Final = re.compile(
    "[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]"
)


class Shown(NamedTuple):
    """``head`` is shown at once, ``rest`` on request; ``left_out`` characters are on no page."""

    head: str
    rest: str = ""
    left_out: int = 0


class Turn(NamedTuple):
    """One message of a request."""

    role: str
    text: Shown


def shown(text: str, first: int = FIRST_CHARS) -> Shown:
    """Cut first, so that an enormous text costs no more than what is shown of it."""
    return Shown(
        several_lines(text[:first]),
        several_lines(text[first:MOST_CHARS]),
        max(0, len(text) - max(MOST_CHARS, first)),
    )


def json_text(body: bytes | None) -> str:
    """Return a body with indents where it is JSON, else unchanged.

    It is unchanged, too, where indents would make it too long for a page. What hides or reorders
    text stands as an escape of JSON, so that what is shown is what is sent.
    """
    if not body:
        return ""
    text = body.decode("utf-8", "replace")
    if len(text) > MOST_CHARS:
        return text  # indents would make it longer still
    try:
        written = _indented(json.loads(text))
    except (ValueError, RecursionError):
        return text
    if written is None:
        return text
    return _HIDES.sub(lambda found: f"\\u{ord(found[0]):04x}", written)


def _indented(value: Any) -> str | None:
    """Return the value with indents; None where that would be longer than INDENTED_MAX.

    A long list inside of many others is mostly indents.
    """
    pieces, size = list[str](), 0
    for piece in _ENCODER.iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size > INDENTED_MAX:
            return None
    return "".join(pieces)


def prompt_of(body: bytes) -> list[Turn]:
    """Return what a request asks, message by message.

    A request of another form is returned as it is.
    """
    request = _loaded(body)
    found: list[Turn] = []
    if isinstance(request, dict):
        for name in ("system", "instructions"):
            if isinstance(request.get(name), str):
                found.append(Turn("system", shown(request[name])))
        messages = request.get("messages") or request.get("contents") or ()
        for message in messages[:TURNS_MAX] if isinstance(messages, list) else ():
            if isinstance(message, dict):
                said = message.get("content", message.get("parts"))
                found.append(
                    Turn(
                        several_lines(str(message.get("role", "user")))[:ROLE_CHARS],
                        shown(_text(said)),
                    )
                )
        for name in ("prompt", "input"):
            if name in request and not messages:
                found.append(Turn("user", shown(_text(request[name]))))
    return found or [Turn("request", shown(body.decode("utf-8", "replace")))]


def answer_of(body: bytes | None) -> Shown:
    """Return what a model said; the body itself where it has another form."""
    answer = _loaded(body or b"")
    if isinstance(answer, dict):
        for said in (
            _of_choices(answer),
            _of_parts(answer.get("content")),
            _of_output(answer),
            _of_vectors(answer),
        ):
            if said is not None:
                return shown(said)
    return shown((body or b"").decode("utf-8", "replace"))


def _of_choices(answer: dict[str, Any]) -> str | None:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    message = choices[0].get("message")
    said = message.get("content") if isinstance(message, dict) else choices[0].get("text")
    return said if isinstance(said, str) else None


def _of_parts(content: Any) -> str | None:
    if not isinstance(content, list):
        return None
    texts = [
        part["text"]
        for part in content
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]
    return "\n".join(texts) if texts else None


def _of_output(answer: dict[str, Any]) -> str | None:
    output = answer.get("output")
    if not isinstance(output, list):
        return None
    texts = [_of_parts(item.get("content")) for item in output if isinstance(item, dict)]
    return "\n".join(text for text in texts if text) or None


def _of_vectors(answer: dict[str, Any]) -> str | None:
    data = answer.get("data")
    if (
        not isinstance(data, list)
        or not data
        or not isinstance(data[0], dict)
        or "embedding" not in data[0]
    ):
        return None
    numbers = data[0]["embedding"]
    size = f" of {len(numbers):,} numbers" if isinstance(numbers, list) else ""
    return f"{len(data):,} vector{'' if len(data) == 1 else 's'}{size}"


def _text(said: Any) -> str:
    if isinstance(said, str):
        return said
    parts = _of_parts(said)
    return parts if parts is not None else json.dumps(said, ensure_ascii=False)


def _loaded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
