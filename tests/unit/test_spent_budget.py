"""What is said where a budget is spent, and what a call may cost."""

from __future__ import annotations

import pytest
from attempts import make_attempt

from penstock_producer.prices.spent_budget import budget_of, next_budget, spent_budget, without_command
from penstock_workers.item.run.may_cost import may_cost
from penstock_workers.item.spent import Spent
from penstock_workers.settings import ProviderSettings


def test_the_reason_says_what_finishing_costs_and_how_to_go_on() -> None:
    """A person reads what is spent, what the rest is expected to cost, and a command with a budget that pays for it."""
    said = spent_budget("reviews", budget_usd=12.5, spent_usd=12.4, left=3_100, mean_usd=4.0 / 3_100)
    assert said == (
        "budget_exhausted: 12.40 USD of 12.5 are spent; the 3,100 documents left cost about 4.00 USD more: "
        "penstock resume reviews --budget-usd 19"
    )
    assert budget_of(said) == 12.5
    assert without_command(said).endswith("4.00 USD more")
    assert budget_of("unauthorized: the key") is None
    assert budget_of(None) is None


def test_the_reason_says_what_is_not_known() -> None:
    """Before any cost is known the next call's estimate stands for all; an open job has no number of documents yet."""
    said = spent_budget("j", budget_usd=0.01, spent_usd=0.0, left=2, mean_usd=None, next_usd=0.02)
    assert (
        "0.00 USD of 0.01 are spent, and the next call may cost 0.020; the 2 documents left cost at most about 0.040"
        in said
    )
    assert said.endswith("--budget-usd 0.044")
    assert "is not known yet: penstock resume j --budget-usd 2" in spent_budget(
        "j", budget_usd=1, spent_usd=1, left=None, mean_usd=1
    )


@pytest.mark.parametrize(("wanted", "said"), [(18.04, "19"), (0.0181, "0.019"), (17.0, "17"), (1_234.0, "1300")])
def test_a_budget_is_proposed_in_two_digits_upwards(wanted: float, said: str) -> None:
    """A sum that is cut off would pause the job again."""
    assert next_budget(wanted) == said


def test_a_call_may_cost_what_its_dearest_tokens_cost() -> None:
    """The answer at its longest, each of its choices, and the prompt as one that is written to the prompt cache."""
    prices = {"m": {"input": 1.0, "output": 10.0, "cache_write": 2.0, "reasoning": 20.0}}
    provider = ProviderSettings.model_validate({"base_url": "http://x", "prices": prices})
    body = b'{"model": "m", "max_tokens": 100, "n": 2, "messages": [{"role": "user", "content": "%s"}]}' % (
        b"word " * 20
    )
    attempt = make_attempt(body=body, settings=provider, model="m", budget_usd=1.0)
    call = may_cost(attempt)
    assert call is not None
    assert call.is_most
    assert 2 * 100 * 20 < call.estimate <= 2 * 100 * 20 + len(body)
    attempt.spent = Spent(1, 1, 77)
    assert may_cost(attempt) == call._replace(paid=77)
