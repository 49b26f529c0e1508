"""A pause as a tenant reads it over HTTP: data of every code, without places of this machine."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_gateway.callers.caller import pause_for
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import By, Code, Reason, StopCode, by_hand, explain, read_reason
from penstock_producer.prices import spent_budget

PLACE = "/srv/penstock/files/file-0123456789abcdef01234567.jsonl"


def shown(why: Reason | None, state: JobState = JobState.PAUSED) -> dict[str, Any] | None:
    said = None if why is None else explain(why)
    source = {"kind": "file", "uri": PLACE}
    return pause_for(Job("j", "j", {}, source, "", state, said, 1, 9, 0.0, None, why=why))


def test_each_pause_is_data_with_its_sentence_and_what_to_do() -> None:
    """A program decides by the code, sends `change`, and resumes."""
    found = shown(spent_budget(budget_usd=5.0, spent_usd=4.0, left=2, mean_usd=2.0))
    assert found is not None
    assert (found["code"], found["by"], found["params"]["spent_usd"]) == (
        "budget_exhausted",
        "budget",
        4.0,
    )
    assert found["message"].startswith("budget_exhausted: 4.00 USD of 5 are spent")
    assert [one["change"] for one in found["advice"]] == [{"budget_usd": 8.8}]


def test_a_job_that_is_not_paused_has_none() -> None:
    """Nor one of which nothing was noted."""
    late = Reason(Code.DEADLINE_EXCEEDED, By.CONTROL, {"deadline_s": 5})
    assert shown(late, JobState.CANCELLED) is None
    assert shown(None) is None


def test_words_of_others_stay_and_places_go() -> None:
    """Nothing that a provider or a person says is written anew."""
    said = f"use --model m, said it of {PLACE}"
    theirs = shown(Reason("unauthorized", By.PROVIDER, {"detail": said, "fix": "check --model"}))
    ours = shown(Reason(Code.JOB_CANNOT_RUN, By.CONTROL, {"detail": said}))
    hers = shown(by_hand(said))
    assert theirs is not None
    assert ours is not None
    assert hers is not None
    assert "use --model m" in theirs["message"]
    assert theirs["params"]["fix"] == "check --model"
    assert ours["message"].startswith("use --model m")
    assert hers["message"].startswith("use --model m")
    assert not [one for one in (theirs, ours, hers) if "/srv/penstock" in str(one)]


def test_a_row_of_before_has_its_words() -> None:
    """Its code is known as far as something is decided by it."""
    found = shown(read_reason(None, "provider 'x' is not configured"))
    assert found is not None
    assert (found["code"], found["message"]) == ("unknown", "provider 'x' is not configured")


@pytest.mark.parametrize(
    "params", [{}, {"examples": 7}, {"examples": ["x"]}, {"cause": 1, "usd_per_doc": "x"}]
)
@pytest.mark.parametrize("code", [*StopCode, *Code])
def test_parameters_of_another_release_are_shown_all_the_same(
    code: str, params: dict[str, Any]
) -> None:
    """The page and the program that ask are answered."""
    found = shown(Reason(code, By.STOP_LOSS, params))
    assert found is not None
    assert found["message"]
