"""Bodies of JSON, read in one place. What Python would take and others would not is refused: NaN, infinite numbers, hundreds of
levels."""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock_gateway.refused import Refused

__all__ = ["MAX_DEPTH", "check_json", "object_of"]

MAX_DEPTH: Final = 64  # objects and lists inside one another; a request with tools has about ten


def check_json(body: bytes) -> None:
    """Raises Refused for what is not one JSON value, or is nested deeper than a request can be."""
    value = _value(body)
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise Refused(400, f"The body has more than {MAX_DEPTH} levels of nesting.", code="nesting_too_deep")


def object_of(body: bytes) -> dict[str, Any]:
    """The object that a checked body is. Raises Refused for another value, and for no body at all."""
    value = _value(body)
    if not isinstance(value, dict):
        raise Refused(400, "The body must be a JSON object.", code="invalid_type")
    return value


def _value(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(
            400, f"The body is not valid JSON: {error.msg} (byte {error.pos}).", code="invalid_json"
        ) from None


def _deeper_than(value: Any, most: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        inner = (one for outer in level for one in (outer.values() if isinstance(outer, dict) else outer))
        level = [one for one in inner if isinstance(one, dict | list)]
    return bool(level)
