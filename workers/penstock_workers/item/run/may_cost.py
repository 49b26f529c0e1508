"""What the next call of an item may cost: the dearest that its prices allow, for the budget of its job.

An engine of the worker's own is paid by the hour: what its calls cost is known when they have ended, and nothing is reserved.
"""

from __future__ import annotations

from penstock_ledger import MayCost
from penstock_producer.accepting.estimates import Measure
from penstock_producer.prices.token_prices import TokensUsed
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.settling.rows import prices_of


def may_cost(attempt: Attempt) -> MayCost | None:
    """None in a job without a budget. ``attempt.body`` is the request that is sent next, of the model that is asked."""
    if attempt.job.spec.budget_usd is None:
        return None
    prices, paid = prices_of(attempt.job, None), attempt.spent.cost_microusd
    if prices is None:
        return MayCost(paid=paid)
    tokens_in, tokens_out, capped = Measure.taken([attempt.body]).of(1)
    ways = (
        TokensUsed(tokens_in, tokens_out),
        TokensUsed(tokens_in, tokens_out, cache_written=tokens_in),
        TokensUsed(tokens_in, tokens_out, reasoning=tokens_out),
    )
    return MayCost(max(1, *map(prices.microusd, ways)), capped, paid)
