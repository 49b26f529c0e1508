"""What requests say of the form of their answers: the job's schema goes with them, strictly where
providers allow it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock_producer.errors import SpecError
from penstock_producer.job.response_format import format_asked
from penstock_producer.job.spec import JobSpec
from penstock_producer.sources.forms.row_forms import form_of

STRICT: dict[str, Any] = {
    "title": "A ticket",
    "type": "object",
    "properties": {
        "label": {"enum": ["a", "b"]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/Tag"}},
        "note": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    },
    "required": ["label", "tags", "note"],
    "additionalProperties": False,
    "$defs": {
        "Tag": {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 1}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
}
PLAIN: dict[str, Any] = {"prompt": "Label: {text}", "model": "m"}
ROW = {"id": "1", "text": "x"}


def sent(row: dict[str, Any] = ROW, **spec: Any) -> Any:
    """The body of the request that a row becomes."""
    return orjson.loads(form_of(JobSpec.from_json(spec)).request(row))


def test_the_schema_goes_with_each_request() -> None:
    """A prompt's request asks for an answer by the schema, named after its title, and strictly
    where it may be."""
    asked = sent(**PLAIN, response_schema=STRICT)["response_format"]
    assert asked == {
        "type": "json_schema",
        "json_schema": {"name": "A_ticket", "schema": STRICT, "strict": True},
    }


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"additionalProperties": True}, "$ allows other fields"),
        ({"required": ["label", "tags"]}, "$.note is not required"),
        (
            {"properties": STRICT["properties"] | {"note": {"type": "string", "minLength": 3}}},
            "$.note has minLength",
        ),
        (
            {"properties": STRICT["properties"] | {"note": {"oneOf": [{"type": "null"}]}}},
            "$.note has oneOf",
        ),
        ({"properties": STRICT["properties"] | {"note": {}}}, "$.note does not say its type"),
        ({"properties": STRICT["properties"] | {"note": True}}, "$.note is no object of rules"),
        (
            {"properties": STRICT["properties"] | {"note": {"type": "array"}}},
            "$.note does not say what its items are",
        ),
        (
            {"properties": STRICT["properties"] | {"note": {"type": "string", "format": "uri"}}},
            "the format uri",
        ),
        ({"$defs": {"Tag": {"type": "object"}}}, "$/$defs/Tag allows other fields"),
        ({"$defs": {"Tag": {"$ref": "#/$defs/Tag", "description": "x"}}}, "more than its $ref"),
    ],
)
def test_a_schema_beyond_the_strict_subset_is_sent_without_strict(
    changed: dict[str, Any], why: str
) -> None:
    """What OpenAI refuses as strict is sent all the same, and preview says which rule keeps it from
    being strict."""
    told = JobSpec.from_json(PLAIN | {"response_schema": STRICT | changed}).asked_format
    assert told.format is not None
    assert told.format["json_schema"]["strict"] is False
    assert why in told.in_words


def test_a_field_named_like_a_keyword_is_a_field() -> None:
    """Fields called default or pattern do not make a schema loose."""
    fields = {name: {"type": "string"} for name in ("default", "pattern", "oneOf")}
    schema = {
        "type": "object",
        "properties": fields,
        "required": [*fields],
        "additionalProperties": False,
    }
    assert sent(**PLAIN, response_schema=schema)["response_format"]["json_schema"]["strict"] is True


def test_very_large_schemas_are_not_strict() -> None:
    """Beyond the number of values that a strict schema may have."""
    fields = {name: {"enum": [f"{name}{number}" for number in range(600)]} for name in "ab"}
    schema = {
        "type": "object",
        "properties": fields,
        "required": [*fields],
        "additionalProperties": False,
    }
    found = format_asked("auto", schema, endpoint="/v1/chat/completions", lane="api", params=())
    assert "larger or deeper" in found.why


OWN = {"type": "text"}


def test_what_a_body_says_itself_counts() -> None:
    """A batch line keeps its own format, and one with an engine's own constraint gets no second
    one."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert sent(body | {"response_format": OWN}, response_schema=STRICT)["response_format"] == OWN
    assert sent(body, response_schema=STRICT)["response_format"]["type"] == "json_schema"
    assert "response_format" not in sent(
        body | {"structured_outputs": {"choice": ["a"]}}, response_schema=STRICT
    )


def test_what_the_job_says_itself_counts() -> None:
    """By --param for all rows, and by --param-field for those whose column says something."""
    given = PLAIN | {"response_schema": STRICT}
    assert sent(**given, params={"response_format": OWN})["response_format"] == OWN
    assert "response_format" not in sent(**given, params={"guided_json": {}})
    by_column = given | {"param_fields": {"response_format": "form"}}
    assert sent(ROW | {"form": OWN}, **by_column)["response_format"] == OWN
    assert sent(ROW, **by_column)["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"response_format": "none"}, "response_format is none"),
        ({"endpoint": "/v1/completions"}, "/v1/completions have no field for it"),
        ({"response_schema": {"type": "array"}}, "schemas of objects only"),
    ],
)
def test_where_nothing_is_sent_it_is_said_why(given: dict[str, Any], why: str) -> None:
    """Answers are checked all the same, and preview says that requests do not ask for it."""
    spec = PLAIN | {"response_schema": STRICT} | given
    assert "response_format" not in sent(**spec)
    assert why in JobSpec.from_json(spec).asked_format.in_words


def test_a_lane_with_its_own_model_takes_any_schema() -> None:
    """vLLM keeps to lists as well as to objects; what an engine in the worker is to keep to follows
    the option."""
    spec = JobSpec(lane="gpu", response_schema={"type": "array"})
    assert (spec.asked_format.format or {})["json_schema"]["schema"] == {"type": "array"}
    assert spec.enforced_schema == {"type": "array"}
    assert (
        JobSpec(
            lane="gpu", response_schema={"type": "array"}, response_format="none"
        ).enforced_schema
        is None
    )


def test_any_json_object_can_be_asked_for() -> None:
    """For providers that take no schemas."""
    assert sent(**PLAIN, response_schema=STRICT, response_format="json_object")[
        "response_format"
    ] == {"type": "json_object"}
    assert sent(**PLAIN, response_format="json_object")["response_format"] == {
        "type": "json_object"
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"response_format": "yaml"},
            "'yaml' is refused; give one of auto, json_schema, json_object, none",
        ),
        ({"response_format": "json_schema"}, "there is no schema to ask for"),
        (
            {"response_format": "json_object", "endpoint": "/v1/embeddings"},
            "/v1/embeddings has no parameter response_format",
        ),
        (
            {"response_format": "json_object", "params": {"response_format": OWN}},
            "keep one of them",
        ),
    ],
)
def test_formats_that_cannot_be_are_refused_with_their_fix(
    given: dict[str, Any], told: str
) -> None:
    """Before anything is accepted."""
    with pytest.raises(SpecError) as caught:
        JobSpec.from_json(PLAIN | given)
    assert told in str(caught.value)


def test_a_job_of_a_release_before_goes_on_as_it_began() -> None:
    """Its stored spec has no such option, and the rest of its documents are asked as the first ones
    were."""
    stored = JobSpec.from_json(PLAIN | {"response_schema": STRICT}).to_json()
    del stored["response_format"]
    spec = JobSpec.accepted(stored)
    assert "response_format" not in orjson.loads(form_of(spec).request(ROW))
    assert JobSpec.accepted(spec.to_json()).asked_format.format is None
    assert JobSpec.from_json(spec.to_json()).response_format == "auto"
