"""Shows a value of a request in an error.

It is cut, whatever it is, however large, and however deep it nests."""

from __future__ import annotations

from reprlib import Repr
from typing import Any, Final

SHOWN_CHARS: Final = 40
# repr() itself would write all of it down first, and fails at a thousand levels
_LOOK: Final = Repr()
_LOOK.maxstring = _LOOK.maxlong = _LOOK.maxother = 2 * SHOWN_CHARS


def shown(value: Any) -> str:
    text = _LOOK.repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
