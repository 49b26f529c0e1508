"""The JSON Schema of a job spec file, from the options' one definition: for editors, and for tools
that write such files.

The package carries it as `job-spec.schema.json`, and the docs beside their page; a test holds both
to what this makes.
"""

from __future__ import annotations

from typing import Any, Final

from penstock_producer.job.options import OPTIONS
from penstock_producer.job.spec import JobSpec
from penstock_producer.jobfile.names import DURATIONS, FILES, TOP
from penstock_producer.jobfile.run_section import RunSection

__all__ = ["json_schema"]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    spec = JobSpec.model_json_schema()
    fields: dict[str, Any] = {
        name: {"type": "string", "description": text} for name, text in TOP.items() if name != "run"
    }
    fields["where"] |= {"type": ["string", "array"], "items": {"type": "string"}}
    fields |= spec["properties"]
    for name, field in DURATIONS.items():
        text = (
            f"{OPTIONS[field].help} As people write it, 90s or 1h30m, or in seconds; or {field}, "
            "in seconds."
        )
        fields[name] = {"type": ["string", "number"], "description": text}
    for name, field in FILES.items():
        fields[name] = {
            "type": "string",
            "description": f"A text file with the {field}; a relative path counts from this file.",
        }
    schema = fields["response_schema"]
    named = {
        "type": "string",
        "description": "A JSON file that holds it, or a Pydantic model: package.module:Model.",
    }
    schema["anyOf"] = [*schema["anyOf"], named]
    run = RunSection.model_json_schema()
    fields["run"] = {
        "type": "object",
        "description": TOP["run"],
        "properties": run["properties"],
        "additionalProperties": False,
    }
    return {
        "$schema": _DIALECT,
        "title": "A Penstock job spec file",
        "type": "object",
        "properties": {name: _untitled(field) for name, field in fields.items()},
        "additionalProperties": False,
    } | ({"$defs": spec["$defs"]} if "$defs" in spec else {})


def _untitled(field: dict[str, Any]) -> dict[str, Any]:
    """Without Pydantic's titles, which repeat the names."""
    kept = {name: value for name, value in field.items() if name != "title"}
    if isinstance(kept.get("properties"), dict):
        kept["properties"] = {name: _untitled(inner) for name, inner in kept["properties"].items()}
    return kept
