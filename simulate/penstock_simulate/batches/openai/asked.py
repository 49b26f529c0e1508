"""What a client asks for when it creates a batch at OpenAI.

All functions raise Refused for what cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from penstock_simulate.answers import refusals
from penstock_simulate.batches.openai.file_store import CLIENT_EXPIRES_S, EXPIRES_S
from penstock_simulate.batches.openai.lines import ENDPOINTS
from penstock_simulate.batches.openai.relatives import Relative
from penstock_simulate.batches.refused import Refused

WINDOW = "24h"  # the only one that there is; how long it lasts here is a setting
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512  # of metadata


def given_in(raw: bytes, relative: Relative) -> Mapping[str, Any]:
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        told = f"We could not parse the JSON body of your request: {error}"
        raise Refused(refusals.invalid(told)) from None
    if not isinstance(given, dict):
        raise Refused(refusals.invalid("The body of your request must be a JSON object."))
    given = relative.asked(given)
    if given.get("completion_window") != WINDOW:
        told = (
            f"Invalid value: {given.get('completion_window')!r}. Supported values are: '{WINDOW}'."
        )
        raise Refused(refusals.invalid(told, "completion_window", "invalid_value"))
    return given


def endpoint_of(given: Mapping[str, Any]) -> str:
    endpoint = given.get("endpoint")
    if isinstance(endpoint, str) and endpoint in ENDPOINTS:
        return endpoint
    told = f"Invalid value: {endpoint!r}. This simulator answers: {', '.join(ENDPOINTS)}."
    raise Refused(refusals.invalid(told, "endpoint", "invalid_value"))


def metadata_of(given: object) -> dict[str, str] | None:
    if given is None:
        return None
    fits = isinstance(given, dict) and len(given) <= MAX_PAIRS
    if (
        not isinstance(given, dict)
        or not fits
        or not all(_pair_fits(key, given[key]) for key in given)
    ):
        told = (
            f"metadata: give up to {MAX_PAIRS} pairs, keys up to {MAX_KEY} and texts up to "
            f"{MAX_VALUE} characters."
        )
        raise Refused(refusals.invalid(told, "metadata"))
    return given


def _pair_fits(key: str, value: object) -> bool:
    return len(key) <= MAX_KEY and isinstance(value, str) and len(value) <= MAX_VALUE


def outputs_expire_s(given: Mapping[str, Any]) -> float:
    wanted = given.get("output_expires_after")
    if wanted is None:
        return EXPIRES_S
    seconds = wanted.get("seconds") if isinstance(wanted, dict) else None
    least, most = CLIENT_EXPIRES_S
    if (
        not isinstance(seconds, int)
        or not least <= seconds <= most
        or wanted.get("anchor") != "created_at"
    ):
        told = f"output_expires_after: give the anchor 'created_at' and {least} to {most} seconds."
        raise Refused(refusals.invalid(told, "output_expires_after"))
    return seconds
