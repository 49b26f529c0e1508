from __future__ import annotations

from typing import Any

import pytest

from penstock_producer.errors import SpecError
from penstock_producer.spec import JobSpec


def refusal(**fields: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_json(fields)
    return caught.value


def test_defaults_make_a_spec() -> None:
    """A spec needs no field at all."""
    spec = JobSpec()
    assert (spec.lane, spec.endpoint, spec.max_attempts, spec.max_bad_rows) == ("api", "/v1/chat/completions", 4, "1%")


def test_survives_the_ledger() -> None:
    """What the ledger stores reads back as the same spec."""
    spec = JobSpec(model="m", prompt="Sum: {text}", params={"max_tokens": 5, "temperature": 0}, budget_usd=1)
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
    """Booleans, floats, text, zero and negative numbers are no number of attempts."""
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


@pytest.mark.parametrize(("limit", "allowed"), [("1%", 2), ("0.5%", 1), (7, 7), ("0%", 0), ("100%", 250)])
def test_shares_round_down(limit: int | str, allowed: int) -> None:
    """The share of rows that may be bad rounds down."""
    assert JobSpec(max_bad_rows=limit).bad_rows_allowed(250) == allowed


def test_every_problem_is_named_at_once() -> None:
    """One error lists all problems, each with its pointer."""
    assert {problem.pointer for problem in refusal(lane="gpuu", max_attempts=0, promt="x").problems} == {
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
