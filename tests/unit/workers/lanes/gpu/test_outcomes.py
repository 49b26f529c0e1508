"""What becomes of requests that an engine did not answer, and of fields that hold what they cannot.

No engine is needed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_workers.item.answer import Answer
from penstock_workers.item.failures import Failure, name_failure
from penstock_workers.item.run.fates import FATES
from penstock_workers.lanes.gpu.engine.engines import RequestRefused
from penstock_workers.lanes.gpu.requests.fields import KINDS, check_types
from penstock_workers.lanes.gpu.requests.replies import REASONS, unanswered
from penstock_workers.lanes.gpu.requests.sampling import sampling_params


def completion(reason: str | None, text: str = "yes") -> Any:
    return SimpleNamespace(finish_reason=reason, text=text)


@pytest.mark.parametrize("reason", ["abort", "error", "repetition", "something new", None])
def test_a_request_that_was_not_answered_is_no_result(reason: str | None) -> None:
    """Whatever text there is beside it: it is a failure that is tried again (H1)."""
    missing = unanswered([completion("stop"), completion(reason)])
    assert missing is not None
    assert FATES[missing.failure].outcome.__name__ == "Retry"


def test_answers_are_those_that_ended_or_were_cut() -> None:
    """`stop` and `length` alone; a cut answer says so in its own finish reason."""
    assert {reason for reason in REASONS if unanswered([completion(reason)]) is None} == {
        "stop",
        "length",
    }


def test_an_answer_without_text_is_none() -> None:
    """Nothing at all, or nothing before the cut, which says what to do; a request for a number of
    tokens gets its tokens."""
    ended, cut = unanswered([completion("stop", "")]), unanswered([completion("length", "")])
    assert ended is not None
    assert cut is not None
    assert (ended.failure, cut.failure) == ("empty_answer", "empty_answer")
    assert "raise max_tokens" in cut.detail
    assert unanswered([completion("length", "")], wants_text=False) is None


@pytest.mark.parametrize(
    ("reason", "name"), [("error", "error_in_answer"), ("abort", "engine_aborted")]
)
def test_a_servers_200_with_such_a_reason_is_a_failure(reason: str, name: str) -> None:
    """vLLM's server answers 200 with `abort` and half a text while it ends: that is not a result,
    either (H1)."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "half"},
        "finish_reason": reason,
    }
    named = name_failure(Answer(200, {}, json.dumps({"choices": [choice]}).encode(), 5), 0.0)
    assert isinstance(named, Failure)
    assert named.name == name


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": "hot"},
        {"temperature": True},
        {"n": 0},
        {"n": 10**6},
        {"top_k": 2**40},
        {"seed": 2**63},
        {"seed": 1.5},
        {"stop": [1]},
        {"bad_words": "no"},
        {"ignore_eos": "yes"},
        {"logprobs": "many"},
        {"logprobs": -1},
        {"top_logprobs": -1},
        {"model": ["m"]},
        {"response_format": "json"},
        {"structured_outputs": []},
        {"dimensions": "2"},
        {"reasoning_effort": 3},
    ],
)
def test_a_wrong_type_is_refused_with_field_value_and_what_it_takes(body: dict[str, Any]) -> None:
    """At once, instead of four times as an unexpected error; nothing of it reaches the engine."""
    [(name, value)] = body.items()
    with pytest.raises(RequestRefused) as caught:
        check_types(body)
    said = str(caught.value)
    assert said.startswith(f"{name} is {value!r}: give ")


@pytest.mark.parametrize(
    ("given", "said"), [(False, "is False"), ([], r"is \[\]"), (None, "is missing")]
)
def test_a_schema_that_is_no_object_is_refused_as_what_it_is(given: Any, said: str) -> None:
    """One that is there is not called missing (H7)."""
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": given}}
    with pytest.raises(RequestRefused, match=f"json_schema.schema {said}: give"):
        sampling_params({"response_format": asked}, defaults={}, max_tokens=1, schema=None)


def test_what_may_leave_no_token_is_refused() -> None:
    """A schema beside a list of allowed tokens: where they have none in common the engine gives the
    request up, each time."""
    body = {"allowed_token_ids": [1], "response_format": {"type": "json_object"}}
    with pytest.raises(RequestRefused, match="allowed_token_ids"):
        sampling_params(body, defaults={}, max_tokens=1, schema=None)
    with pytest.raises(RequestRefused, match="allowed_token_ids"):
        sampling_params(
            {"allowed_token_ids": [1]}, defaults={}, max_tokens=1, schema={"type": "boolean"}
        )


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(body=st.dictionaries(st.sampled_from(sorted(KINDS)), JSON, max_size=6))
def test_whatever_a_document_holds_is_taken_or_refused_by_name(body: dict[str, Any]) -> None:
    """No other error comes of any value."""
    try:
        check_types(body)
    except RequestRefused as error:
        assert str(error).partition(" ")[0] in body  # noqa: PT017 -- it may be refused or not
