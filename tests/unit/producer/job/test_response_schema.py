"""A schema that cannot work is refused where the job is submitted, by the place that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_producer.errors import SpecError
from penstock_producer.job.response_schema import (
    SCHEMA_BYTES_MAX,
    SCHEMA_DEPTH_MAX,
    SCHEMA_LIST_MAX,
)
from penstock_producer.job.spec import JobSpec


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "pointer", "words"),
    [
        ({"$ref": "http://169.254.169.254/latest"}, "/$ref", "nothing is fetched for a schema"),
        (
            {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
            "/properties/a/$ref",
            "nothing is fetched",
        ),
        (
            {"anyOf": [{"$dynamicRef": "other.json#x"}]},
            "/anyOf/0/$dynamicRef",
            "nothing is fetched",
        ),
        ({"$ref": "#/nowhere"}, "/$ref", "'#/nowhere' is not in the schema"),
        ({"type": "objekt"}, "/type", "'objekt' is refused"),
        ({"properties": 5}, "/properties", "5 is refused"),
        ({"items": {"pattern": "("}}, "/items/pattern", "is not a regular expression"),
        ({"patternProperties": {"(": {}}}, "/patternProperties", "is not a regular expression"),
        ({"$schema": []}, "/$schema", "give a string"),
        ({"description": "x" * SCHEMA_BYTES_MAX}, "", "bytes"),
        ({"enum": [*range(SCHEMA_LIST_MAX + 1)]}, "/enum", "too many values"),
        ({"const": {1, 2}}, "", "is not JSON"),
    ],
)
def test_a_schema_that_cannot_work_is_refused_when_it_is_submitted(
    schema: dict[str, Any], pointer: str, words: str
) -> None:
    """Before a document is paid for, with the place in the schema and the reason (B1, B20)."""
    with pytest.raises(SpecError) as caught:
        JobSpec.from_json({"response_schema": schema})
    assert f"/response_schema{pointer}" in {problem.pointer for problem in caught.value.problems}
    assert words in str(caught.value)


@pytest.mark.parametrize("levels", [SCHEMA_DEPTH_MAX, 100_000])
def test_a_deep_schema_is_refused_without_following_it(levels: int) -> None:
    """However deep it is, looking at it needs no stack (B20)."""
    with pytest.raises(SpecError, match="too deep"):
        JobSpec(response_schema=nested(levels))


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}},
        {"$ref": "#name", "$defs": {"a": {"$anchor": "name"}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"a/b": {}},
            "$ref": "#/definitions/a~1b",
        },
        {"properties": {"$ref": {"type": "string"}}},
        nested(SCHEMA_DEPTH_MAX - 1),
    ],
)
def test_usable_schemas_pass(schema: dict[str, Any]) -> None:
    """References to its own parts, anchors and older dialects included (B1)."""
    assert JobSpec(response_schema=schema).response_schema == schema


def test_a_stored_spec_is_not_judged_again() -> None:
    """Rules may grow; what was accepted last week still runs, and workers try its schema themselves
    (B20)."""
    fields = JobSpec().to_json() | {"response_schema": {"type": "objekt"}}
    assert JobSpec.accepted(fields).response_schema == {"type": "objekt"}
