"""The headers that every call of Anthropic's API needs."""

from __future__ import annotations

from collections.abc import Mapping

from penstock_simulate.answers import refusals
from penstock_simulate.answers.refusals import Refusal

VERSIONS = ("2023-06-01", "2026-10-21")  # what is answered here is the same in both


def key_of(headers: Mapping[str, str]) -> str | None:
    """The key as an Authorization header would have it, which is taken in its place."""
    key = headers.get("x-api-key")
    return headers.get("Authorization") if key is None else f"Bearer {key}"


def version_fault(headers: Mapping[str, str]) -> Refusal | None:
    given = headers.get("anthropic-version")
    if given in VERSIONS:
        return None
    if given is None:
        return refusals.invalid("anthropic-version: header is required")
    return refusals.invalid(
        f"anthropic-version: {given!r} is not a valid version; send {VERSIONS[-1]}"
    )
