"""Fields of answers that may be of any type: what is usable of them, and nothing for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
import orjson

from penstock_ledger.lone_surrogates import replace_escaped_surrogates
from penstock_ledger.redaction import redact
from penstock_producer.outputs import on_one_line
from penstock_workers.lanes.batch.apis.provider import BadLine

Line = TypeVar("Line", bound=msgspec.Struct)

# of an id that the provider gave: it becomes a part of addresses and of rows
MAX_ID_CHARS: Final = 512
MAX_WORDS: Final = 500  # of a provider's own words
MAX_COUNT: Final = 10**12


def identifier(value: object) -> str | None:
    """Return an id or a short name, where it can be used in an address and shown."""
    if isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS and value.isprintable():
        return value
    return None


def said(value: object) -> str:
    """Return a provider's words, without secrets; empty where it has none."""
    return redact(value[:MAX_WORDS], cut=len(value) > MAX_WORDS) if isinstance(value, str) else ""


def counted(value: object) -> int:
    """Return a count; 0 for what is none. Google writes them as strings."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 12:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT:
        return value
    return 0


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def rows(value: object, most: int) -> list[Mapping[str, Any]]:
    """Return the objects in a list, at most so many."""
    return [row for row in value[:most] if isinstance(row, dict)] if isinstance(value, list) else []


class LineReader(Generic[Line]):
    """Reads lines of an output, in which some parts are kept as raw bytes."""

    def __init__(self, form: type[Line]) -> None:
        self._decoder = msgspec.json.Decoder(form)

    def read(self, text: bytes) -> Line:
        """Read a line, which may escape lone surrogates. Raises DecodeError and RecursionError."""
        try:
            return self._decoder.decode(text)
        except msgspec.DecodeError:
            return self._decoder.decode(replace_escaped_surrogates(text))


def as_it_came(part: msgspec.Raw, text: bytes) -> bytes:
    """Return the bytes of a part of a line, escapes of lone surrogates and all.

    A ``LineReader`` has read the line."""
    found = bytes(part)
    if found in text:
        return found
    at = replace_escaped_surrogates(text).find(found)  # of the same length, byte for byte
    # the former: its default, where the line has no such part
    return found if at < 0 else text[at : at + len(found)]


def request_body(body: bytes) -> bytes:
    """Return a body that can be a part of one line, byte for byte but for its line ends.

    Raises BadLine."""
    if b"\n" in body or b"\r" in body or b'"stream"' in body or not body.startswith(b"{"):
        if request_object(body).get("stream"):
            raise BadLine("the body has stream: true, and a batch does not stream; leave it out")
        return on_one_line(body).strip()
    return body


def request_object(body: bytes) -> dict[str, Any]:
    """Return a request's object; raise BadLine."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadLine(f"the body is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise BadLine("the body is not a JSON object")
    return parsed


STATUSES: Final = {
    2: 500,
    3: 400,
    4: 504,
    5: 404,
    6: 409,
    7: 403,
    8: 429,
    9: 400,
    10: 409,
    11: 400,
    12: 501,
    13: 500,
    14: 503,
    15: 500,
    16: 401,
}
"""HTTP statuses of the codes of google.rpc.Code, which errors of Google and of xAI carry."""


def rpc_status(code: object) -> int:
    """Return the HTTP status for an error's code, which may be one already."""
    if isinstance(code, int) and not isinstance(code, bool):
        return code if 400 <= code <= 599 else STATUSES.get(code, 500)
    return 500
