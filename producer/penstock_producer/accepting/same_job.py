"""What makes two submits the same job: the spec and the content, not the place of a file or its
time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import content_of

# Of a spec: the options of the first release. A later one counts only where it is not at its
# default: else the jobs of a release would be others after an upgrade.
_FIRST_OPTIONS: Final = frozenset(
    {
        "budget_usd",
        "deadline_s",
        "endpoint",
        "id_field",
        "lane",
        "max_attempts",
        "max_bad_rows",
        "model",
        "on_overflow",
        "params",
        "postprocess",
        "prefix_order",
        "preprocess",
        "priority",
        "prompt",
        "provider",
        "response_schema",
        "system",
        "tenant",
        "timeout_s",
        "weight",
    }
)
# Of a spec: how the source is read, and whether there is a job; nothing of what comes of it.
_BESIDE_CONTENT: Final = frozenset({"feeders", "over_budget"})


def digest_of(spec: JobSpec, pin: Mapping[str, Any]) -> str:
    """Equal for submits of the same job.

    A source without a digest of its bytes is known by its place, too."""
    place = {} if "sha256" in pin or "uri" not in pin else {"uri": pin["uri"]}
    parts = [options_of(spec), content_of(pin) | place]
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()


def options_of(spec: JobSpec) -> dict[str, Any]:
    """The options that make a job what it is."""
    return {
        name: value
        for name, value in spec.to_json().items()
        if name in _FIRST_OPTIONS or _counts(name, value)
    }


def _counts(name: str, value: object) -> bool:
    """Whether an option that came after the first release is given; null is said by jobs of a
    release without it."""
    if name in _BESIDE_CONTENT or value is None:
        return False
    return bool(value != JobSpec.model_fields[name].get_default(call_default_factory=True))
