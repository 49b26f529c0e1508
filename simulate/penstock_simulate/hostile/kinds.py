"""What a hostile kind is, and the few shapes of reply that the families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock_simulate.reply import Reply

JSON = {"Content-Type": "application/json"}


class Asked(NamedTuple):
    """What a kind may know of the request."""

    answer: Reply  # what the model would have said
    authorization: str
    host: str  # the Host header: where redirects lead back to


class Kind(NamedTuple):
    """One way to answer.

    ``line`` is its text in the list; ``answers``: the result arrives all the same."""

    name: str
    line: str
    make: Callable[[Asked], Reply]
    answers: bool = False


def fixed(status: int, body: bytes, headers: Mapping[str, str] = JSON) -> Callable[[Asked], Reply]:
    """The same reply to every request."""
    reply = Reply(status, body, headers)
    return lambda _: reply


def with_headers(headers: Mapping[str, str]) -> Callable[[Asked], Reply]:
    """The good answer with these headers beside its own."""
    return lambda asked: asked.answer._replace(headers={**asked.answer.headers, **headers})


def error(message: str, code: str | None = None, kind: str = "invalid_request_error") -> bytes:
    """OpenAI's error body, around a message that is already written as JSON text without its
    quotes."""
    written = "null" if code is None else f'"{code}"'
    said = f'"message":"{message}","type":"{kind}","param":null,"code":{written}'
    return f'{{"error":{{{said}}}}}'.encode()
