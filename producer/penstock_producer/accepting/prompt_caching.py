"""A job uses its provider's prompt cache, or is refused, before anything is spent.

What is known by the options is asked first. Whether documents share a beginning that is long enough
is known once the source was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from penstock_ledger.texts import SetOption, SetSetting, Text
from penstock_producer.accepting.estimates import MTOK
from penstock_producer.accepting.survey import Survey
from penstock_producer.dialects.prompt_caches import CacheRules, has_cached_prompts, rules_of
from penstock_producer.errors import Problem, SpecError
from penstock_producer.job.lanes import LANES, has_own_model, packs
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import PREFIXES
from penstock_producer.planning.prefixes import Shared, cached_tokens, kept_groups
from penstock_producer.planning.rented_caches import Rent, rents
from penstock_producer.prices import ModelPrices

__all__ = ["ASKED", "CacheUse", "cache_use", "check_open", "check_prompt_cache"]

EXPLICIT: Final = "explicit"
ASKED: Final = ("on", EXPLICIT)  # what is refused where it cannot be
LEAST_READ_IN_BATCHES = 0.3  # of what could be: Anthropic has seen 30 to 98 % of it


class CacheUse(NamedTuple):
    """The use that a job makes of its provider's prompt cache."""

    groups: Sequence[Shared]
    model: str | None  # whose rules and prices these are
    read: int  # tokens, where each beginning is written once
    written: int
    usual_usd: float  # of the whole job without the cache
    least_usd: float  # where each beginning is written once
    most_usd: float  # where as little is read as may be
    is_luck: bool  # whether a batch decides how often what it writes is read
    rent: Rent | None = None  # the explicit caches; None: the provider keeps what it likes

    @property
    def expected_usd(self) -> float:
        """Return the cost that estimates and budgets count with."""
        return (self.least_usd + self.most_usd) / 2 if self.is_luck else self.least_usd

    @property
    def documents(self) -> int:
        """Documents that share a beginning, each counted once."""
        return sum(one.documents for one in self.groups if one.tokens == one.new_tokens)

    @property
    def pays(self) -> bool:
        return self.least_usd < self.usual_usd

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "documents": self.documents,
            "beginnings": len(self.groups),
            "read_tokens": self.read,
            "written_tokens": self.written,
            "usual_usd": self.usual_usd,
            "least_usd": self.least_usd,
            "most_usd": self.most_usd,
            "explicit": 0 if self.rent is None else len(self.rent.names),
        }

    def kept(self) -> dict[str, Any]:
        """Return what is kept with the source of the job."""
        rented = () if self.rent is None else sorted(self.rent.names)
        return {PREFIXES: kept_groups(self.groups, self.model, rented)}


def check_prompt_cache(spec: JobSpec, provider: ProviderFacts) -> None:
    """Raise SpecError for a job that asks for a cache which its provider has not."""
    if spec.prompt_cache in ASKED:
        problem = next(_problems(spec, provider), None)
        if problem is not None:
            raise SpecError([problem])


def check_open(spec: JobSpec) -> None:
    """Raise SpecError for an open job that asks for a cache: its documents are not known."""
    if spec.prompt_cache in ASKED:
        why = "documents are pushed one by one, so what they share is not known beforehand"
        fix = "leave it out; automatic caches work all the same"
        raise SpecError([Problem("invalid_value", "/prompt_cache", why, fix)])


def cache_use(spec: JobSpec, found: Survey, provider: ProviderFacts) -> CacheUse | None:
    """Return the use that a job makes of the cache; None where it makes none.

    Raises SpecError where the job asks for it and its documents share too little."""
    if found.prefixes is None:
        return None
    guess, model = found.estimate, spec.model or found.estimate.model
    prices = _prices(spec, provider, model)
    rules = _rules(spec, provider, model)
    if prices is None or not rules.is_there:
        return None
    groups = found.prefixes.found(rules.least_tokens, guess.tokens_in / found.sent)
    use = _use(groups, found, prices, rules, model, in_batch=_in_batches(spec))
    if spec.prompt_cache in ASKED and not groups:
        why = (
            f"no beginning of {rules.least_tokens:,} tokens or more is shared by three documents "
            f"that are not far apart: shorter ones are not cached"
            f"{'' if model is None else f' for {model}'}"
        )
        fix = Text(
            "put what is the same in all of them first, or let ",
            SetOption("prompt_cache", "auto"),
            " decide",
        )
        raise SpecError([Problem("invalid_value", "/prompt_cache", why, fix)])
    if groups and spec.prompt_cache == EXPLICIT and not _without_explicit(spec, provider, model):
        return _with_explicit(use, found, prices)
    return use if groups and (use.pays or spec.prompt_cache == "on") else None


