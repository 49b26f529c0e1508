"""The prices of one model, and what an answer costs by them."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Discount", "LongPrices", "ModelPrices", "TokensUsed", "usd_of_outcome"]

if TYPE_CHECKING:
    from penstock_ledger.model import DeadLetter, Result

# US dollars per million tokens. A price beyond the most that any model ever cost is a typing error.
MOST_USD: Final = 100_000.0
Usd = Annotated[float, Field(ge=0, le=MOST_USD)]
# of the provider's batches: 0.5 is half the price; None = not known
Discount = Annotated[float, Field(ge=0, le=1)] | None


class TokensUsed(NamedTuple):
    """By one answer."""

    prompt: int = 0  # with those of the prompt cache
    completion: int = 0  # with those of reasoning
    cached: int = 0  # of the prompt, read from the provider's prompt cache
    cache_written: int = 0  # of the prompt, written to it
    reasoning: int = 0  # of the completion
    # of those written to the cache: to be kept for an hour, which costs more
    cache_written_hour: int = 0


class LongPrices(BaseModel):
    """Prices of requests with more than ``above`` tokens of prompt.

    What is left out costs as in short ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    above: Annotated[int, Field(gt=0)]
    input: Usd | None = None
    output: Usd | None = None
    cached_input: Usd | None = None
    cache_write: Usd | None = None
    cache_write_hour: Usd | None = None


class ModelPrices(BaseModel):
    """US dollars per million tokens.

    What is left out costs what ``input`` or ``output`` does, and ``cache_write_hour`` what
    ``cache_write`` does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Usd
    output: Usd = 0.0
    cached_input: Usd | None = None
    cache_write: Usd | None = None
    cache_write_hour: Usd | None = None
    reasoning: Usd | None = None
    long: LongPrices | None = None
    batch_discount: Discount = None
    checked: datetime.date | None = None  # None: the operator's own
    source: str = "settings"

    def microusd(self, used: TokensUsed, *, in_batch: bool = False) -> int:
        """Return the cost of one answer in millionths of a dollar.

        Dollars per million tokens times tokens is just that. ``in_batch``: it came from a
        provider's batch. Where no discount is known for those, it costs the full price.
        """
        prices = (
            self
            if self.long is None or used.prompt <= self.long.above
            else self._for_long(self.long)
        )
        cached = min(used.cached, used.prompt)
        written = min(used.cache_written, used.prompt - cached)
        reasoning = 0 if prices.reasoning is None else min(used.reasoning, used.completion)
        for_hour, to_write = (
            min(used.cache_written_hour, written),
            _or(prices.cache_write, prices.input),
        )
        cost = (
            (used.prompt - cached - written) * prices.input
            + cached * _or(prices.cached_input, prices.input)
            + (written - for_hour) * to_write
            + for_hour * _or(prices.cache_write_hour, to_write)
            + (used.completion - reasoning) * prices.output
            + reasoning * _or(prices.reasoning, prices.output)
        )
        return round(cost * (1.0 - (self.batch_discount or 0.0) if in_batch else 1.0))

    def _for_long(self, long: LongPrices) -> ModelPrices:
        return self.model_copy(update=long.model_dump(exclude={"above"}, exclude_none=True))


def _or(price: float | None, other: float) -> float:
    return other if price is None else price


def usd_of_outcome(outcome: Result | DeadLetter) -> float | None:
    """Return what the answers to a document cost; None where no price is known of one of them."""
    cost, tokens = (
        outcome.cost_microusd,
        (outcome.prompt_tokens or 0) + (outcome.completion_tokens or 0),
    )
    is_unknown = bool(tokens and not cost) if outcome.unpriced is None else outcome.unpriced > 0
    return None if is_unknown and outcome.calls else cost / 1_000_000
