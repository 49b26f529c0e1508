"""Where a page ends, as one text that a caller gives back."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final

import orjson

from penstock_gateway.refused import Refused

__all__ = ["decoded", "encoded"]

_CHARS_MAX: Final = 2_000  # an id of a document has at most 512 bytes


def encoded(*parts: float | str) -> str:
    return urlsafe_b64encode(orjson.dumps(parts)).decode().rstrip("=")


def decoded(cursor: str, first: type[int] | type[float]) -> tuple[Any, str]:
    """Return the number and the text that a cursor holds.

    Raises Refused for a text that is no such cursor.
    """
    try:
        number, name = orjson.loads(
            urlsafe_b64decode(cursor[:_CHARS_MAX] + "=" * (-len(cursor) % 4))
        )
    except (ValueError, TypeError):
        raise _unknown() from None
    if type(number) is not first or not isinstance(name, str) or not -(2**53) < number < 2**53:
        raise _unknown()
    return number, name


def _unknown() -> Refused:
    return Refused(
        400,
        "the cursor is not one that a list has returned; begin without one",
        code="invalid_cursor",
        param="cursor",
    )
