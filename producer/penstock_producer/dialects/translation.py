"""One API stands in front of another: requests are translated one way, answers back.

Each request goes by OpenAI's chat, so there is one reader and one writer for each API.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson

from penstock_ledger.lone_surrogates import dump_json, parse_json
from penstock_producer.dialects import (
    CHAT,
    CONVERSE,
    GENERATE,
    MESSAGES,
    RESPONSES,
    from_anthropic,
    from_responses,
    to_anthropic,
    to_bedrock,
    to_gemini,
)
from penstock_producer.dialects.answers import as_message, as_response, chat_of
from penstock_producer.prompts.messages import BadMessages

__all__ = [
    "USUAL_TOKENS",
    "BadMessages",
    "Untranslatable",
    "answer_for",
    "is_translated",
    "request_for",
    "ways_to",
]

# of an answer of Anthropic's, where a request in another API's words says nothing: Messages have no
# default, and each of their models may write as many
USUAL_TOKENS: Final = 4_096

_Body = Mapping[str, Any]


def _as_it_is(body: _Body) -> dict[str, Any]:
    return dict(body)


# Requests of these APIs are read, and written for those; the order is that of preference.
_READ: Final[Mapping[str, Callable[[_Body], dict[str, Any]]]] = {
    CHAT: _as_it_is,
    MESSAGES: from_anthropic.translated,
    RESPONSES: from_responses.translated,
}
_WRITTEN: Final[Mapping[str, Callable[[_Body], dict[str, Any]]]] = {
    CHAT: _as_it_is,
    MESSAGES: to_anthropic.translated,
    GENERATE: to_gemini.translated,
    CONVERSE: to_bedrock.translated,
}


# Of fields of a chat, how callers of the other APIs know them. Places inside them are others there.
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    MESSAGES: {
        "parallel_tool_calls": "tool_choice",
        "reasoning_effort": "output_config",
        "response_format": "output_config",
        "stop": "stop_sequences",
        "user": "metadata",
    },
    RESPONSES: {
        "messages": "input",
        "reasoning_effort": "reasoning",
        "response_format": "text",
        "verbosity": "text",
    },
}
_FIELD: Final = re.compile(r"\w+")


class Untranslatable(ValueError):
    """An answer that is of no API that is known here."""


def ways_to(endpoint: str) -> Iterator[str]:
    """Yield the endpoints that requests to this one may be sent to, itself first."""
    yield endpoint
    if endpoint in _READ:
        yield from (other for other in _WRITTEN if other != endpoint)


def is_translated(asked: str, sent: str) -> bool:
    """Return whether requests to the first endpoint can be sent to the second as its own."""
    return asked != sent and asked in _READ and sent in _WRITTEN


def request_for(sent: str, body: _Body, asked: str) -> dict[str, Any]:
    """Return a request to the endpoint ``asked`` as one to ``sent``.

    Raises BadMessages, whose place is the caller's field.
    """
    if sent == asked:
        return dict(body)
    chat = _READ[asked](body)
    try:
        return _WRITTEN[sent](chat)
    except BadMessages as error:
        if asked in _NAMES:
            field = _FIELD.match(error.place)
            name = error.place if field is None else field[0]
            error.place = _NAMES[asked].get(name, name)
        raise


def answer_for(asked: str, answer: bytes, created: float, request: _Body | None = None) -> bytes:
    """Return a stored answer in the words of the endpoint that was asked.

    One that is in these words already is returned as it came. Raises Untranslatable.
    """
    if asked not in _READ:
        return answer
    try:
        found = parse_json(answer)
    except orjson.JSONDecodeError:
        found = None
    if isinstance(found, dict) and _IS_OF[asked](found):
        return answer
    chat = chat_of(found, int(created))
    if chat is None:
        raise Untranslatable("the provider's answer is of no API that is known here")
    if asked == MESSAGES:
        return dump_json(as_message(chat))
    return dump_json(as_response(chat, request or {}) if asked == RESPONSES else chat)


_IS_OF: Final[Mapping[str, Callable[[_Body], bool]]] = {
    CHAT: lambda answer: "choices" in answer,
    MESSAGES: lambda answer: answer.get("type") == "message",
    RESPONSES: lambda answer: answer.get("object") == "response",
}