def _problems(spec: JobSpec, provider: ProviderFacts) -> Iterator[Problem]:
    pointer, fix = "/prompt_cache", Text("leave it out, or say ", SetOption("prompt_cache", "auto"))
    if not has_cached_prompts(spec.endpoint):
        yield Problem(
            "invalid_value", pointer, f"requests to {spec.endpoint} have no prompt to cache", fix
        )
    if not spec.asks_a_provider:
        why = (
            f"lane {spec.first_lane} has a model of its own, whose engine keeps beginnings by "
            "itself"
        )
        yield Problem("invalid_value", pointer, why, Text("use ", SetOption("prefix_order")))
    model = spec.model
    if model is None:
        why = "least lengths and prices are a model's, and the job names none"
        yield Problem("missing_field", pointer, why, Text("name it: ", SetOption("model")))
    elif _prices(spec, provider, model) is None:
        place = f"providers.{spec.provider}"
        why = (
            f"no price of cached tokens of model {model!r} at provider {spec.provider!r} is known "
            "here"
        )
        yield Problem(
            "invalid_value",
            pointer,
            why,
            Text(
                "set ",
                SetSetting(f"{place}.prices"),
                f" here and for the workers, if it has a cache: in penstock.toml "
                f'[{place}.prices."{model}"] input = 1.0, cached_input = 0.1, output = 4.0',
            ),
        )
    elif not _rules(spec, provider, model).is_there:
        why = f"cached tokens of {model} cost as much as others in batches"
        real_time = next(lane for lane in LANES if LANES[lane].is_real_time)
        yield Problem("invalid_value", pointer, why, Text("use ", SetOption("lane", real_time)))
    elif spec.prompt_cache == EXPLICIT and (reason := _without_explicit(spec, provider, model)):
        yield Problem("invalid_value", pointer, *reason)


def _without_explicit(
    spec: JobSpec, provider: ProviderFacts, model: str | None
) -> tuple[str, Text] | None:
    """Return why a job has no explicit caches, and what helps; None where it has."""
    fix = Text("say ", SetOption("prompt_cache", "on"))
    prices = _prices(spec, provider, model)
    if provider.kind != "gemini":
        return "explicit caches are made at Gemini's own API, by providers of kind gemini", fix
    if _in_batches(spec):
        return "whether batches of Gemini read explicit caches is not known", fix
    if spec.tier_in(spec.first_lane) is not None:
        return "whether explicit caches are read in a service tier is not known", fix
    if not _rules(spec, provider, model).rents:
        return f"no explicit caches of {model} are known", fix
    if prices is None or prices.cache_hour is None:
        place = f'[providers.{spec.provider}.prices."{model}"]'
        setting = SetSetting(f"providers.{spec.provider}.prices")
        told = f" here and for the workers: cache_hour in {place} of penstock.toml, or "
        return (
            f"the rent of an explicit cache of {model} is not known here",
            Text("set ", setting, told, fix),
        )
    return None


def _with_explicit(use: CacheUse, found: Survey, prices: ModelPrices) -> CacheUse:
    """Return the use of explicit caches where they pay; raise SpecError where none does."""
    rent = rents(use.groups, found.sent, prices)
    if not rent.names:
        why = "each explicit cache would cost more than it saves: too few share a beginning"
        fix = Text("say ", SetOption("prompt_cache", "auto"))
        raise SpecError([Problem("invalid_value", "/prompt_cache", why, fix)])
    cost = (found.estimate.usd(prices, cached=round(rent.read)) or 0.0) + rent.microusd / MTOK
    return use._replace(
        read=round(rent.read), written=round(rent.held), least_usd=cost, most_usd=cost, rent=rent
    )


def _in_batches(spec: JobSpec) -> bool:
    """Return whether the job's documents go into batches, and nowhere else."""
    asking = [lane for lane in spec.permitted_lanes if not has_own_model(lane)]
    return all(map(packs, asking))


def _rules(spec: JobSpec, provider: ProviderFacts, model: str | None) -> CacheRules:
    return rules_of(provider.kind, provider.base_url, model, packs=_in_batches(spec))


def _prices(spec: JobSpec, provider: ProviderFacts, model: str | None) -> ModelPrices | None:
    """Return the prices of a model that has one of its own for cached tokens."""
    prices = provider.prices_of(model, tier=spec.tier_in(spec.first_lane))
    return None if prices is None or prices.cached_input is None else prices


def _use(
    groups: Sequence[Shared],
    found: Survey,
    prices: ModelPrices,
    rules: CacheRules,
    model: str | None,
    *,
    in_batch: bool,
) -> CacheUse:
    every, written = cached_tokens(groups)
    read, guess = round(every * found.sent), found.estimate

    def cost(share: float) -> float:
        """Return the cost where this share of what can be read is."""
        hit = round(read * share)
        put = written + read - hit if rules.marked else 0
        return guess.usd(prices, in_batch=in_batch, cached=hit, cache_written=put) or 0.0

    usual = guess.usd(prices, in_batch=in_batch) or 0.0
    is_luck = in_batch and rules.marked
    least_read = LEAST_READ_IN_BATCHES if is_luck else float(rules.is_sure)
    return CacheUse(groups, model, read, written, usual, cost(1.0), cost(least_read), is_luck)
