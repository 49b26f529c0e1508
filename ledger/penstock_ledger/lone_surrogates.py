"""Apply the one rule for lone surrogates, which JSON can escape and UTF-8 cannot hold.

They are halves of a UTF-16 pair.

JSON such as ``"\\ud83d"`` (half an emoji, from a model that was cut in the middle of one) is valid,
so an answer that holds it is good, and is stored as its bytes came. Where such a text is decoded
and goes on, to a terminal, a table, a prompt, a column of SQL or a child process, each half becomes
U+FFFD. docs/faults.md has the rule in words.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import orjson

__all__ = ["dump_json", "parse_json", "replace_escaped_surrogates", "replace_surrogates"]

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
# escapes in one body, 50 ms: an answer of 32 MB that is nothing else would take seconds
REPLACED_MAX: Final = 100_000

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_HIGH: Final = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_ESCAPE: Final = re.compile(_HIGH + b"(?!" + _LOW + b")|(?<!" + _HIGH + b")" + _LOW)
# stands for two backslashes while escapes are looked for: JSON has no such byte
_NO_JSON: Final = b"\0\0"


def replace_surrogates(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate, so that UTF-8 can hold it."""
    return text if text.isascii() else _SURROGATE.sub(REPLACEMENT, text)


def replace_escaped_surrogates(body: bytes) -> bytes:
    """Return JSON with ``\\ufffd`` in the place of each escape of a lone surrogate.

    It keeps its length, byte for byte.

    Those beyond ``REPLACED_MAX`` stay, and their body then cannot be read as JSON.
    """
    if b"\\u" not in body or b"\0" in body:
        return body
    if b"\\\\" not in body:
        return _LONE_ESCAPE.sub(rb"\\ufffd", body, REPLACED_MAX)
    apart = body.replace(b"\\\\", _NO_JSON)
    return _LONE_ESCAPE.sub(rb"\\ufffd", apart, REPLACED_MAX).replace(_NO_JSON, b"\\\\")


def dump_json(value: Any) -> bytes:
    """Return the value as JSON, with U+FFFD for lone surrogates in its texts and names.

    Raises TypeError for what cannot be JSON, and RecursionError for what holds itself.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        # anything else than a lone surrogate is refused again
        return orjson.dumps(_replaced(value))


def parse_json(body: bytes | str) -> Any:
    """Return the value of JSON that may escape lone surrogates.

    A number that no double can hold is read as infinity. Raises orjson.JSONDecodeError for anything
    else."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        given = replace_surrogates(body).encode() if isinstance(body, str) else body
        readable = replace_escaped_surrogates(given)
        if readable == body and not _is_beyond_doubles(error):
            raise
        try:
            return orjson.loads(readable)
        except orjson.JSONDecodeError as unread:
            if not _is_beyond_doubles(unread):
                raise
            return _with_infinities(readable, unread)


def _is_beyond_doubles(error: orjson.JSONDecodeError) -> bool:
    return "infinity" in error.msg


def _with_infinities(body: bytes, unread: orjson.JSONDecodeError) -> Any:
    """Read JSON that orjson refuses for a number, by the same rules for all else."""

    def refuse(_: str) -> Any:  # NaN and its kin are not valid JSON
        raise unread

    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise unread from None


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {_replaced(name): _replaced(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(inner) for inner in value]
    return value
