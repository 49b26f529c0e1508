"""Keyword arguments of a call: sorted, checked, and named where they are wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pydantic import BaseModel

from penstock.calls import columns_needed, options_of
from penstock.errors import BadCall
from penstock_producer.job.options import OPTIONS, RUN_OPTIONS


class Ticket(BaseModel):
    """What an answer is asked to be."""

    category: str


@dataclasses.dataclass
class Plain:
    """The same without Pydantic's base."""

    category: str


CALL: dict[str, Any] = {"prompt": "Categorise: {text}", "model": "m"}


def test_each_option_goes_where_it_belongs() -> None:
    """Those of a job, of the provider and of this machine; durations and lists as people type
    them; none left out is none."""
    more = {"timeout_s": "2m", "fallback": "other", "rpm": 60, "workers": 3, "tpm": None}
    found = options_of({**CALL, **more})
    assert (found.spec.timeout_s, found.spec.fallback) == (120.0, ["other"])
    assert (found.provider, found.machine) == ({"rpm": 60}, {"workers": 3})
    assert found.spec.max_bad_rows == "100%"


@pytest.mark.parametrize("given", [Ticket, Plain])
def test_a_class_is_a_schema_and_its_instances_are_values(given: Any) -> None:
    """Whatever Pydantic describes may be asked for."""
    found = options_of({**CALL, "response_format": given})
    assert found.spec.response_schema is not None
    assert "category" in found.spec.response_schema["properties"]
    assert found.model is not None
    value = found.model('{"category": "lost"}')
    assert value.category == "lost"


def test_schemas_are_taken_bare_and_as_openai_writes_them() -> None:
    """A dict is a JSON schema, or a response_format of OpenAI's with one in it; a word stays what
    each request asks for."""
    schema = Ticket.model_json_schema()
    wrapped = {"type": "json_schema", "json_schema": {"name": "ticket", "schema": schema}}
    for given in (schema, wrapped):
        assert options_of({**CALL, "response_format": given}).spec.response_schema == schema
    assert (
        options_of({**CALL, "response_format": "json_object"}).spec.response_format == "json_object"
    )


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"promt": "x"}, "'promt' is no option; did you mean 'prompt'?"),
        ({"base_ur": "x"}, "did you mean 'base_url'?"),
        ({"xyzzy": 1}, "docs/job-options.md lists them"),
        ({"timeout_s": "soon"}, "timeout_s='soon' is not a duration"),
        ({"max_attempts": 0}, "max_attempts: 0 is refused"),
        ({"model": None}, "model='…'"),
        ({"response_format": 7}, "response_format"),
    ],
)
def test_what_is_wrong_is_named_as_it_was_typed(more: dict[str, Any], says: str) -> None:
    """Arguments go by their names, never by flags of a command line."""
    with pytest.raises(BadCall) as refused:
        options_of({**CALL, **more})
    assert says in str(refused.value)
    assert "--" not in str(refused.value)


def test_no_option_of_a_run_is_out_of_reach() -> None:
    """Each flag of `penstock run` is a keyword argument, or has a reason to be none."""
    apart = {"out", "sample", "no_progress", "wait", "state"}
    for name in RUN_OPTIONS.keys() - apart:
        assert options_of({**CALL, name: None}).spec.model == "m"
    with pytest.raises(BadCall, match="no option"):
        options_of({**CALL, "no_progress": True})
    assert len(OPTIONS) > 50


def test_only_the_columns_of_requests_are_needed() -> None:
    """Those of the prompt, of parameters and of the id; all of them where a prompt may look at the
    whole row. One that is not there is named with the nearest."""
    found = options_of({**CALL, "param_fields": {"max_tokens": "length"}, "id_field": "@id"})
    assert columns_needed(["text", "length", "other"], found, None) == ["text", "length"]
    nested = options_of({**CALL, "prompt": "{user.name}", "id_field": "@id"})
    assert columns_needed(["user", "other"], nested, None) == ["user"]
    whole = options_of({**CALL, "prompt": "{{ record }}", "template": "jinja", "id_field": "@id"})
    assert columns_needed(["a", "b"], whole, None) is None
    with pytest.raises(BadCall, match="no column 'text'; did you mean 'texts'"):
        columns_needed(["texts"], options_of({**CALL, "id_field": "@id"}), None)
