"""What the body of `POST /v1/batches` asks for.

All functions raise Refused, which names the field."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from penstock_gateway.batches.metadata import metadata_of
from penstock_gateway.ids import is_id
from penstock_gateway.refused import Refused
from penstock_producer.errors import seen
from penstock_producer.job.durations import seconds_of

__all__ = ["ENDPOINTS", "AskedBatch", "asked_batch"]

ENDPOINTS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/moderations",
)
FIELDS: Final = frozenset(
    {"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"}
)
MAX_WINDOW_S: Final = 30 * 86_400.0  # files of batches expire then
OUTPUT_S: Final = (3_600, 2_592_000)  # the least and the most, OpenAI's
_WINDOW: Final = re.compile(r"[1-9]\d{0,8}(s|m|h|d)", re.ASCII)


class AskedBatch(Struct, frozen=True):
    input_file_id: str
    endpoint: str
    window_s: float
    metadata: dict[str, str] | None
    output_expires_s: float | None


def asked_batch(given: dict[str, Any]) -> AskedBatch:
    unknown = sorted(given.keys() - FIELDS)
    if unknown:
        raise _refused(unknown[0][:80], "unknown parameter", "unknown_parameter")
    return AskedBatch(
        _file_id(given.get("input_file_id")),
        _endpoint(given.get("endpoint")),
        _window_s(given.get("completion_window")),
        metadata_of(given.get("metadata")),
        _output_s(given.get("output_expires_after")),
    )


def _file_id(given: Any) -> str:
    if given is None:
        raise _refused("input_file_id", "it is required", "missing_required_parameter")
    if not isinstance(given, str):
        raise _refused(
            "input_file_id", f"expected a string, but got {type(given).__name__}", "invalid_type"
        )
    # A file that is not there fails the batch, as at OpenAI; what no file can be called is such a
    # one.
    return given if is_id("file", given) else "file-unknown"


def _endpoint(given: Any) -> str:
    if isinstance(given, str) and given in ENDPOINTS:
        return given
    supported = ", ".join(f"'{one}'" for one in ENDPOINTS)
    raise _refused("endpoint", f"{seen(given)}; supported values are {supported}")


def _window_s(given: Any) -> float:
    """A window that is accepted is kept: the batch ends with it, whatever is not done by then."""
    if isinstance(given, str) and _WINDOW.fullmatch(given) and seconds_of(given) <= MAX_WINDOW_S:
        return seconds_of(given)
    why = f"{seen(given)}; write a whole number and s, m, h or d, up to 30d, such as '24h'"
    raise _refused("completion_window", why)


def _output_s(given: Any) -> float | None:
    if given is None:
        return None
    least, most = OUTPUT_S
    seconds = given.get("seconds") if isinstance(given, dict) else None
    fits = type(seconds) is int and least <= seconds <= most and given.get("anchor") == "created_at"
    if not isinstance(seconds, int) or not fits:
        raise _refused(
            "output_expires_after", f"give the anchor 'created_at' and {least} to {most} seconds"
        )
    return float(seconds)


def _refused(param: str, why: str, code: str = "invalid_value") -> Refused:
    return Refused(400, f"Invalid value for '{param}': {why}.", code=code, param=param)
