"""Prices in words: the same wherever they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_cli.show.text import usd

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
