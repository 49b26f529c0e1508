"""Unknown names, and which one was probably meant.

A caller may send many of them, of any length: both are bounded."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Final

from penstock_producer.errors import Problem, seen

__all__ = ["UNKNOWN_MAX", "Suggestions", "close_to", "too_many_unknown"]

UNKNOWN_MAX: Final = 100  # in one object; who sends more of them has sent something else
# names of one object that are compared with those that exist: each costs about a millisecond
SUGGESTED_MAX: Final = 10
COMPARED_CHARS: Final = 100  # no name that exists has as many


def close_to(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that was probably meant; None where none is close, and for a name that
    is longer than any."""
    if len(name) > COMPARED_CHARS:
        return None
    found = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return found[0] if found else None


class Suggestions:
    """The names that were probably meant, for the first ones that are asked about."""

    def __init__(self) -> None:
        self._left = SUGGESTED_MAX

    def close_to(self, name: str, known: Iterable[str]) -> str | None:
        self._left -= 1
        return close_to(name, known) if self._left >= 0 else None


def too_many_unknown(names: Collection[str], pointer: str = "") -> Problem | None:
    """Return what is wrong with so many names, before one of them is looked at; None where they are
    few."""
    if len(names) <= UNKNOWN_MAX:
        return None
    first = seen(next(iter(names)))
    fix = (
        f"{len(names):,} names are not known here; up to {UNKNOWN_MAX} would be looked at one by "
        "one"
    )
    return Problem("unknown_field", pointer, f"there is no field {first}", fix)
