"""What the next call of an item may cost: the dearest that its prices allow, for the budget of its job.

An engine of the worker's own is paid by the hour: what its calls cost is known when they have ended, and nothing is reserved.
"""

from __future__ import annotations

from typing import Final

from penstock_ledger import MayCost
from penstock_producer.accepting.estimates import Measure
from penstock_producer.prices.token_prices import TokensUsed
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.settling.rows import prices_of

HOUR: Final = b'"1h"'
"""In every request that asks for a prompt cache of an hour, whose tokens cost more to write."""


def may_cost(attempt: Attempt) -> MayCost | None:
    """None in a job without a budget. ``attempt.body`` is the request that is sent next, of the model that is asked."""
    if attempt.job.spec.budget_usd is None:
        return None
    prices, paid = prices_of(attempt.job, None), attempt.spent.cost_microusd
    if prices is None:
        return MayCost(paid=paid)
    guess = Measure.taken([attempt.body]).of(1)
    tokens_in, tokens_out = guess.tokens_in, guess.tokens_out
    for_hour = tokens_in if HOUR in attempt.body else 0
    ways = (
        TokensUsed(tokens_in, tokens_out),
        TokensUsed(tokens_in, tokens_out, cache_written=tokens_in, cache_written_hour=for_hour),
        TokensUsed(tokens_in, tokens_out, reasoning=tokens_out),
    )
    return MayCost(max(1, *map(prices.microusd, ways)), guess.capped, paid)
