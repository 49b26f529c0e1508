"""What every store takes: the one function that each text passes on its way into SQL, and the bounds of figures.

Texts come from providers, services and users. One odd character must not keep an outcome, or the pause of a job, from
being written, so it is replaced and never an error.
"""

from __future__ import annotations

from typing import Any, Final, overload

import orjson
from sqlalchemy import Dialect, Text
from sqlalchemy.types import TypeDecorator

from penstock_ledger.model import COUNT_MAX

# Tokens, millionths of a dollar and milliseconds of one document. No real figure comes near (100,000 USD, three years), and
# the sum over ten million documents still fits into 64 bits.
FIGURE_MAX: Final = 10**11


@overload
def storable(text: str) -> str: ...
@overload
def storable(text: None) -> None: ...
@overload
def storable(text: str | None) -> str | None: ...
def storable(text: str | None) -> str | None:
    """``text`` without what PostgreSQL or UTF-8 refuse: NUL becomes U+FFFD, a lone surrogate a question mark."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def json_text(value: Any) -> str:
    """``value`` as JSON that is storable: its texts, and the names of its fields, have passed ``storable``."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a lone surrogate; anything else is refused again
        return orjson.dumps(_cleaned(value)).decode()


def bounded_count(number: int) -> int:
    """A number of tries or calls that fits its column."""
    return number if 0 <= number <= COUNT_MAX else _nearest(number, COUNT_MAX)


def bounded_figure(number: int | None) -> int | None:
    """Tokens, cost or a time as a provider stated it, cut to what can be stored and summed up."""
    return number if number is None or 0 <= number <= FIGURE_MAX else _nearest(number, FIGURE_MAX)


def _nearest(number: int, most: int) -> int:
    return 0 if number < 0 else most


class Words(TypeDecorator[str]):
    """The type of every text column: nothing is bound to one that has not passed ``storable``."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return storable(value)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {_cleaned(name): _cleaned(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(inner) for inner in value]
    return value
