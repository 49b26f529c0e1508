"""The prices of one model, what an answer costs by them, and budgets that are spent.

Penstock knows some prices by itself: they stand in ``prices.toml``, by a provider's address and a
model's name. A job pauses whose budget is spent, its own or its tenant's: figures, and what is
enough.
"""

from __future__ import annotations

import datetime
import math
import re
import tomllib
from collections.abc import Mapping
from datetime import date
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from penstock_ledger.model import Saving
from penstock_ledger.reasons import By, Code, Reason

if TYPE_CHECKING:
    from penstock_ledger.model import DeadLetter, Result

__all__ = [
    "OF_TIER",
    "PROMPT_CACHE",
    "Discount",
    "GpuPrice",
    "LongPrices",
    "ModelPrices",
    "TierPrices",
    "TokensUsed",
    "is_budget_spent",
    "known_discount",
    "known_gpu",
    "known_gpus",
    "known_models",
    "known_prices",
    "next_budget",
    "next_month",
    "saved",
    "spent_budget",
    "spent_tenant_budget",
    "usd_of_outcome",
    "without_date",
]


LOOKED_UP: Final = 1_024  # pairs of address and model that are kept; a name more is looked up again
_DATE: Final = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2})$")
_PREFIX: Final = "models/"  # as Gemini names its models

# US dollars per million tokens. A price beyond the most that any model ever cost is a typing error.
MOST_USD: Final = 100_000.0
Usd = Annotated[float, Field(ge=0, le=MOST_USD)]
# of the provider's batches: 0.5 is half the price; None = not known
Discount = Annotated[float, Field(ge=0, le=1)] | None


class GpuPrice(NamedTuple):
    """Of one card with its machine, in US dollars by the hour."""

    hour: float
    spot_hour: float | None  # None: the cloud sells none, or it is not known
    source: str
    checked: date


class _Known(NamedTuple):
    """Of one provider."""

    models: Mapping[str, ModelPrices]
    batch_discount: float | None


@lru_cache(maxsize=LOOKED_UP)
def known_prices(base_url: str, model: str) -> ModelPrices | None:
    """Return the prices of a model; None where the table has no such model at that address.

    A server of your own never costs what a provider does.
    """
    provider = _at(base_url)
    if provider is None:
        return None
    name = model.removeprefix(_PREFIX)
    return provider.models.get(name) or provider.models.get(without_date(name))


def known_models(base_url: str) -> list[str]:
    """Return the models of the table at that address."""
    provider = _at(base_url)
    return [] if provider is None else sorted(provider.models)


def known_discount(base_url: str) -> float | None:
    """Return the discount of batches of the provider at that address."""
    provider = _at(base_url)
    return None if provider is None else provider.batch_discount


def known_gpu(name: str) -> GpuPrice | None:
    """Return the price of a GPU by its cloud and its name there.

    It is "nebius/H100-SXM", in capitals or not.
    """
    return _cards().get(name.lower())


def known_gpus() -> list[str]:
    """Return the names of GPUs, as the table writes them."""
    return [
        f"{cloud}/{row['card']}"
        for cloud, of_cloud in _raw()["gpus"].items()
        for row in of_cloud["cards"]
    ]


def without_date(model: str) -> str:
    """Return the name under which the releases of a model have one price."""
    return _DATE.sub("", model)


def _at(base_url: str) -> _Known | None:
    try:
        host = urlsplit(base_url).hostname
    except ValueError:
        return None
    return _table().get(host) if host else None


@cache
def _table() -> Mapping[str, _Known]:
    """Return the providers of the table by host."""
    providers = [provider for name, provider in _raw().items() if name != "gpus"]
    return {host: _known(provider) for provider in providers for host in provider["hosts"]}


@cache
def _cards() -> Mapping[str, GpuPrice]:
    return {
        f"{cloud}/{row['card']}".lower(): GpuPrice(
            row["hour"], row.get("spot_hour"), of_cloud["source"], row["checked"]
        )
        for cloud, of_cloud in _raw()["gpus"].items()
        for row in of_cloud["cards"]
    }


@cache
def _raw() -> Mapping[str, Any]:
    return tomllib.loads(files("penstock_producer").joinpath("prices.toml").read_text("utf-8"))


def _known(provider: Mapping[str, Any]) -> _Known:
    discount = provider["batches"]["discount"] if "batches" in provider else None
    flex = {"flex": {"discount": provider["flex"]["discount"]}} if "flex" in provider else {}
    models: dict[str, ModelPrices] = {}
    for row in provider["prices"]:
        own = {field: value for field, value in row.items() if field != "models"}
        own["tiers"] = flex | row.get("tiers", {})
        prices = ModelPrices(**{"source": provider["source"], "batch_discount": discount, **own})
        models |= dict.fromkeys(row["models"], prices)
    return _Known(models, discount)


