"""What is said about rows in more than one place."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from penstock_producer.errors import seen
from penstock_producer.job.unknown import close_to
from penstock_producer.sources.forms.strict_json import RowFault

__all__ = ["bounded", "columns_of", "meant", "too_large"]

_MAX_COLUMNS_SHOWN: Final = 20
_MAX_COLUMNS_COMPARED: Final = 100


def too_large(size: str, limit: int, field: str | None = None) -> RowFault:
    """A request that is larger than the setting `max_body_bytes`. ``size`` says how large."""
    return RowFault(
        "body_too_large",
        f"The request has {size}, and the setting max_body_bytes allows {limit}.",
        fix=(
            "shorten the text, name the column once, or raise max_body_bytes where requests really "
            "are larger"
        ),
        field=field,
    )


def bounded(body: bytes, limit: int) -> bytes:
    """Raises RowFault for a request that is too large."""
    if len(body) > limit:
        raise too_large(f"{len(body)} bytes", limit)
    return body


def columns_of(record: Mapping[str, Any]) -> str:
    names = [seen(name) for name in islice(record, _MAX_COLUMNS_SHOWN)]
    return (
        ", ".join(names) + (", …" if len(record) > _MAX_COLUMNS_SHOWN else "") if names else "none"
    )


def meant(name: str, given: Mapping[str, Any]) -> str:
    """The column that was probably meant, as the beginning of a fix."""
    close = close_to(name, islice(given, _MAX_COLUMNS_COMPARED))
    return f"did you mean {close!r}? If not, " if close is not None and close != name else ""
