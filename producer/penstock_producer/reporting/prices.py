"""Prices in words: the same wherever they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock_producer.reporting.text import usd

__all__ = ["Money", "known_from", "money_of", "per_million", "together", "usd_or_unknown"]

if TYPE_CHECKING:
    from penstock_producer.prices.token_prices import ModelPrices

UNKNOWN = "unknown"
MICRO = 1_000_000


def per_million(per_input: float, per_output: float) -> str:
    return f"{usd(per_input)} in, {usd(per_output)} out per million tokens"


def known_from(prices: ModelPrices) -> str:
    """Return where prices come from, and when they were compared."""
    return (
        "by settings"
        if prices.checked is None
        else f"as {prices.source} had them on {prices.checked}"
    )


def usd_or_unknown(amount: float | None) -> str:
    return UNKNOWN if amount is None else usd(amount)


class Money(NamedTuple):
    """What was spent, as far as prices are known."""

    known_usd: float
    is_whole: bool  # whether a price is known of all of it

    @property
    def usd(self) -> float | None:
        """For programs: None where a part is not known."""
        return self.known_usd if self.is_whole else None

    @property
    def words(self) -> str:
        """For people."""
        if self.is_whole:
            return usd(self.known_usd)
        return (
            f"at least {usd(self.known_usd)} (some prices unknown)" if self.known_usd else UNKNOWN
        )


class Spent(Protocol):
    """Sums of payments, as accounts have them."""

    @property
    def cost_microusd(self) -> int: ...
    @property
    def unpriced(self) -> int: ...


def money_of(spent: Spent, *, is_priced: bool = True) -> Money:
    """Return what was spent. ``is_priced`` False: the caller knows that some of it has no price."""
    return Money(round(spent.cost_microusd / MICRO, 6), is_priced and not spent.unpriced)


def together(parts: Iterable[Money]) -> Money:
    """Return their sum; nothing is a sum of nothing."""
    every = list(parts)
    return Money(round(sum(one.known_usd for one in every), 6), all(one.is_whole for one in every))
