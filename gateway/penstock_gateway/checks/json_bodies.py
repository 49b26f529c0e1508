"""Bodies of JSON, read once and in one place.

What Python would take and others would not is refused: NaN, infinite numbers, hundreds of levels;
and more than can be read while others wait (penstock_producer/json_bounds.py)."""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock_gateway.refused import Refused
from penstock_producer.json_bounds import overfull

__all__ = ["MAX_DEPTH", "MAX_KEYS", "is_json", "object_of", "parsed"]

MAX_DEPTH: Final = 64  # objects and lists inside one another; a request with tools has about ten
MAX_KEYS: Final = 5_000  # of one object: each that is not known there is an error of its own


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def parsed(body: bytes) -> Any:
    """Return the one JSON value that the body is.

    Raises Refused, also for one that is larger or deeper than a request can be."""
    too_much = overfull(body)
    if too_much is not None:
        raise Refused(400, f"The body has {too_much}.", code="too_many_values")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(
            400, f"The body is not valid JSON: {error.msg} (byte {error.pos}).", code="invalid_json"
        ) from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH or body.count(b":") > MAX_KEYS:
        _check_containers(value)
    return value


def object_of(value: Any) -> dict[str, Any]:
    """The object that a body has to be. Raises Refused for another value."""
    if not isinstance(value, dict):
        raise Refused(400, "The body must be a JSON object.", code="invalid_type")
    return value


def _check_containers(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if any(len(one) > MAX_KEYS for one in level if isinstance(one, dict)):
            raise Refused(
                400,
                f"An object in the body has more than {MAX_KEYS:,} fields.",
                code="too_many_values",
            )
        inner = (
            one for outer in level for one in (outer.values() if isinstance(outer, dict) else outer)
        )
        level = [one for one in inner if isinstance(one, dict | list)]
    if level:
        raise Refused(
            400, f"The body has more than {MAX_DEPTH} levels of nesting.", code="nesting_too_deep"
        )
