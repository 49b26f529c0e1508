"""A JSON text is refused that is deeper or larger than anything needs.

A parser makes an object of every value and keeps all other threads waiting meanwhile: thirty
megabytes of `{},` are ten million objects, a gigabyte of memory and seconds in which a server
answers no request.

The values are counted before they are parsed: commas and opening brackets at first, which is quick
and may only be too many, and without those inside texts where they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["MAX_FIELDS", "MAX_VALUES", "fits", "has_long_number", "huge_integer", "overfull"]

MAX_VALUES: Final = 400_000  # OpenAI takes 300,000 tokens in one call for embeddings
# of all objects together: each costs ten times what a number in a list does
MAX_FIELDS: Final = 100_000
# a shorter text has room for neither: `1,` and `"":1,`
_LEAST_BYTES: Final = min(2 * MAX_VALUES, 5 * MAX_FIELDS)
_PIECE: Final = 256 * 1024  # bytes that are counted together, within milliseconds

# what every JSON reader on the way keeps exactly; a larger integer becomes the nearest double
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
_MAX_DIGITS: Final = 20
_DIGITS_TO_NINE: Final = bytes(57 if 48 <= byte <= 57 else byte for byte in range(256))
_LONG_NUMBER: Final = b"9" * (_MAX_DIGITS - 1)
_LONG_INTEGER: Final = re.compile(rb"(?<![\d.eE+])(?<![eE]-)(-?\d{19,}+)(?![.eE])")
_OF_NUMBERS: Final = b"-+.eE0123456789"
_LONGEST_NUMBER: Final = 64 * 1024  # characters; no request has a longer number


def overfull(text: bytes | bytearray) -> str | None:
    """Return what a JSON text has too much of; None for one within the bounds.

    It may be None for a text that is not JSON, too.
    """
    if len(text) < _LEAST_BYTES:
        return None
    values, fields = _counted(text)
    if values > MAX_VALUES or fields > MAX_FIELDS:
        values, fields = _counted_outside_texts(text)
    if values > MAX_VALUES:
        return f"more than {MAX_VALUES:,} values"
    return f"more than {MAX_FIELDS:,} fields" if fields > MAX_FIELDS else None


def _counted(text: bytes | bytearray) -> tuple[int, int]:
    """Return how many values there are, give or take one, and how many fields.

    A value follows a comma or a bracket.
    """
    return text.count(b",") + text.count(b"[") + text.count(b"{"), text.count(b":")


def _counted_outside_texts(text: bytes | bytearray) -> tuple[int, int]:
    """Return the same two numbers without what stands inside of texts.

    Counting ends once it is known that there is too much.
    """
    values = fields = 0
    for part in _outside_texts(text):
        more_values, more_fields = _counted(part)
        values, fields = values + more_values, fields + more_fields
        if values > MAX_VALUES or fields > MAX_FIELDS:
            break
    return values, fields


def _outside_texts(text: bytes | bytearray) -> Iterator[bytes]:
    """Yield what stands outside of texts, piece by piece."""
    at = 0
    is_inside = False
    while at < len(text):
        piece = bytes(text[at : at + _PIECE])
        # the byte behind it belongs to its last backslash
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece += text[at + _PIECE : at + _PIECE + 1]
        at += len(piece)
        # every second one is a text
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[is_inside::2])
        is_inside ^= len(parts) % 2 == 0


def fits(digits: str | bytes) -> bool:
    """Return whether 64 bits hold an integer, signed or not."""
    return len(digits) <= _MAX_DIGITS and _MIN_INTEGER <= int(digits) <= _MAX_INTEGER


def has_long_number(text: bytes | bytearray) -> bool:
    """Return whether 64 bits may not hold the digits that stand in a row, in a text or not."""
    return text.translate(_DIGITS_TO_NINE).find(_LONG_NUMBER) >= 0


def huge_integer(text: bytes | bytearray) -> str | None:
    """Return the first integer of a JSON text that 64 bits do not hold; None for no such one.

    A parser makes the nearest double of it. A longer number than any has counts as one, and is cut.
    """
    if not has_long_number(text):
        return None
    begun = b""
    for part in _outside_texts(text):
        joined = begun + part
        whole = len(joined.rstrip(_OF_NUMBERS))  # the last number may go on in the next piece
        begun = joined[whole:]
        if len(begun) > _LONGEST_NUMBER:
            return begun.decode()
        for found in _LONG_INTEGER.finditer(joined, 0, whole):
            if not fits(found[1]):
                return found[1].decode()
    last = _LONG_INTEGER.fullmatch(begun)
    return None if last is None or fits(last[1]) else last[1].decode()
