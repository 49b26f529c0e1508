"""What is said where a budget is spent, and what a call may cost."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest
from attempts import make_attempt

from penstock_ledger import FIGURE_MAX, Job, JobState
from penstock_ledger.reasons import Reason, by_hand, explain
from penstock_ledger.texts import SetOption
from penstock_producer.accepting.estimates import (
    ANSWERS_MAX,
    MEDIA,
    OUTPUT_MAX,
    answers_asked,
    by_script,
    output_asked,
)
from penstock_producer.prices import (
    ModelPrices,
    is_budget_spent,
    next_budget,
    next_month,
    spent_budget,
    spent_tenant_budget,
)
from penstock_producer.reporting.pauses import advice_for, pause_lines
from penstock_workers.item.run.cost import (
    BYTES_PER_TOKEN,
    MEDIA_TOKENS,
    dearest,
    may_cost,
    prompt_bound,
)
from penstock_workers.item.spent import Spent
from penstock_workers.settings import ProviderSettings


def test_the_reason_says_what_finishing_costs_and_how_to_go_on() -> None:
    """A person reads what is spent, what the rest is expected to cost, and a command with a budget
    that pays for it."""
    reason = spent_budget(budget_usd=12.5, spent_usd=12.4, left=3_100, mean_usd=4.0 / 3_100)
    assert explain(reason) == (
        "budget_exhausted: 12.40 USD of 12.5 are spent; the 3,100 documents left cost about 4.00 "
        "USD more"
    )
    (advice,) = advice_for(reason)
    assert advice.action == SetOption("budget_usd", 19.0)
    job = paused({}, reason)
    assert pause_lines(job, " --state x")[0].endswith(
        ":  penstock resume j --budget-usd 19 --state x"
    )
    assert is_budget_spent(reason)
    assert not is_budget_spent(by_hand("budget_exhausted: 1.00 USD of 1 are spent"))
    assert not is_budget_spent(None)


def test_the_reason_says_what_is_not_known() -> None:
    """Before any cost is known the next call's estimate stands for all; an open job has no number
    of documents yet."""
    reason = spent_budget(budget_usd=0.01, spent_usd=0.0, left=2, mean_usd=None, next_usd=0.02)
    assert (
        "0.00 USD of 0.01 are spent, and the next call may cost 0.020; the 2 documents left cost "
        "at most about 0.040"
    ) in explain(reason)
    assert reason.number("enough_usd") == 0.044
    of_batch = spent_budget(
        budget_usd=1, spent_usd=1, left=None, mean_usd=1, next_usd=2, batch_documents=40
    )
    assert explain(of_batch).endswith(
        "and the next batch of 40 documents may cost 2.00; how many documents are left is not "
        "known yet"
    )
    assert of_batch.number("enough_usd") == 2.0


@pytest.mark.parametrize(
    ("wanted", "said"), [(18.04, "19"), (0.0181, "0.019"), (17.0, "17"), (1_234.0, "1300")]
)
def test_a_budget_is_proposed_in_two_digits_upwards(wanted: float, said: str) -> None:
    """A sum that is cut off would pause the job again."""
    assert next_budget(wanted) == said


def test_the_reason_of_a_tenants_pause_names_the_month_and_the_command_that_helps() -> None:
    """A new month does not help this job, and resuming by hand does not: what does is said where a
    person looks."""
    reason = spent_tenant_budget(
        "shop", "2026-12", budget_usd=5.0, spent_usd=4.9, left=3, mean_usd=0.1, next_usd=0.2
    )
    said = explain(reason)
    assert "tenant 'shop' may spend on jobs of 2026-12" in said
    assert "new jobs have the next month's budget, from 2027-01-01 (UTC)" in said
    assert (next_month("2026-01"), next_month("2026-11")) == ("2026-02-01", "2026-12-01")
    assert pause_lines(paused({"tenant": "shop"}, reason), "") == [
        "it goes on by itself once its tenant has a larger budget:  "
        "penstock keys create NAME --tenant shop --budget-usd 5.8"
    ]


def test_the_sum_that_is_proposed_has_room_for_the_next_call() -> None:
    """A cheap mean so far says nothing of a dear next call."""
    reason = spent_budget(
        budget_usd=0.001, spent_usd=0.0009, left=1, mean_usd=0.0001, next_usd=0.0005
    )
    assert 0.0014 <= (reason.number("enough_usd") or 0.0) <= 0.0016


def paused(spec: dict[str, Any], why: Reason) -> Job:
    return Job("j1", "j", spec, {}, "", JobState.PAUSED, explain(why), 1, 10, 0.0, None, why=why)


def test_a_call_may_cost_what_its_dearest_tokens_cost() -> None:
    """The answer at its longest, each of its choices, and the prompt as one that is written to the
    prompt cache."""
    prices = {"m": {"input": 1.0, "output": 10.0, "cache_write": 2.0, "reasoning": 20.0}}
    provider = ProviderSettings.model_validate({"base_url": "http://x", "prices": prices})
    body = (
        b'{"model": "m", "max_tokens": 100, "n": 2, "messages": [{"role": "user", "content": '
        b'"%s"}]}'
    ) % (b"word " * 20)
    attempt = make_attempt(body=body, settings=provider, model="m", budget_usd=1.0)
    call = may_cost(attempt)
    assert call is not None
    assert call.is_most
    assert 2 * 100 * 20 < call.estimate <= 2 * 100 * 20 + len(body)
    attempt.spent = Spent(1, 1, 77)
    assert may_cost(attempt) == call._replace(paid=77)


@pytest.mark.parametrize("absurd", [2**64 - 1, -5, True, 1e9, "7"])
@pytest.mark.parametrize("in_batch", [False, True])
def test_absurd_figures_of_a_request_stay_within_the_ledgers_bounds(
    absurd: object, in_batch: bool
) -> None:
    """What a row says of its answer is bounded or not believed, so that its cost always fits where
    it is kept."""
    body = orjson.dumps({"max_tokens": absurd, "n": absurd})
    prices = ModelPrices(input=1.0, output=1_000.0)
    cost, is_most = dearest(prices, body, 10, in_batch=in_batch)
    believed = absurd == 2**64 - 1
    assert (cost, is_most) == ((FIGURE_MAX, True) if believed else (256_010, False))
    assert output_asked(orjson.loads(body)) == (OUTPUT_MAX if believed else None)
    assert answers_asked(orjson.loads(body)) == (ANSWERS_MAX if believed else 1)


def test_every_api_says_in_its_own_way_how_many_answers_it_wants() -> None:
    """Those that are written and not shown are paid for, too."""
    assert answers_asked({"n": 2, "best_of": 5}) == 5
    assert answers_asked({"generationConfig": {"candidateCount": 3}}) == 3
    assert answers_asked([1]) == 1


def test_no_second_field_makes_a_dear_request_look_cheap() -> None:
    """An API passes over fields that it does not know; one call with a list of prompts pays an
    answer to each."""
    assert (
        output_asked({"max_completion_tokens": 1, "max_tokens": 9_000, "max_output_tokens": 2})
        == 9_000
    )
    assert (
        answers_asked({"prompt": ["a", "b", "c"], "n": 2})
        == answers_asked({"prompt": [[1], [2], [3]], "n": 2})
        == 6
    )
    assert (
        answers_asked({"prompt": [17, 4, 99]})
        == answers_asked({"prompt": "abc"})
        == answers_asked({"prompt": []})
        == 1
    )


def test_a_prompt_is_bounded_by_its_length_and_files_in_it_are_not_text() -> None:
    """An image has as many tokens as one has, in each API's form; a long text that only looks like
    one counts whole."""
    texts = [b'{"a":"%s"}' % (b"word " * 500), b'{"data":"%s"}' % (b"two words " * 500)]
    assert [prompt_bound(text) for text in texts] == [
        -(-len(text) // BYTES_PER_TOKEN) for text in texts
    ]
    for form in (
        b'{"url":"data:image/png;base64,%s"}',
        b'{"data":"%s"}',
        b'{"data":"data:audio/wav;base64,%s"}',
    ):
        assert MEDIA_TOKENS < prompt_bound(form % (b"A" * 1_000_000)) < MEDIA_TOKENS + 100


@pytest.mark.parametrize(
    "text",
    [" " * 1_000_000, ("a" * 999 + " ") * 1_000, "data:;base64," * 77_000],
    ids=["blanks", "runs", "marks"],
)
def test_a_hostile_text_is_counted_in_linear_work(text: str) -> None:
    """A megabyte takes less than two seconds of the processor; work in the square of its length
    would take minutes."""
    began = time.process_time()
    by_script(text)
    MEDIA.search(text)
    prompt_bound(text.encode())
    assert time.process_time() - began < 2.0
