"""The prices in ``prices.toml``, looked up by a provider's address and a model's name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from datetime import date
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from penstock_producer.prices.token_prices import ModelPrices

__all__ = [
    "CardPrice",
    "known_card",
    "known_cards",
    "known_discount",
    "known_models",
    "known_prices",
    "without_date",
]

LOOKED_UP: Final = 1_024  # pairs of address and model that are kept; a name more is looked up again
_DATE: Final = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2})$")
_PREFIX: Final = "models/"  # as Gemini names its models


class CardPrice(NamedTuple):
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


def known_card(name: str) -> CardPrice | None:
    """Return the price of a GPU by its cloud and its name there.

    It is "nebius/H100-SXM", in capitals or not.
    """
    return _cards().get(name.lower())


def known_cards() -> list[str]:
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
def _cards() -> Mapping[str, CardPrice]:
    return {
        f"{cloud}/{row['card']}".lower(): CardPrice(
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
