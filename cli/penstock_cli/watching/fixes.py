"""What a person can do where documents fail for one reason: where the job's own options tell more
than the reason, from these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_producer.reporting.fixes import FIXES

if TYPE_CHECKING:
    from penstock_ledger.model import DeadLetter
    from penstock_producer.job.spec import JobSpec

__all__ = ["fix_of"]


def fix_of(letter: DeadLetter, spec: JobSpec, url: str | None) -> str | None:
    """``url`` is the provider's where it is known.

    None where there is nothing to say beyond the failure's own words."""
    from penstock_workers.item.failures import ASTRAY, refuses_format
    from penstock_workers.item.run.runs import other_format, to_check

    if letter.reason in ASTRAY:
        return to_check(letter.reason, spec.provider, url)
    if letter.reason == "schema_mismatch":
        return _about_schema(spec)
    if refuses_format(letter.reason, letter.last_error) and spec.asked_format.format is not None:
        return other_format(spec.provider)
    return FIXES.get(letter.reason)


def _about_schema(spec: JobSpec) -> str:
    asked = spec.asked_format.format
    if asked is None:
        return (
            "nothing tells the model which JSON is wanted: submit with --response-format "
            "json_schema where the provider takes it, or describe the JSON in the prompt"
        )
    if asked["type"] == "json_schema":
        return (
            "the model does not keep to the schema in its requests: describe the JSON in the "
            "prompt, or name another model"
        )
    return (
        "any JSON object was asked for: name its fields in the prompt, or submit with "
        "--response-format json_schema"
    )
