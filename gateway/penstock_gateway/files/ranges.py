"""Which bytes of a file a request asks for (RFC 9110: Range, If-Range)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["NoSuchRange", "Span", "asked_span"]

_RANGE: Final = re.compile(
    r"\s*bytes\s*=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*", re.ASCII | re.IGNORECASE
)


class NoSuchRange(ValueError):
    """The file has no byte of it."""


class Span(NamedTuple):
    first: int
    after: int


def asked_span(range_header: str | None, if_range: str | None, etag: str, size: int) -> Span | None:
    """None for the whole file: also for several ranges or an unknown unit, which a server may leave
    aside, and where the content is another than the caller has. Raises NoSuchRange."""
    if range_header is None or (if_range is not None and if_range.strip() != etag):
        return None
    found = _RANGE.fullmatch(range_header)
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        return (
            _checked(Span(max(0, size - int(last)), size), size)
            if int(last)
            else _checked(Span(size, size), size)
        )
    if last and int(last) < int(first):
        return None
    return _checked(Span(int(first), min(size, int(last) + 1) if last else size), size)


def _checked(span: Span, size: int) -> Span:
    if span.first >= size:
        raise NoSuchRange
    return span
