from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_producer.accepting.acceptance import check_acceptable
from penstock_producer.errors import SpecError
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.job.request_body import BodyBuilder
from penstock_producer.job.spec import JobSpec


def refusal(**fields: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_json(fields)
    return caught.value


def test_only_lanes_that_make_vectors_take_their_type() -> None:
    """`embedding_dtype` goes with each request as output_dtype; elsewhere it would be ignored, and
    is refused."""
    spec = JobSpec(lane="embed", endpoint="/v1/embeddings", prompt="{text}", embedding_dtype="int8")
    check_acceptable(spec, ProviderFacts())
    assert json.loads(BodyBuilder(spec)("a")) == {"input": "a", "output_dtype": "int8"}
    with pytest.raises(SpecError, match="/embedding_dtype"):
        check_acceptable(
            JobSpec(model="m", prompt="{text}", embedding_dtype="int8"), ProviderFacts()
        )
    with pytest.raises(SpecError, match="float32"):
        JobSpec.from_json({"embedding_dtype": "int4"})


def test_defaults_make_a_spec() -> None:
    """A spec needs no field at all."""
    spec = JobSpec()
    assert (spec.lane, spec.endpoint, spec.max_attempts, spec.max_bad_rows) == (
        "api",
        "/v1/chat/completions",
        4,
        "1%",
    )


def test_survives_the_ledger() -> None:
    """What the ledger stores reads back as the same spec."""
    spec = JobSpec(
        model="m", prompt="Sum: {text}", params={"max_tokens": 5, "temperature": 0}, budget_usd=1
    )
    assert JobSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_attempt", "max_attempts"),
        ("promt", "prompt"),
        ("max_token", "params.max_tokens"),
        ("temperature", "params.temperature"),
        ("zzz", "fields are"),
    ],
)
def test_unknown_fields_are_refused_with_a_hint(name: str, hint: str) -> None:
    """A typo is refused, never ignored, and the message says what was probably meant."""
    error = refusal(**{name: 1})
    assert error.problems[0].code == "unknown_field"
    assert error.problems[0].pointer == f"/{name}"
    assert hint in str(error)


@pytest.mark.parametrize("value", [True, 0, -1, 1.5, "3", None, 101, [4]])
def test_attempts_are_a_strict_positive_integer(value: Any) -> None:
    """Booleans, floats, text, zero and negative numbers are not a number of attempts."""
    assert refusal(max_attempts=value).problems[0].pointer == "/max_attempts"


@pytest.mark.parametrize("value", [True, 0, -0.5, "1", float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["budget_usd", "deadline_s", "timeout_s"])
def test_amounts_are_positive_finite_numbers(field: str, value: Any) -> None:
    """Money and time limits are positive finite numbers, not text or booleans."""
    assert refusal(**{field: value}).problems[0].pointer == f"/{field}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", "high"),
        ("priority", 0),
        ("weight", 0),
        ("weight", -1),
        ("weight", 100.5),
        ("weight", True),
        ("weight", "2"),
        ("weight", float("nan")),
        ("tenant", ""),
        ("tenant", "a b"),
        ("tenant", "x" * 65),
    ],
)
def test_a_place_in_line_is_one_that_can_be(field: str, value: Any) -> None:
    """Priorities are known words, weights are above 0 and at most 100, tenants are short names."""
    assert refusal(**{field: value}).problems[0].pointer == f"/{field}"


def test_a_place_in_line_survives_the_ledger() -> None:
    """Priority, weight and tenant of a spec come back from its JSON, and have defaults."""
    spec = JobSpec(priority="urgent", weight=2.5, tenant="team-a/night")
    assert JobSpec.from_json(spec.to_json()) == spec
    assert (JobSpec().priority, JobSpec().weight, JobSpec().tenant) == ("normal", 1.0, None)


@pytest.mark.parametrize("value", [True, 0, -1, 1.5, "3"])
def test_max_tokens_is_a_strict_positive_integer(value: Any) -> None:
    """A bad max_tokens is refused before a million requests carry it."""
    error = refusal(params={"max_tokens": value})
    assert error.problems[0].pointer == "/params/max_tokens"


def test_streaming_is_refused() -> None:
    """Results are stored whole, so `stream: true` is refused at once."""
    assert refusal(params={"stream": True}).problems[0].code == "streaming_unsupported"


@pytest.mark.parametrize("value", ["1", "x%", "101%", -1, True, 1.0, "-1%"])
def test_bad_row_limits_are_a_count_or_a_share(value: Any) -> None:
    """max_bad_rows takes a count or a percentage and nothing else."""
    assert refusal(max_bad_rows=value).problems[0].pointer.startswith("/max_bad_rows")


