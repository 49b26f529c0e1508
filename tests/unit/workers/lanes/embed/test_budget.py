"""The token budget finds what is fastest, and what fits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from penstock_workers.lanes.embed.buckets import (
    MAX_TOKEN_BUDGET,
    MIN_TOKEN_BUDGET,
    RATES_KEPT,
    RUNGS,
    START_TOKEN_BUDGET,
    TRIAL_BATCHES,
    TokenBudget,
)


def work(budget: TokenBudget, rate: Callable[[int], float], trials: int) -> list[int]:
    """Compute full batches on a machine that does ``rate(budget)`` tokens a second; the budgets
    that were tried."""
    tried = []
    for _ in range(trials):
        tried.append(budget.limit)
        # batches or seconds, whichever takes longer
        tokens = max(budget.limit, round(rate(budget.limit)))
        for _ in range(TRIAL_BATCHES):
            budget.computed(tokens, tokens / rate(budget.limit))
    return tried


def peak_at(best: int) -> Callable[[int], float]:
    return lambda limit: 10_000.0 * min(limit / best, best / limit) ** 0.5


def test_the_ladder_is_what_its_ends_say() -> None:
    """The budget's steps go from its least to its largest value, and the first one is a step."""
    assert (RUNGS[0], RUNGS[-1]) == (MIN_TOKEN_BUDGET, MAX_TOKEN_BUDGET)
    assert START_TOKEN_BUDGET in RUNGS


@pytest.mark.parametrize("best", RUNGS)
def test_it_climbs_to_where_the_machine_is_fastest(best: int) -> None:
    """Within two dozen trials, from either side, and there it stays."""
    budget = TokenBudget()
    work(budget, peak_at(best), 24)
    assert work(budget, peak_at(best), 10) == [best] * 10


def test_on_a_plateau_it_takes_the_smallest() -> None:
    """Where all budgets are equally fast it goes down, because small batches answer sooner, and
    does not wander."""
    budget = TokenBudget()
    tried = work(budget, lambda _: 5_000.0, RATES_KEPT // 2)
    assert set(tried[8:]) == {MIN_TOKEN_BUDGET}


def test_it_looks_again_when_the_machine_has_changed() -> None:
    """When another budget has become the fastest, the search finds it."""
    budget = TokenBudget()
    work(budget, peak_at(1_024), 20)
    work(budget, peak_at(8_192), 3 * RATES_KEPT)
    assert budget.limit == 8_192


def test_it_moves_a_step_at_a_time() -> None:
    """From one batch to the next the budget doubles, halves or stays."""
    budget = TokenBudget()
    tried = work(budget, peak_at(MAX_TOKEN_BUDGET), 30)
    assert all(after in (before // 2, before, before * 2) for before, after in pairwise(tried))


def test_out_of_memory_halves_it_and_climbing_stops_below() -> None:
    """What did not fit is not tried again while it climbs."""
    budget = TokenBudget()
    budget.out_of_memory(START_TOKEN_BUDGET)
    assert budget.limit == START_TOKEN_BUDGET // 2
    assert max(work(budget, peak_at(MAX_TOKEN_BUDGET), RATES_KEPT - 1)) == START_TOKEN_BUDGET // 2


def test_memory_never_pushes_it_below_the_least() -> None:
    """However often memory runs out, the budget stays at its least value."""
    budget = TokenBudget()
    for _ in range(20):
        budget.out_of_memory(100)
    assert budget.limit == MIN_TOKEN_BUDGET


def test_a_fixed_budget_is_left_alone_but_for_memory() -> None:
    """A budget set by the user is not searched, but halved when memory runs out."""
    budget = TokenBudget(fixed=3_000)
    work(budget, peak_at(512), 20)
    assert budget.limit == 3_000
    budget.out_of_memory(3_000)
    assert budget.limit == 1_500
