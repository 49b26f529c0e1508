"""Unknown names cost little, however many come and however long they are."""

from __future__ import annotations

import difflib
from typing import Any

import pytest

from penstock_producer.errors import MAX_SEEN_CHARS, SpecError, seen
from penstock_producer.job.params import SUGGESTED_MAX, UNKNOWN_MAX, param_problems
from penstock_producer.job.spec import MAX_ENTRIES, JobSpec
from penstock_producer.sources.forms.strict_json import meant


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were compared with those that exist."""
    names = list[str]()
    real = difflib.get_close_matches

    def counted(name: str, *args: Any, **options: Any) -> list[str]:
        names.append(name)
        return real(name, *args, **options)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    return names


def refused(**fields: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_json(fields)
    return caught.value


def test_the_first_unknown_names_are_compared_only(compared: list[str]) -> None:
    """Each is an error; what was meant is looked up for ten of them."""
    error = refused(**{f"promt{number}": 1 for number in range(UNKNOWN_MAX)})
    assert len(error.problems) == UNKNOWN_MAX
    assert len(compared) == SUGGESTED_MAX
    compared.clear()
    told = list(
        param_problems(
            {f"max_tokenz{number}": 1 for number in range(UNKNOWN_MAX)}, "/v1/chat/completions"
        )
    )
    assert len(told) == UNKNOWN_MAX
    assert len(compared) == SUGGESTED_MAX


def test_more_unknown_names_are_refused_at_once(compared: list[str]) -> None:
    """One problem says how many there are, and names the first."""
    error = refused(prompt="{text}", **{f"promt{number}": 1 for number in range(50_000)})
    (problem,) = error.problems
    assert problem.code == "unknown_field"
    assert "50,000" in str(error)
    assert "50,000" in error.public_message
    assert compared == []


@pytest.mark.parametrize(
    "field", ["truncate", "param_fields", "params", "examples", "fallback_on", "response_schema"]
)
def test_fields_with_many_entries_are_refused_at_once(field: str, compared: list[str]) -> None:
    """Each entry would be a problem of its own."""
    is_list = field in ("examples", "fallback_on")
    many: Any = [1] * 100_000 if is_list else {f"k{number}": [] for number in range(100_000)}
    (problem,) = refused(**{field: many}).problems
    assert problem.pointer == f"/{field}"
    assert f"{MAX_ENTRIES:,}" in problem.fix
    assert compared == []


def test_a_long_name_is_cut_wherever_it_is_shown(compared: list[str]) -> None:
    """Ten megabytes in a pointer or a message would come back in each error."""
    name = "max_tokens" * 1_000_000
    assert meant(name, {name[:-1]: 1}) == ""
    for error in (refused(**{name: 1}), refused(params={name: 1}), refused(truncate={name: []})):
        assert len(str(error)) < 2_000
        assert len(error.problems[0].pointer) < 200
    assert compared == []


def test_no_more_of_a_value_is_written_than_is_shown() -> None:
    """A million objects, or a thousand levels, cost no more than a few."""

    class Counted:
        written = 0

        def __repr__(self) -> str:
            Counted.written += 1
            return "one"

    assert seen([Counted()] * 1_000_000).endswith("…")
    assert Counted.written < MAX_SEEN_CHARS
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert len(seen(deep)) == MAX_SEEN_CHARS


@pytest.mark.parametrize(
    "value", [[], {}, [1, "a", None], {"a": [1.5, {"b": b"x"}], "c": True}, (1,), "it's", 10**30]
)
def test_a_short_value_is_shown_as_python_writes_it(value: Any) -> None:
    """Lists and objects of a few values look as they did."""
    assert seen(value) == repr(value)
