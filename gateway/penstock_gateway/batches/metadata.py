"""A batch's metadata: texts of its caller, and among them what it asks of us."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock_gateway.callers.caller import Caller
from penstock_gateway.checks.metadata import checked_metadata, refused_metadata
from penstock_gateway.refused import Refused

__all__ = ["TENANT", "asked_in", "metadata_of", "place_of", "tenant_of_batch"]

OURS: Final = "penstock."
_NUMBERS: Final = {
    "budget_usd": "US dollars",
    "stop_at_usd_per_doc": "US dollars",
    "max_prompt_tokens": "tokens",
}
_FIELDS: Final = (
    "priority",
    "lane",
    "tenant",
    "stop_at_dead",
    *_NUMBERS,
)  # of a job; others are not for callers to choose
TENANT: Final = f"{OURS}tenant"


def metadata_of(given: Any) -> dict[str, str] | None:
    """As it was given, once it was checked. Raises Refused."""
    checked = checked_metadata(given)
    for key in checked or ():
        if key.startswith(OURS) and key.removeprefix(OURS) not in _FIELDS:
            known = ", ".join(OURS + name for name in _FIELDS)
            raise refused_metadata(
                f"metadata.{key}", f"no such option; those that begin with {OURS} are {known}"
            )
    return checked


def tenant_of_batch(metadata: Mapping[str, str] | None, caller: Caller) -> str | None:
    """Whose a new batch is: its caller's, or that of a tenant that an operator names.

    Raises Refused (403)."""
    named = (metadata or {}).get(TENANT)
    if named is None:
        return caller.tenant
    if "admin" not in caller.scopes:
        why = (
            "only a key with the scope admin makes batches for a tenant; leave it out, and the "
            "batch is that of your key"
        )
        raise Refused(
            403,
            f"Invalid value for 'metadata.{TENANT}': {why}.",
            code="not_allowed",
            param=f"metadata.{TENANT}",
        )
    return named


def asked_in(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """The options of a job that metadata asks for. Raises Refused."""
    asked: dict[str, Any] = {}
    for name in _FIELDS:
        value = (metadata or {}).get(OURS + name)
        if value is not None:
            asked[name] = _number(name, value) if name in _NUMBERS else value
    return asked


def place_of(pointer: str) -> str:
    """Where a caller has written what a job's spec refuses, by the pointer into the spec."""
    name = pointer.strip("/").partition("/")[0]
    return f"metadata.{OURS}{name}" if name in _FIELDS else name


def _number(name: str, text: str) -> float:
    try:
        return int(text) if name == "max_prompt_tokens" else float(text)
    except ValueError:
        raise refused_metadata(
            f"metadata.{OURS}{name}", f"{text[:80]!r} is not a number of {_NUMBERS[name]}"
        ) from None
