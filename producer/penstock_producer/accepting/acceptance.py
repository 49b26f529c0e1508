"""Every door asks this of a job before it is accepted, beyond what the spec says by itself.

A spec that was accepted by an earlier release is not asked again: workers read it as it is stored.
"""

from __future__ import annotations

import logging

from penstock_ledger.texts import SetParam, SetSetting, Text
from penstock_producer.accepting.prompt_caching import check_prompt_cache
from penstock_producer.errors import Problem, SpecError
from penstock_producer.job.endpoints import MEDIA
from penstock_producer.job.lanes import (
    BATCH_LANE,
    DEFAULT_LANE,
    LANES,
    can_answer,
    has_own_model,
    packs,
)
from penstock_producer.job.options import OPTIONS
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.job.spec import JobSpec
from penstock_producer.settings import ProducerSettings

__all__ = [
    "beyond_budget",
    "check_acceptable",
    "check_estimate",
    "check_other_lane",
]


log = logging.getLogger(__name__)


def check_acceptable(spec: JobSpec, provider: ProviderFacts) -> None:
    """Raise SpecError for a job that would wait for ever, or whose budget would never hold.

    ``provider`` is the job's.
    """
    _check_batch_options(spec)
    _check_several(spec)
    loose = [lane for lane in spec.permitted_lanes if not LANES[lane].makes_vectors]
    if spec.embedding_dtype is not None and loose:
        fix = Text(
            "leave it out; a provider may have a parameter of its own, such as ",
            SetParam("output_dtype", "int8"),
        )
        why = f"lane {loose[0]} stores vectors as they come"
        raise SpecError([Problem("invalid_value", "/embedding_dtype", why, fix)])
    if spec.budget_usd is not None:
        _check_budget(spec, provider)
    check_prompt_cache(spec, provider)


def check_other_lane(spec: JobSpec, lane: str, settings: ProducerSettings) -> None:
    """Raise SpecError where an accepted job asks for what another ``lane`` cannot do.

    ``lane`` is the one that the job is to move to.
    """
    both = spec.model_copy(update={"lane": spec.first_lane, "lanes": [*spec.permitted_lanes, lane]})
    _check_batch_options(both)
    _check_several(both)
    refusal = settings.refused_endpoint(spec.provider, spec.endpoint, lane)
    if spec.embedding_dtype is not None and not LANES[lane].makes_vectors:
        refusal = f"lane {lane} stores vectors as they come, and the job has embedding_dtype"
    if spec.model is None and spec.takes_records and not has_own_model(lane):
        refusal = f"lane {lane} asks a provider, and the job names no model"
    if spec.budget_usd is not None and has_own_model(lane):
        refusal = (
            f"the job has a budget of {spec.budget_usd:g} USD, and {_NOTHING_RESERVED.format(lane)}"
        )
    if refusal is not None:
        raise SpecError([Problem("invalid_value", "/lane", refusal, "")])


def beyond_budget(budget_usd: float | None, estimated_usd: float | None) -> str | None:
    """Return what to say where a job may cost more than its budget; None where it may not.

    An unknown cost says nothing.
    """
    if budget_usd is None or estimated_usd is None or estimated_usd <= budget_usd:
        return None
    return (
        f"the job may cost about {estimated_usd:.2g} USD, as its first documents say, and its "
        f"budget is {budget_usd:g} USD: it would be paused on the way"
    )


def check_estimate(spec: JobSpec, estimated_usd: float | None) -> None:
    """Raise SpecError for a job that may cost more than its budget, where the job asks for that.

    Otherwise the log warns.
    """
    words = beyond_budget(spec.budget_usd, estimated_usd)
    if words is None:
        return
    if spec.over_budget == "warn":
        log.warning("%s", words)
        return
    fix = "raise budget_usd, shorten documents or max_tokens, or let over_budget warn"
    raise SpecError([Problem("budget_below_estimate", "/budget_usd", words, fix)])


_NOTHING_RESERVED = (
    "lane {} reserves nothing of it: it runs a model of its own, whose hours are paid and known "
    "only afterwards"
)