@pytest.mark.parametrize(
    ("limit", "total", "allowed"),
    [
        ("1%", 250, 3),
        ("0.5%", 250, 2),
        (7, 250, 7),
        ("0%", 250, 0),
        ("100%", 250, 250),
        ("1%", 40, 1),
        ("1%", 300, 3),
        ("99%", 2, 1),
        ("1%", 1, 0),
        ("100%", 1, 1),
    ],
)
def test_shares_round_up(limit: int | str, total: int, allowed: int) -> None:
    """One bad row of forty is within a per cent; a source of bad rows alone never is."""
    assert JobSpec(max_bad_rows=limit).bad_rows_allowed(total) == allowed


def test_every_problem_is_named_at_once() -> None:
    """One error lists all problems, each with its pointer."""
    assert {
        problem.pointer for problem in refusal(lane="gpuu", max_attempts=0, promt="x").problems
    } == {
        "/lane",
        "/max_attempts",
        "/promt",
    }


def test_a_bad_template_is_a_spec_error() -> None:
    """A broken prompt is found when the spec is made, not at the first document."""
    assert refusal(prompt='Return {"a": 1}').problems[0].pointer == "/prompt"


def test_a_system_text_without_a_prompt_is_refused() -> None:
    """A system text would be ignored for batch lines, so it is refused."""
    assert refusal(system="Be brief").problems[0].pointer == "/system"


def test_specs_are_frozen() -> None:
    """A spec does not change once it is accepted."""
    with pytest.raises(Exception, match="frozen"):
        JobSpec().model = "other"


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"max_token": 20}, "did you mean 'max_tokens'?"),
        ({"temprature": 0}, "did you mean 'temperature'?"),
        ({"temperature": 2.5}, "give a number from 0 to 2"),
        ({"top_p": "0.5"}, "give a number from 0 to 1"),
        ({"stop": 5}, "give text or a list"),
        ({"x.": 1}, "is not the name of a parameter"),
        ({"x.stream": True}, "remove it"),
        ({"messages": []}, "messages is not a parameter"),
    ],
)
def test_request_parameters_are_checked_by_the_table(params: dict[str, Any], told: str) -> None:
    """A misspelt parameter, a wrong type or a value out of range is refused before a million
    requests carry it (D12)."""
    assert told in str(refusal(params=params))


def test_a_parameter_belongs_to_its_endpoint() -> None:
    """What chat takes is refused for embeddings, and nothing is checked where the endpoint is
    unknown (D12)."""
    assert "no parameter 'temperature'" in str(
        refusal(endpoint="/v1/embeddings", params={"temperature": 0})
    )
    assert JobSpec(endpoint="/v1/embeddings", params={"dimensions": 64}).params == {
        "dimensions": 64
    }
    assert JobSpec(endpoint="/v1/rerank", params={"top_n": 3}).params == {"top_n": 3}


def test_a_providers_own_parameter_passes_with_the_prefix() -> None:
    """`x.NAME` is sent as NAME, unchecked (D12)."""
    spec = JobSpec(model="m", prompt="{text}", params={"x.safe_mode": "on", "top_k": 4})
    assert (
        BodyBuilder(spec)("hi")
        == b'{"model":"m","messages":[{"role":"user","content":"hi"}],"safe_mode":"on","top_k":4}'
    )


def test_a_job_of_an_earlier_release_is_still_read() -> None:
    """A parameter that is refused today does not stop a job that was accepted yesterday (D12)."""
    stored = JobSpec().to_json() | {"params": {"max_token": 20}}
    assert JobSpec.accepted(stored).params == {"max_token": 20}
    with pytest.raises(SpecError):
        JobSpec.from_json(stored)


def test_a_refusal_is_one_sentence() -> None:
    """No preamble of the library that checks stands in front of the fix (D40)."""
    assert "Value error" not in str(refusal(max_bad_rows="x%"))


def test_every_field_has_a_description() -> None:
    """`help(JobSpec)` and a JSON schema of it say what each field means (D33)."""
    assert [name for name, field in JobSpec.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("params", {"seed": 2**70}),
        ("params", {"stop": ["\ud800"]}),
        (
            "response_schema",
            {"type": "object", "properties": {"n": {"type": "integer", "maximum": 10**30}}},
        ),
    ],
)
def test_what_no_json_is_written_of_is_refused(name: str, value: object) -> None:
    """A spec is kept as JSON, so it is a problem of its field, not a fault of the server that keeps
    it."""
    refused = refusal(model="m", prompt="{text}", **{name: value})
    assert [problem.pointer for problem in refused.problems] == [f"/{name}"]
