"""A batch's metadata: 16 texts of its caller, and among them what it asks of us."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock_gateway.callers.caller import Caller
from penstock_gateway.refused import Refused

__all__ = ["TENANT", "asked_in", "metadata_of", "place_of", "tenant_of_batch"]

MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512  # OpenAI's
OURS: Final = "penstock."
_FIELDS: Final = ("priority", "lane", "budget_usd", "tenant")  # of a job; others are not for callers to choose
TENANT: Final = f"{OURS}tenant"


def metadata_of(given: Any) -> dict[str, str] | None:
    """As it was given, once it was checked. Raises Refused."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise _refused("metadata", f"expected an object, but got {type(given).__name__}", "invalid_type")
    if len(given) > MAX_PAIRS:
        raise _refused("metadata", f"at most {MAX_PAIRS} pairs are kept, and there are {len(given)}")
    for key, value in given.items():
        param = f"metadata.{key[:MAX_KEY]}"
        if not key or len(key) > MAX_KEY:
            raise _refused(param, f"a key has 1 to {MAX_KEY} characters, and this one has {len(key)}")
        if not isinstance(value, str):
            raise _refused(param, f"expected a string, but got {type(value).__name__}", "invalid_type")
        if len(value) > MAX_VALUE:
            raise _refused(param, f"a value has at most {MAX_VALUE} characters, and this one has {len(value)}")
        if key.startswith(OURS) and key.removeprefix(OURS) not in _FIELDS:
            known = ", ".join(OURS + name for name in _FIELDS)
            raise _refused(param, f"no such option; those that begin with {OURS} are {known}")
    return dict(given)


def tenant_of_batch(metadata: Mapping[str, str] | None, caller: Caller) -> str | None:
    """Whose a new batch is: its caller's, or that of a tenant that an operator names. Raises Refused (403)."""
    named = (metadata or {}).get(TENANT)
    if named is None:
        return caller.tenant
    if "admin" not in caller.scopes:
        why = "only a key with the scope admin makes batches for a tenant; leave it out, and the batch is that of your key"
        raise Refused(
            403, f"Invalid value for 'metadata.{TENANT}': {why}.", code="not_allowed", param=f"metadata.{TENANT}"
        )
    return named


def asked_in(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """The options of a job that metadata asks for. Raises Refused."""
    asked: dict[str, Any] = {}
    for name in _FIELDS:
        value = (metadata or {}).get(OURS + name)
        if value is not None:
            asked[name] = _dollars(value) if name == "budget_usd" else value
    return asked


def place_of(pointer: str) -> str:
    """Where a caller has written what a job's spec refuses, by the pointer into the spec."""
    name = pointer.strip("/").partition("/")[0]
    return f"metadata.{OURS}{name}" if name in _FIELDS else name


def _dollars(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _refused(f"metadata.{OURS}budget_usd", f"{text[:80]!r} is not a number of US dollars") from None


def _refused(param: str, why: str, code: str = "invalid_value") -> Refused:
    return Refused(400, f"Invalid {code.removeprefix('invalid_')} for '{param}': {why}.", code=code, param=param)
