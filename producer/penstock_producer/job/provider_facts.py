"""A job is accepted by these facts of its provider."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock_producer.job.endpoints import BASE_URLS, RESPONSES, Kind, check_path
from penstock_producer.prices import (
    Discount,
    ModelPrices,
    known_discount,
    known_models,
    known_prices,
    without_date,
)

Region = Annotated[str, Field(pattern=r"^[a-z]{2,}(-[a-z]+)*-?\d{0,2}$")] | None
_AT_BEDROCK: Final = re.compile(
    r"https://bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com|api\.aws)(?:/|$)"
)
LEAST_IN_BATCH: Final[Mapping[str, int]] = {"bedrock": 100}
"""Requests of the smallest batch, by kind. Bedrock's is the quota "Minimum number of records per
batch inference job" of most models; no least number is published by the others."""
# models of the table that are kept with another discount; one more is made again
KNOWN: Final = 1_024


class ProviderFacts(BaseModel):
    """The producer's facts of a provider; workers have more settings of it."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    kind: Kind = "openai"
    # of Amazon Bedrock and Vertex AI, which their address is made of: "eu-central-1"
    region: Region = None
    project: str | None = None  # of Vertex AI
    base_url: str = ""  # its host says whose prices they are
    # paths that jobs may ask besides those of its dialect, such as /v1/rerank
    endpoints: tuple[str, ...] = ()
    # of all its models: US dollars per million input tokens
    usd_per_mtok_in: Annotated[float, Field(ge=0)] = 0.0
    # likewise; 0 and 0 stand for unknown ones
    usd_per_mtok_out: Annotated[float, Field(ge=0)] = 0.0
    # of models that name none; None: as the table of prices has it, where it knows the provider
    batch_discount: Discount = None
    # a batch of fewer requests is refused; None = as the provider says (Bedrock: 100)
    batch_min_requests: Annotated[int, Field(ge=1)] | None = None
    prices: Mapping[str, ModelPrices] = Field(default_factory=dict)  # by model

    @property
    def least_in_batch(self) -> int:
        """Return how many requests a batch has at least."""
        return self.batch_min_requests or LEAST_IN_BATCH.get(self.kind, 1)

    def too_few(self, documents: int) -> str | None:
        """Return why so many documents make no batch; None where they do, or there are none."""
        if documents == 0 or documents >= self.least_in_batch:
            return None
        return (
            f"a batch has at least {self.least_in_batch:,} requests here (batch_min_requests), and "
            f"there {'is' if documents == 1 else 'are'} {documents:,}"
        )

    @property
    def priced_models(self) -> list[str]:
        """The models whose prices are known by name, those of the operator's settings first."""
        return list(dict.fromkeys([*sorted(self.prices), *known_models(self.base_url)]))

    @property
    def has_responses(self) -> bool:
        """Return whether it answers OpenAI's Responses, as OpenAI does.

        Of others that speak OpenAI's API the setting `endpoints` says so: many have chats alone.
        """
        return self.kind == "openai" and (
            RESPONSES in self.endpoints or self.base_url.rstrip("/") == BASE_URLS["openai"]
        )

    def prices_of(self, *models: str | None, tier: str | None = None) -> ModelPrices | None:
        """Return the prices of the first of ``models`` that has any, in a service tier.

        None = unknown.

        The operator's for a model come first, then the operator's for all models, then the table
        that comes with penstock. The discount of batches likewise: a model's own, then the
        provider's, then the table's.
        """
        found = self._of_first([name for name in models if name])
        return found if found is None or tier is None else found.of_tier(tier)

    def _of_first(self, names: Sequence[str]) -> ModelPrices | None:
        if self.prices:
            for name in names:
                own = self._own.get(name) or self._own.get(without_date(name))
                if own is not None:
                    return own
        if self._of_all_models is not None:
            return self._of_all_models
        known = (_known(self.base_url, name, self.batch_discount) for name in names)
        return next((found for found in known if found is not None), None)

    @cached_property
    def _own(self) -> Mapping[str, ModelPrices]:
        return {
            name: one
            if one.batch_discount is not None
            else one.model_copy(update={"batch_discount": self._discount})
            for name, one in self.prices.items()
        }

    @property
    def _discount(self) -> float | None:
        """Of models that name none themselves."""
        return known_discount(self.base_url) if self.batch_discount is None else self.batch_discount

    @cached_property
    def _of_all_models(self) -> ModelPrices | None:
        if not self.usd_per_mtok_in and not self.usd_per_mtok_out:
            return None
        return ModelPrices(
            input=self.usd_per_mtok_in, output=self.usd_per_mtok_out, batch_discount=self._discount
        )

    @model_validator(mode="before")
    @classmethod
    def _place_of_its_kind(cls, given: Any) -> Any:
        kind = given.get("kind") if isinstance(given, dict) else None
        if kind == "bedrock":
            return _in_its_region(given)
        if kind == "vertex":
            return _in_its_project(given)
        if isinstance(kind, str) and kind in BASE_URLS and given.get("base_url") is None:
            return {**given, "base_url": BASE_URLS[kind]}
        return given

    @field_validator("endpoints")
    @classmethod
    def _check_endpoints(cls, endpoints: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_path(endpoint) for endpoint in endpoints)


def _in_its_region(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a Bedrock with its address and its region, either from the other."""
    region, base_url = given.get("region"), given.get("base_url")
    if base_url is None and isinstance(region, str):
        return {**given, "base_url": f"https://bedrock-runtime.{region}.amazonaws.com"}
    found = _AT_BEDROCK.match(base_url) if isinstance(base_url, str) else None
    there = None if found is None else found[1]
    if region is None and there is None:
        raise ValueError(
            'kind bedrock needs its region: region = "eu-central-1" in [providers.NAME], or a '
            "base_url such as https://bedrock-runtime.eu-central-1.amazonaws.com"
        )
    if region is not None and there not in (None, region):
        raise ValueError(
            f"base_url is in {there}, and region says {region}: a request that is signed for "
            "another region is refused; leave one of them out"
        )
    return {**given, "region": region or there}


def _in_its_project(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a Vertex AI with its address."""
    region, project = given.get("region"), given.get("project")
    if not isinstance(region, str) or not isinstance(project, str) or not project:
        raise ValueError(
            'kind vertex needs its project and region: project = "my-project" and region = '
            '"europe-west4", or "global", in [providers.NAME]'
        )
    host = "aiplatform" if region == "global" else f"{region}-aiplatform"
    usual = f"https://{host}.googleapis.com"
    return {**given, "base_url": given.get("base_url") or usual}


@lru_cache(maxsize=KNOWN)
def _known(base_url: str, model: str, discount: float | None) -> ModelPrices | None:
    """Return the prices of the table, but for the discount of batches where one is given."""
    found = known_prices(base_url, model)
    return (
        found
        if found is None or discount is None
        else found.model_copy(update={"batch_discount": discount})
    )
