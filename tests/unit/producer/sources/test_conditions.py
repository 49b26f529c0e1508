"""Conditions on outcomes: what they mean, and that nothing else can be written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_producer import SpecError
from penstock_producer.sources.outcomes import MAX_CONDITIONS, Where

DEAD = {
    "id": "a",
    "status": "dead",
    "reason": "context_overflow",
    "attempts": 3,
    "error": "too long and odd",
}
DONE = {"id": "b", "status": "done", "model": "small", "answer": "text"}
ANSWER = {
    "score": 0.4,
    "label": "spam",
    "sure": False,
    "id": "own",
    "deep": {"er": 7},
    "digits": "12",
}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("status=done", True),
        ("status = dead", False),
        ("status!=dead", True),
        ("score<0.5", True),
        ("score<=0.4", True),
        ("score > 0.4", False),
        ("score>=4e-1", True),
        ("score=0.40", True),
        ("label=spam", True),
        ("label='spam'", True),
        ("label!=ham", True),
        ("sure=false", True),
        ("sure<1", False),
        ("deep.er=7", True),
        ("deep.er.est=7", False),
        ("absent=null", True),
        ("absent<1", False),
        ("absent!=1", True),
        ("id=b", True),
        ("answer.id=own", True),
        ("answer=text", True),
        ("digits=12", True),
        ("digits<13", False),
        ("score<0.5 and label=spam", True),
        ("score<0.5 and label=ham", False),
    ],
)
def test_a_condition_holds(condition: str, holds: bool) -> None:
    """Own fields by their names, all others in the answer; order is for numbers, absent is null."""
    assert Where([condition]).holds(DONE, ANSWER) is holds


def test_all_conditions_must_hold() -> None:
    """Several flags mean as much as one with `and` in it; a value may hold that word."""
    assert Where(["reason=context_overflow", "attempts>=3"]).holds(DEAD, None)
    assert not Where(["reason=context_overflow", "attempts>3"]).holds(DEAD, None)
    assert Where(["error=too long and odd"]).holds(DEAD, None)
    assert Where([]).holds(DEAD, None)


@pytest.mark.parametrize(
    ("given", "status"),
    [(["status=dead"], "dead"), (["a=1 and status=done"], "done"), (["a=1"], None)],
)
def test_one_status_spares_reading_the_other(given: list[str], status: str | None) -> None:
    """The query asks for no outcomes that cannot be chosen; an unequal status does not count."""
    assert Where(given).status == status
    assert Where(["status!=dead"]).status is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "status",
        "=dead",
        "status=",
        "status=failed",
        "score<high",
        "score<nan",
        "score<",
        "a b=1",
        "1=1",
        "__import__('os').system('true')",
        "a=1 or b=2; drop table jobs" * 200,
        "x" * 300 + "=1",
    ],
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    """With the text seen, cut, and how to write one."""
    with pytest.raises(SpecError, match="where") as caught:
        Where([text])
    assert len(str(caught.value)) < 400


def test_conditions_have_an_end() -> None:
    """More than twenty are a list of ids by mistake."""
    with pytest.raises(SpecError, match="at most 20"):
        Where([f"a={n}" for n in range(MAX_CONDITIONS + 1)])


@given(
    st.text(max_size=60),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda x: st.dictionaries(st.text(max_size=5), x, max_size=2),
        max_leaves=3,
    ),
)
def test_no_text_and_no_answer_does_harm(text: str, answer: Any) -> None:
    """Any text is read or refused, any answer compared, without another error."""
    try:
        where = Where([text])
    except SpecError:
        return
    assert where.holds(DONE, answer) in (True, False)