def _check_budget(spec: JobSpec, provider: ProviderFacts) -> None:
    problem = f"{spec.budget_usd:g} USD would never be reached"
    if not spec.asks_a_provider:
        why = (
            f"{problem}: lane {spec.first_lane} runs a model of its own, which costs no money per "
            "token"
        )
        raise SpecError(
            [Problem("invalid_value", "/budget_usd", why, "leave it out, or give a deadline")]
        )
    hosting = next(filter(has_own_model, spec.permitted_lanes), None)
    if hosting is not None:
        fix = f"leave the budget out, or leave {hosting} out of lanes"
        raise SpecError(
            [Problem("invalid_value", "/budget_usd", _NOTHING_RESERVED.format(hosting), fix)]
        )
    tier = spec.tier_in(spec.first_lane)
    if provider.prices_of(spec.model, tier=tier) is not None:
        return
    place = f"providers.{spec.provider}"
    variable = f"PENSTOCK_PROVIDERS__{spec.provider.upper()}__USD_PER_MTOK_IN"
    model = spec.model or "MODEL"
    raise SpecError(
        [
            Problem(
                "invalid_value",
                "/budget_usd",
                f"{problem}: no price of "
                f"{f'model {spec.model!r} of ' if spec.model else ''}provider {spec.provider!r}"
                f"{'' if tier is None else f' in the service tier {tier!r}'} is known here, so "
                "that every answer would count as free",
                Text(
                    "set ",
                    SetSetting(f"{place}.usd_per_mtok_in"),
                    " and ",
                    SetSetting(f"{place}.usd_per_mtok_out"),
                    ", in US dollars per million tokens, here and for the workers: in "
                    f"penstock.toml [{place}] usd_per_mtok_in = 0.15, usd_per_mtok_out = 0.60, or "
                    f"{variable}=0.15, or for one model "
                    f'[{place}.prices."{model}"] input = 0.15, output = 0.60',
                ),
            )
        ]
    )


_NOT_IN_BATCHES = {
    "preprocess": "requests go into batches as they are",
    "fallback": "what a batch refuses is tried again with its own model",
}
_LEFT_OUT = "leave it out, or give lanes without {}"
_ONLY_IN_BATCHES = ("batch_max_requests", "batch_poll_s", "batch_files")


def _check_batch_options(spec: JobSpec) -> None:
    """Raise SpecError for options that the lane cannot honour, before anything is spent."""
    problems = []
    packing = next(filter(packs, spec.permitted_lanes), None)
    if packing is not None:
        given = [name for name in _NOT_IN_BATCHES if getattr(spec, name) != OPTIONS[name].default]
        fix = (
            f'leave it out, or use lane "{DEFAULT_LANE}"'
            if packing == spec.lane
            else _LEFT_OUT.format(packing)
        )
        problems = [
            Problem("invalid_value", f"/{name}", f"lane {packing}: {_NOT_IN_BATCHES[name]}", fix)
            for name in given
        ]
    else:
        given = [name for name in _ONLY_IN_BATCHES if getattr(spec, name) != OPTIONS[name].default]
        why, fix = (
            f"lane {spec.lane} makes no batches at a provider",
            f'leave it out, or use lane "{BATCH_LANE}"',
        )
        problems = [Problem("invalid_value", f"/{name}", why, fix) for name in given]
    if problems:
        raise SpecError(problems)


def _check_several(spec: JobSpec) -> None:
    """Raise SpecError for a lane among several that cannot do what the job asks.

    A job of one lane finds that out when it runs there, but for one with files.
    """
    if len(spec.permitted_lanes) == 1 and spec.endpoint not in MEDIA:
        return
    problems = [
        Problem(
            "invalid_value",
            "/lanes",
            f"lane {lane} does not answer {spec.endpoint}",
            f"leave {lane} out of them",
        )
        for lane in spec.permitted_lanes
        if not can_answer(lane, spec.endpoint)
    ]
    hosting = [lane for lane in spec.permitted_lanes if has_own_model(lane)]
    for name in ("routes", "escalate", "degrade"):
        if getattr(spec, name) and spec.asks_a_provider and hosting:
            why = f"lane {hosting[0]} hosts its models, and those of the rules are a provider's"
            problems.append(Problem("invalid_value", f"/{name}", why, _LEFT_OUT.format(hosting[0])))
    if spec.fallback and spec.asks_a_provider and hosting:
        why = (
            f"lane {hosting[0]} hosts its models, and the models of fallback are a provider's in "
            "other lanes"
        )
        problems.append(Problem("invalid_value", "/fallback", why, _LEFT_OUT.format(hosting[0])))
    if problems:
        raise SpecError(problems)
