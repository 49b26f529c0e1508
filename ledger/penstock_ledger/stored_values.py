"""Every store takes texts made storable on their way into SQL, and bounded figures.

Texts come from providers, services and users. One odd character must not keep an outcome, or the
pause of a job, from being written, so it is replaced and never an error.
"""

from __future__ import annotations

from typing import Any, Final, overload

from sqlalchemy import Dialect, Text
from sqlalchemy.types import TypeDecorator

from penstock_ledger.lone_surrogates import dump_json, replace_surrogates
from penstock_ledger.model import COUNT_MAX

# Tokens, millionths of a dollar and milliseconds of one document. No real figure comes near
# (100,000 USD, three years), and the sum over ten million documents still fits into 64 bits.
FIGURE_MAX: Final = 10**11


@overload
def storable(text: str) -> str: ...
@overload
def storable(text: None) -> None: ...
@overload
def storable(text: str | None) -> str | None: ...
def storable(text: str | None) -> str | None:
    """Return ``text`` with U+FFFD for what PostgreSQL or UTF-8 refuse: NUL, lone surrogates."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return replace_surrogates(text.replace("\0", "\N{REPLACEMENT CHARACTER}"))


def json_text(value: Any) -> str:
    """Return ``value`` as JSON that is storable: a lone surrogate becomes U+FFFD."""
    return dump_json(value).decode()


def bounded_count(number: int) -> int:
    """Return a number of tries or calls that fits its column."""
    return number if 0 <= number <= COUNT_MAX else _nearest(number, COUNT_MAX)


def bounded_figure(number: int | None) -> int | None:
    """Cut tokens, cost or a time of a provider to what can be stored and summed up."""
    return number if number is None or 0 <= number <= FIGURE_MAX else _nearest(number, FIGURE_MAX)


def _nearest(number: int, most: int) -> int:
    return 0 if number < 0 else most


class Words(TypeDecorator[str]):
    """The type of every text column: nothing is bound to one that has not passed ``storable``."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return storable(value)
