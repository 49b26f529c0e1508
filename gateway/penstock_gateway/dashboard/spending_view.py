"""What was spent, by tenant and lane, and at which prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock_gateway.pages.chart import Part, parts
from penstock_ledger import MadeWith, Spending
from penstock_producer.reporting.prices import money_of, per_million, together
from penstock_producer.reporting.text import count, one_line, usd

__all__ = ["PERIODS", "PriceRow", "SpendRow", "price_rows", "spend_rows", "total_of"]

PERIODS: Final[Mapping[str, tuple[str, float]]] = {
    "day": ("last 24 hours", 86_400.0),
    "week": ("last 7 days", 7 * 86_400.0),
    "month": ("last 30 days", 30 * 86_400.0),
    "all": ("all time", 0.0),
}

ROWS_MAX: Final = 500  # tenants on the page; the dearest


class SpendRow(NamedTuple):
    name: str
    jobs: str
    documents: str
    calls: str
    tokens: str
    cost: str
    bar: Sequence[Part]


class PriceRow(NamedTuple):
    provider: str
    model: str
    price: str
    batches: str


def spend_rows(spent: Sequence[Spending], without: str) -> list[SpendRow]:
    """Return a row for each name, the dearest first; ``without`` stands for no name."""
    most = max((one.cost_microusd for one in spent), default=0)
    ordered = sorted(spent, key=lambda one: (-one.cost_microusd, one.name or ""))
    return [
        SpendRow(
            one_line(one.name or "") or without,
            count(one.jobs),
            count(one.succeeded + one.dead),
            count(one.calls),
            f"{count(one.prompt_tokens)} in, {count(one.completion_tokens)} out",
            money_of(one).words,
            parts([("accent", one.cost_microusd)], most),
        )
        for one in ordered[:ROWS_MAX]
    ]


def total_of(spent: Sequence[Spending]) -> tuple[str, str, str]:
    """Return the cost, documents and jobs of all together."""
    return (
        together(money_of(one) for one in spent).words,
        count(sum(one.succeeded + one.dead for one in spent)),
        count(sum(one.jobs for one in spent)),
    )


def price_rows(made: Iterable[MadeWith]) -> list[PriceRow]:
    """Return the prices that answers were paid with, each once."""
    return list(dict.fromkeys(_price(one) for one in made))


def _price(one: MadeWith) -> PriceRow:
    who = one_line(one.engine or f"provider {one.provider}")
    if one.engine:
        price = (
            f"{usd(one.usd_per_hour)} an hour"
            if one.usd_per_hour
            else "unknown: cost.usd_per_gpu_hour is not set"
        )
    elif one.usd_per_mtok_in or one.usd_per_mtok_out:
        price = per_million(one.usd_per_mtok_in or 0.0, one.usd_per_mtok_out or 0.0)
    else:
        price = "unknown: set it in [providers.NAME.prices]"
    discount = f"{one.batch_discount:.0%} less" if one.batch_discount else ""
    return PriceRow(who, one_line(one.model or ""), price, discount)
