"""Service tiers: how each API names them in a request, and asking for a document in one.

The names are those of developers.openai.com/api/docs/guides/flex-processing and
guides/priority-processing, docs.claude.com/en/api/service-tiers, and
ai.google.dev/gemini-api/docs/flex-inference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import orjson

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import Problem
from penstock_producer.job.lanes import LANES, packs

__all__ = [
    "FLEX",
    "TIER_FIELDS",
    "Tier",
    "has_flex",
    "in_the_standard_tier",
    "in_tier",
    "tier_named",
    "tier_problems",
]

Tier = Literal["flex", "standard", "priority"]
FLEX: Final = "flex"
STANDARD: Final = "standard"


class _Names(NamedTuple):
    """The names that an API has for its tiers."""

    field: str  # of the request, at its top
    tiers: Mapping[str, str]  # by the job's word


_OPENAIS: Final = _Names(
    "service_tier", {FLEX: "flex", STANDARD: "default", "priority": "priority"}
)
_BY_ENDPOINT: Final[Mapping[str, _Names]] = {
    "/chat/completions": _OPENAIS,
    "/responses": _OPENAIS,
    "/messages": _Names("service_tier", {STANDARD: "standard_only", "priority": "auto"}),
    "/generateContent": _Names(
        "serviceTier", {FLEX: "flex", STANDARD: "standard", "priority": "priority"}
    ),
}


def in_tier(body: bytes, endpoint: str, tier: str) -> bytes:
    """Return a request, a JSON object, that asks for a service tier.

    One that names a tier itself, and one to an API without such a tier, stays as it is. The rest of
    it is not written anew, so that its numbers stay as they came."""
    names = _names_of(endpoint)
    named = None if names is None else names.tiers.get(tier)
    if names is None or named is None or _field_in(body, names.field):
        return body
    start = body.index(b"{") + 1
    rest = body[start:]
    comma = b"" if rest.lstrip().startswith(b"}") else b","
    return body[:start] + _mark(names.field, named) + comma + rest


def in_the_standard_tier(body: bytes, endpoint: str) -> bytes | None:
    """Return a request that ``in_tier`` has put into flex as a standard one; None for others."""
    names = _names_of(endpoint)
    if names is None or FLEX not in names.tiers:
        return None
    flex, standard = (_mark(names.field, names.tiers[tier]) for tier in (FLEX, STANDARD))
    start = body.find(b"{") + 1
    if not body.startswith(flex, start):
        return None
    return body[:start] + standard + body[start + len(flex) :]


TIER_FIELDS: Final = tuple(dict.fromkeys(names.field for names in _BY_ENDPOINT.values()))
"""The fields in which requests of any API name a tier."""


def has_flex(endpoint: str) -> bool:
    """Return whether requests to an endpoint can ask for the flex tier."""
    names = _names_of(endpoint)
    return names is not None and FLEX in names.tiers


def tier_named(body: Mapping[str, object]) -> str | None:
    """Return the tier that a request names, in the words of its API."""
    tier = body.get("service_tier", body.get("serviceTier"))
    return tier if isinstance(tier, str) else None


def tier_problems(
    tier: Tier, endpoint: str, lanes: Sequence[str], params: Collection[str]
) -> Iterable[Problem]:
    """Yield why requests of a job cannot be asked for in a tier, with these parameters."""
    names, fix = _names_of(endpoint), "leave tier out"
    if names is None:
        why = f"requests to {endpoint} have no service tier"
        yield Problem("invalid_value", "/tier", why, fix)
    elif tier not in names.tiers:
        why = f"requests to {endpoint} have no tier {tier}"
        batches = next(lane for lane in LANES if packs(lane))
        text = Text("batches cost half there: ", SetOption("lane", batches))
        yield Problem("invalid_value", "/tier", why, text if tier == FLEX else fix)
    elif not any(LANES[lane].is_real_time for lane in lanes):
        why = f"no provider answers in real time in {', '.join(lanes)}"
        yield Problem("invalid_value", "/tier", why, fix)
    if names is not None and names.field in params:
        why = f"params has {names.field}, too"
        yield Problem("invalid_value", "/tier", why, "keep one of them")


def _names_of(endpoint: str) -> _Names | None:
    return next((names for end, names in _BY_ENDPOINT.items() if endpoint.endswith(end)), None)


def _mark(field: str, tier: str) -> bytes:
    return orjson.dumps({field: tier})[1:-1]


def _field_in(body: bytes, field: str) -> bool:
    """Return whether the object has the field; its text may have those letters elsewhere."""
    return b'"%b"' % field.encode() in body and field in orjson.loads(body)
