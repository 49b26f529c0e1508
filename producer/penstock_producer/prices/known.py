"""The prices that penstock knows by itself: ``prices.toml``, looked up by a provider's address and a model's name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from penstock_producer.prices.token_prices import ModelPrices

__all__ = ["known_discount", "known_prices", "without_date"]

LOOKED_UP: Final = 1_024  # pairs of address and model that are kept; a name more is looked up again
_DATE: Final = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2})$")
_PREFIX: Final = "models/"  # as Gemini names its models


class _Known(NamedTuple):
    """Of one provider."""

    models: Mapping[str, ModelPrices]
    batch_discount: float | None


@lru_cache(maxsize=LOOKED_UP)
def known_prices(base_url: str, model: str) -> ModelPrices | None:
    """None where the table has no such model at that address: a server of your own never costs what a provider does."""
    provider = _at(base_url)
    if provider is None:
        return None
    name = model.removeprefix(_PREFIX)
    return provider.models.get(name) or provider.models.get(without_date(name))


def known_discount(base_url: str) -> float | None:
    """Of the batches of the provider at that address."""
    provider = _at(base_url)
    return None if provider is None else provider.batch_discount


def without_date(model: str) -> str:
    """The name under which the releases of a model have one price."""
    return _DATE.sub("", model)


def _at(base_url: str) -> _Known | None:
    try:
        host = urlsplit(base_url).hostname
    except ValueError:
        return None
    return _table().get(host) if host else None


@cache
def _table() -> Mapping[str, _Known]:
    """By host."""
    raw = tomllib.loads(files("penstock_producer.prices").joinpath("prices.toml").read_text("utf-8"))
    return {host: _known(provider) for provider in raw.values() for host in provider["hosts"]}


def _known(provider: Mapping[str, Any]) -> _Known:
    discount = provider["batches"]["discount"] if "batches" in provider else None
    models: dict[str, ModelPrices] = {}
    for row in provider["prices"]:
        own = {field: value for field, value in row.items() if field != "models"}
        prices = ModelPrices(source=provider["source"], batch_discount=discount, **own)
        models |= dict.fromkeys(row["models"], prices)
    return _Known(models, discount)
