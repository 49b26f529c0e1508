"""How much a budget lets into the queue."""

from __future__ import annotations

import random

import pytest

from penstock_workers.control.job.accounts import FIRST_DOCUMENTS, MICROUSD, affordable


def stats(cost_usd: float, succeeded: int, dead: int = 0) -> dict[str, int]:
    return {"cost_microusd": round(cost_usd * MICROUSD), "succeeded": succeeded, "dead": dead}


@pytest.mark.parametrize(
    ("spent", "under_way", "may"),
    [
        (stats(0, 0), 0, FIRST_DOCUMENTS),
        ({}, 1, FIRST_DOCUMENTS - 1),
        (stats(0, 0), FIRST_DOCUMENTS, 0),
        (stats(0, 10), 15, 5),
        (stats(0.2, 100), 0, 200),
        (stats(0.2, 100, dead=20), 0, 240),
        (stats(0.8, 100), 0, 25),
        (stats(0.8, 100), 15, 10),
        (stats(0.8, 100), 60, 0),
        (stats(0.01, 10), 0, 20),
        (stats(0.995, 50), 0, 0),
        (stats(1.5, 50), 0, 0),
        (stats(0.4, 0, dead=2), 0, 3),
    ],
)
def test_no_more_is_fed_than_the_rest_of_the_budget_pays_for(
    spent: dict[str, int], under_way: int, may: int
) -> None:
    """Of a budget of 1 USD: a few until a cost is known, then the rest at the mean; some more where
    all were refused (D15)."""
    assert affordable(1.0 - spent.get("cost_microusd", 0) / MICROUSD, spent, under_way) == may


def test_a_budget_is_overshot_by_the_scatter_of_costs_only() -> None:
    """With hundreds of slots and costs that scatter, a job ends within a few documents of its
    budget, not a fleetful (D15)."""
    chance, budget = random.Random(7), 1.0
    spent, finished, under_way = 0.0, 0, 0
    while True:
        room = affordable(budget - spent, stats(spent, finished), under_way)
        under_way += min(room, 512 - under_way)
        if under_way == 0 or spent >= budget:
            break
        under_way -= 1
        finished += 1
        spent += chance.uniform(0.001, 0.003)
    assert 0.99 * budget < spent + under_way * 0.002 < 1.03 * budget
