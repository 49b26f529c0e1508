"""What a request is taken to cost before it is sent, and what its answers teach."""

from __future__ import annotations

import orjson
import pytest
from attempts import make_attempt
from msgspec import structs

from penstock_workers.item.answer_forms import counted, usage_of
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Reply
from penstock_workers.lanes.api.admission import LEARN_EVERY, Costs, quotas
from penstock_workers.settings import ProviderSettings, WorkerSettings


def attempt(text: str, *, job: str = "job", **params: object) -> Attempt:
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **params})
    return make_attempt(job_id=job, body=body)


def answered(prompt: int, completion: int) -> Reply:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return Reply(b"{}", 200, None, "m", "stop", prompt, completion, "text", 5, usage)


def costs(**provider: object) -> Costs:
    return Costs(
        {
            "default": ProviderSettings.model_validate(
                {"base_url": "http://localhost/v1", **provider}
            )
        }
    )


def test_documents_of_a_job_teach_what_the_next_ones_cost() -> None:
    """After some answers the estimate is near the truth, whatever the first guess was."""
    known = costs()
    for _ in range(20):
        known.observe(attempt("x" * 4_000), answered(5_000, 40))
    reserved, _ = known.of(attempt("x" * 4_000))
    assert reserved["tokens"] == pytest.approx(5_045, rel=0.05)


def test_jobs_do_not_teach_each_other() -> None:
    """Another job asks other things of another model."""
    known = costs()
    before, _ = known.of(attempt("x" * 4_000, job="other"))
    for _ in range(20):
        known.observe(attempt("x" * 4_000), answered(5_000, 40))
    assert known.of(attempt("x" * 4_000, job="other"))[0] == before


def test_what_is_charged_at_admission_follows_the_profile() -> None:
    """Where max_tokens is charged it is reserved whole; elsewhere what such answers usually
    take."""
    item = attempt("a question", max_tokens=4_000)
    assert costs(profile="openai").of(item)[0]["tokens"] > 4_000
    assert costs(profile="generic").of(item)[0]["tokens"] < 400


def test_a_picture_in_the_body_is_not_taken_for_its_length_in_text() -> None:
    """A megabyte of base64 may be a thousand tokens: nothing of it is certain.

    A megabyte of text is."""
    picture = attempt("data:image/png;base64," + "A" * 1_000_000)
    text = attempt("A" * 1_000_000)
    assert costs().of(picture)[1]["tokens"] == 0
    assert costs().of(text)[1]["tokens"] > 30_000


def test_an_answer_without_usage_teaches_nothing() -> None:
    """The request stays charged as it was reserved."""
    known = costs()
    before = known.of(attempt("x"))
    assert (
        known.observe(attempt("x"), Reply(b"{}", 200, None, "m", "stop", None, None, "text", 5))
        is None
    )
    assert known.of(attempt("x")) == before


def test_what_is_not_asked_for_is_not_worked_out() -> None:
    """A request to a provider without limits is not even read for what it costs; one look at a cost
    reads it once."""
    known, item = costs(), attempt("a question", max_tokens=40)
    whole = known.of(item)
    read: list[Attempt] = []

    def of(attempt: Attempt) -> tuple[dict[str, float], dict[str, float]]:
        read.append(attempt)
        return whole

    known.of = of  # type: ignore[method-assign]  # counts how often it is asked
    reserved, certain = known.when_asked(item)
    assert read == []
    assert (dict(reserved), dict(certain)) == whole
    assert reserved["requests"] == 1.0
    assert len(read) == 1


def test_without_limits_a_sample_of_the_answers_teaches() -> None:
    """Should limits be found later, it is known what items cost; each answer still says how long it
    was."""
    known = costs()
    usages = [
        known.sample(attempt("x" * 4_000), answered(5_000, 40)) for _ in range(20 * LEARN_EVERY)
    ]
    assert {usage.output_tokens for usage in usages if usage is not None} == {40}
    assert None not in usages
    reserved, _ = known.of(attempt("x" * 4_000))
    assert reserved["tokens"] == pytest.approx(5_045, rel=0.05)
    assert (
        known.sample(attempt("x"), structs.replace(answered(5_000, 40), completion_tokens=None))
        is None
    )


@pytest.mark.parametrize(("total", "completion"), [(60, 50), (40, 30), (None, 30)])
def test_reasoning_that_is_counted_beside_the_completion_is_output(
    total: int | None, completion: int
) -> None:
    """As xAI does: the total says whether the completion has it already, as OpenAI's has."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 30,
        "total_tokens": total,
        "completion_tokens_details": {"reasoning_tokens": 20},
    }
    assert counted(usage_of({"usage": usage})) == (10, completion)


@pytest.mark.parametrize(
    ("provider", "goes_alone"),
    [
        ({"base_url": "http://127.0.0.1:8000/v1"}, False),
        ({"base_url": "http://127.0.0.1:8000/v1", "api_key_env": "OWN_KEY"}, True),
        ({"kind": "vertex", "project": "p", "region": "global"}, True),
    ],
    ids=["server without keys", "key", "credentials of a cloud"],
)
def test_the_first_call_goes_alone_where_an_account_may_be_refused(
    provider: dict[str, str], goes_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong key costs one call; a server without keys has none to refuse."""
    monkeypatch.setenv("OWN_KEY", "sk-of-its-own-0001")
    (quota,) = quotas(WorkerSettings.load(providers={"default": provider}))
    assert quota.probe is goes_alone


@pytest.mark.parametrize(
    ("named", "start"),
    [
        ({}, None),
        ({"concurrency": 24}, 24),
        ({"concurrency": 640}, 32),
        ({"concurrency": 1}, 1),
    ],
)
def test_a_worker_begins_with_a_concurrency_that_was_named(
    named: dict[str, int], start: int | None
) -> None:
    """It begins with 32 of a higher one, and climbs from eight to a default, of which no one said
    that the server takes it."""
    (quota,) = quotas(WorkerSettings.load(providers={"default": {}}, **named))
    assert quota.start == start