class TokensUsed(NamedTuple):
    """By one answer."""

    prompt: int = 0  # with those of the prompt cache
    completion: int = 0  # with those of reasoning
    cached: int = 0  # of the prompt, read from the provider's prompt cache
    cache_written: int = 0  # of the prompt, written to it
    reasoning: int = 0  # of the completion
    # of those written to the cache: to be kept for an hour, which costs more
    cache_written_hour: int = 0
    media: int = 0  # of the prompt: of images and sounds
    seconds: float = 0.0  # of a recording


class OtherPrices(BaseModel):
    """Prices that replace those of a model's ordinary requests; what is left out costs the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Usd | None = None
    output: Usd | None = None
    cached_input: Usd | None = None
    cache_write: Usd | None = None
    cache_write_hour: Usd | None = None
    media: Usd | None = None


_PRICES: Final = set(OtherPrices.model_fields)
_EVERY_PRICE: Final = (*sorted(_PRICES), "minute", "reasoning")


class LongPrices(OtherPrices):
    """Prices of requests with more than ``above`` tokens of prompt."""

    above: Annotated[int, Field(gt=0)]


class TierPrices(OtherPrices):
    """Prices of a service tier: prices of its own, or a ``discount`` off the ordinary ones."""

    discount: Annotated[float, Field(ge=0, le=1)] = 0.0


# Service tiers that no provider sells at its ordinary prices: where theirs are not in the table,
# they are unknown. Scale tier and Anthropic's priority tier are paid for in advance.
PRICED_APART: Final = frozenset({"priority", "fast", "scale"})


class ModelPrices(BaseModel):
    """US dollars per million tokens.

    What is left out costs what ``input`` or ``output`` does, and ``cache_write_hour`` what
    ``cache_write`` does. ``cache_hour`` is the rent of an explicit cache for an hour; without it
    none is made. ``media`` are tokens of images and sounds, ``minute`` is one of a
    recording, in dollars. ``tiers`` has service tiers by the name that an answer gives them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Usd
    output: Usd = 0.0
    cached_input: Usd | None = None
    cache_write: Usd | None = None
    cache_write_hour: Usd | None = None
    cache_hour: Usd | None = None
    reasoning: Usd | None = None
    media: Usd | None = None
    minute: Usd | None = None
    long: LongPrices | None = None
    batch_discount: Discount = None
    tiers: Mapping[str, TierPrices] = Field(default_factory=dict)
    checked: datetime.date | None = None  # None: the operator's own
    source: str = "settings"

    def microusd(self, used: TokensUsed, *, in_batch: bool = False) -> int:
        """Return the cost of one answer in millionths of a dollar.

        Dollars per million tokens times tokens is just that. ``in_batch``: it came from a
        provider's batch. Where no discount is known for those, it costs the full price.
        """
        prices = self
        if self.long is not None and used.prompt > self.long.above:
            prices = self._with(self.long)
        cached = min(used.cached, used.prompt)
        written = min(used.cache_written, used.prompt - cached)
        media = min(used.media, used.prompt - cached - written)
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
            + media * (_or(prices.media, prices.input) - prices.input)
            + used.seconds / 60.0 * (prices.minute or 0.0) * 1_000_000
            + (used.completion - reasoning) * prices.output
            + reasoning * _or(prices.reasoning, prices.output)
        )
        return round(cost * (1.0 - (self.batch_discount or 0.0) if in_batch else 1.0))

    def of_tier(self, tier: str | None) -> ModelPrices | None:
        """Return the prices of a service tier; None where the table does not know them.

        A tier without a discount that is known costs the full price, as a batch does. What an
        operator has set holds for all tiers, but for those that it names."""
        found = self.tiers.get(tier) if tier else None
        if found is not None:
            return self._with(found)
        return None if tier in PRICED_APART and self.checked is not None else self

    def _with(self, others: OtherPrices) -> ModelPrices:
        own = self.model_copy(update=others.model_dump(include=_PRICES, exclude_none=True))
        if not isinstance(others, TierPrices) or not others.discount:
            return own
        share = 1.0 - others.discount
        less = {name: share * price for name in _EVERY_PRICE if (price := getattr(own, name))}
        if own.long is not None:
            of_long = own.long.model_dump(include=_PRICES, exclude_none=True).items()
            less["long"] = own.long.model_copy(
                update={name: share * price for name, price in of_long}
            )
        return own.model_copy(update=less)


def _or(price: float | None, other: float) -> float:
    return other if price is None else price


# Causes for which an answer costs less than an ordinary one, or more.
OF_TIER: Final = "tier:"  # so begin those of service tiers; the name that the answer gives follows
PROMPT_CACHE: Final = "prompt_cache"  # of the provider; its tokens are those that were read
# That have a row of their own whatever the prices say: other names come from outside.
_TIERS: Final = PRICED_APART | {"flex"}


