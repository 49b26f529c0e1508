"""Prices in words: the same wherever they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_producer.reporting.text import usd

__all__ = ["known_cost", "known_from", "per_million", "spent", "usd_or_unknown"]

if TYPE_CHECKING:
    from penstock_producer.prices.token_prices import ModelPrices

UNKNOWN = "unknown"


def per_million(per_input: float, per_output: float) -> str:
    return f"{usd(per_input)} in, {usd(per_output)} out per million tokens"


def known_from(prices: ModelPrices) -> str:
    """Where they come from, and when they were compared."""
    return "by settings" if prices.checked is None else f"as {prices.source} had them on {prices.checked}"


def usd_or_unknown(amount: float | None) -> str:
    return UNKNOWN if amount is None else usd(amount)


def known_cost(amount: float, tokens: int) -> float | None:
    """Tokens that have cost nothing were answered without a known price: that is None, not 0."""
    return None if tokens and not amount else amount


def spent(amount: float, tokens: int) -> str:
    """The same in words."""
    return usd_or_unknown(known_cost(amount, tokens))
