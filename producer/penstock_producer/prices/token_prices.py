"""The prices of one model, and what an answer costs by them.

Penstock knows some prices by itself: they stand in ``prices.toml``, by a provider's address and a
model's name.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping
from datetime import date
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from penstock_ledger.model import DeadLetter, Result

__all__ = [
    "Discount",
    "GpuPrice",
    "LongPrices",
    "ModelPrices",
    "TokensUsed",
    "known_discount",
    "known_gpu",
    "known_gpus",
    "known_models",
    "known_prices",
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
    return tomllib.loads(
        files("penstock_producer.prices").joinpath("prices.toml").read_text("utf-8")
    )


def _known(provider: Mapping[str, Any]) -> _Known:
    discount = provider["batches"]["discount"] if "batches" in provider else None
    models: dict[str, ModelPrices] = {}
    for row in provider["prices"]:
        own = {field: value for field, value in row.items() if field != "models"}
        prices = ModelPrices(source=provider["source"], batch_discount=discount, **own)
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
