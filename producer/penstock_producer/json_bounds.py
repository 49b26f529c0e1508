"""How much one JSON text may hold.

A parser makes an object of every value and keeps all other threads waiting meanwhile: thirty
megabytes of `{},` are ten million objects, a gigabyte of memory and seconds in which a server
answers no request.

The values are counted before they are parsed: commas and opening brackets at first, which is quick
and may only be too many, and without those inside texts where they are.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_FIELDS", "MAX_VALUES", "overfull"]

MAX_VALUES: Final = 400_000  # OpenAI takes 300,000 tokens in one call for embeddings
# of all objects together: each costs ten times what a number in a list does
MAX_FIELDS: Final = 100_000
# a shorter text has room for neither: `1,` and `"":1,`
_LEAST_BYTES: Final = min(2 * MAX_VALUES, 5 * MAX_FIELDS)
_PIECE: Final = 256 * 1024  # bytes that are counted together, within milliseconds


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
    values = fields = at = 0
    is_inside = False
    while at < len(text) and values <= MAX_VALUES and fields <= MAX_FIELDS:
        piece = bytes(text[at : at + _PIECE])
        # the byte behind it belongs to its last backslash
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece += text[at + _PIECE : at + _PIECE + 1]
        at += len(piece)
        # every second one is a text
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        more_values, more_fields = _counted(b"".join(parts[is_inside::2]))
        values, fields = values + more_values, fields + more_fields
        is_inside ^= len(parts) % 2 == 0
    return values, fields
