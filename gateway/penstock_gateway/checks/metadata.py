"""Metadata of a request, of a batch or a call: texts of its caller, within OpenAI's limits."""

from __future__ import annotations

from typing import Any, Final

from penstock_gateway.refused import Refused

__all__ = ["METADATA_PAIRS", "checked_metadata", "refused_metadata"]

METADATA_PAIRS: Final = 16
MAX_KEY, MAX_VALUE = 64, 512  # characters


def checked_metadata(given: Any) -> dict[str, str] | None:
    """As it was given. Raises Refused (400), which names the pair."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise refused_metadata(
            "metadata", f"expected an object, but got {type(given).__name__}", "invalid_type"
        )
    if len(given) > METADATA_PAIRS:
        raise refused_metadata(
            "metadata", f"at most {METADATA_PAIRS} pairs are kept, and there are {len(given)}"
        )
    for key, value in given.items():
        param = f"metadata.{key[:MAX_KEY]}"
        if not key or len(key) > MAX_KEY:
            raise refused_metadata(
                param, f"a key has 1 to {MAX_KEY} characters, and this one has {len(key)}"
            )
        if not isinstance(value, str):
            raise refused_metadata(
                param, f"expected a string, but got {type(value).__name__}", "invalid_type"
            )
        if len(value) > MAX_VALUE:
            why = f"a value has at most {MAX_VALUE} characters, and this one has {len(value)}"
            raise refused_metadata(param, why)
    return dict(given)


def refused_metadata(param: str, why: str, code: str = "invalid_value") -> Refused:
    return Refused(
        400,
        f"Invalid {code.removeprefix('invalid_')} for '{param}': {why}.",
        code=code,
        param=param,
    )