def saved(
    ordinary: ModelPrices | None,
    used: TokensUsed,
    *,
    tier: str | None = None,
    in_batch: bool = False,
) -> list[Saving]:
    """Return what one answer of a service tier saved, for each cause by itself.

    That is how much more it would have cost without that cause alone: at the ``ordinary`` price, or
    had nothing been read from the prompt cache and written to it. Most answers have no cause."""
    own, found = None if ordinary is None else ordinary.of_tier(tier), list[Saving]()
    if tier is not None and (tier in _TIERS or (ordinary and tier in ordinary.tiers)):
        tokens = used.prompt + used.completion
        found.append(_saving(OF_TIER + tier, tokens, (own, used), (ordinary, used), in_batch))
    if used.cached or used.cache_written:
        fresh = TokensUsed(used.prompt, used.completion, reasoning=used.reasoning)
        found.append(_saving(PROMPT_CACHE, used.cached, (own, used), (own, fresh), in_batch))
    return found


_Priced = tuple[ModelPrices | None, TokensUsed]


def _saving(cause: str, tokens: int, as_is: _Priced, without: _Priced, in_batch: bool) -> Saving:
    cost, more = (
        None if prices is None else prices.microusd(used, in_batch=in_batch)
        for prices, used in (as_is, without)
    )
    if cost is None or more is None:
        return Saving(cause, tokens=tokens, unpriced=1)
    return Saving(cause, tokens=tokens, saved_microusd=more - cost)


def usd_of_outcome(outcome: Result | DeadLetter) -> float | None:
    """Return what the answers to a document cost; None where no price is known of one of them."""
    cost, tokens = (
        outcome.cost_microusd,
        (outcome.prompt_tokens or 0) + (outcome.completion_tokens or 0),
    )
    is_unknown = bool(tokens and not cost) if outcome.unpriced is None else outcome.unpriced > 0
    return None if is_unknown and outcome.calls else cost / 1_000_000


MARGIN: Final = 1.1  # on top of what all documents are expected to cost


def spent_budget(
    *,
    budget_usd: float,
    spent_usd: float,
    left: int | None,
    mean_usd: float | None,
    next_usd: float = 0.0,
    batch_documents: int | None = None,
) -> Reason:
    """Return why a job pauses, and what finishing it costs.

    ``left``: documents without an outcome, None where their number is not known yet; ``mean_usd``:
    of a document so far, None before any has finished; ``next_usd``: what the next call may cost,
    or the next batch of so many documents."""
    figures = _figures(budget_usd, spent_usd, left, mean_usd, next_usd, batch_documents)
    return Reason(Code.BUDGET_EXHAUSTED, By.BUDGET, figures)


def spent_tenant_budget(
    tenant: str,
    month: str,
    *,
    budget_usd: float,
    spent_usd: float,
    left: int | None,
    mean_usd: float | None,
    next_usd: float = 0.0,
    batch_documents: int | None = None,
) -> Reason:
    """Return why a job pauses whose tenant may not spend more, and what lets it go on.

    ``month``: in which it was accepted, as 2026-11; the others as in ``spent_budget``."""
    figures = _figures(budget_usd, spent_usd, left, mean_usd, next_usd, batch_documents)
    whose = {"tenant": tenant, "month": month, "next_month": next_month(month)}
    return Reason(Code.TENANT_BUDGET_EXHAUSTED, By.BUDGET, whose | figures)


def is_budget_spent(reason: Reason | None) -> bool:
    """Return whether a budget has no room for the job's next call: its own, or its tenant's."""
    return reason is not None and reason.code in (
        Code.BUDGET_EXHAUSTED,
        Code.TENANT_BUDGET_EXHAUSTED,
    )


def next_month(month: str) -> str:
    """Return the first day of the month after ``month`` (as 2026-11): 2026-12-01."""
    year, number = map(int, month.split("-"))
    return f"{year + number // 12}-{number % 12 + 1:02}-01"


def next_budget(wanted_usd: float) -> str:
    """Return a sum in two significant digits, rounded upwards."""
    step = 10.0 ** (math.floor(math.log10(wanted_usd)) - 1) if wanted_usd > 0 else 0.01
    return f"{math.ceil(wanted_usd / step - 1e-9) * step:.10f}".rstrip("0").rstrip(".")


def _figures(
    budget_usd: float,
    spent_usd: float,
    left: int | None,
    mean_usd: float | None,
    next_usd: float,
    batch_documents: int | None,
) -> dict[str, Any]:
    """Return the parameters of the reason.

    ``enough_usd`` is a budget with which the job goes on: with less its next call may find no room.
    """
    figures: dict[str, Any] = {
        "budget_usd": budget_usd,
        "spent_usd": spent_usd,
        "left": left,
        "next_usd": next_usd,
        "batch_documents": batch_documents,
    }
    if left is None:
        return figures | {"enough_usd": float(next_budget(2 * budget_usd))}
    each_usd = next_usd / (batch_documents or 1) if mean_usd is None else mean_usd
    more_usd = max(next_usd, left * each_usd)
    enough = float(next_budget(max(budget_usd, spent_usd + more_usd) * MARGIN))
    return figures | {"more_usd": more_usd, "is_bound": mean_usd is None, "enough_usd": enough}
