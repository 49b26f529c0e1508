"""Each lane needs something for a job, takes its time and has its price, or these are unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock_cli.job.picture import Asked, MeasuredLane, Picture
from penstock_producer.accepting.estimates import CHARS_PER_TOKEN
from penstock_producer.job.lanes import LANES, can_answer, has_own_model, packs
from penstock_producer.planning.flow import Batches, Calls, Figure, measured
from penstock_producer.planning.sizing import (
    CALLS,
    WINDOW_MAX,
    Fleet,
    Needs,
    Planned,
    Quota,
    sized,
    sized_batches,
)

if TYPE_CHECKING:
    from penstock_workers.settings import CostSettings, ProviderSettings, WorkerSettings

# of one batch, where nothing smaller is asked for: what OpenAI's take
BATCH_REQUESTS: Final = 50_000
BATCH_BYTES: Final = 200 * 1024 * 1024  # likewise
MTOK: Final = 1_000_000
BATCH_WINDOW_S: Final = 24 * 3600.0  # the completion window of every provider's batches
MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class LanePlan:
    """One lane. ``planned`` is None where too little is known, and ``why`` says what is missing."""

    lane: str
    planned: Planned | None = None
    cost_usd: float | None = None
    redis_bytes: int | None = None
    sqlite_bytes: int | None = None
    postgres_bytes: int | None = None
    why: str = ""
    assumptions: Sequence[Figure] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """Return the plan for programs; null is unknown."""
        planned = None if self.planned is None else self.planned._asdict()
        return {
            "lane": self.lane,
            "planned": planned,
            "cost_usd": self.cost_usd,
            "redis_bytes": self.redis_bytes,
            "sqlite_bytes": self.sqlite_bytes,
            "postgres_bytes": self.postgres_bytes,
            "why": self.why or None,
            "assumptions": [one._asdict() for one in self.assumptions],
        }


def lane_plans(
    picture: Picture, settings: WorkerSettings, asked: Asked, only: Sequence[str] = ()
) -> list[LanePlan]:
    """Return a plan for each lane that can answer the job's endpoint, or that was asked for."""
    lanes = only or [lane for lane in LANES if can_answer(lane, picture.spec.endpoint)]
    return [_plan(lane, picture, settings, asked) for lane in lanes]


def _plan(lane: str, picture: Picture, settings: WorkerSettings, asked: Asked) -> LanePlan:
    figures = measured(lane)
    if packs(lane):
        return _of_batches(lane, picture, settings, asked, figures)
    provider = None if has_own_model(lane) else settings.provider(picture.spec.provider)
    job = _measured_in(picture, lane)
    engine = job.per_second if provider is None and job is not None else None
    if provider is None and engine is None:
        return LanePlan(
            lane,
            why=(
                "how fast your GPUs are is not known; run it with --sample 100, then plan with "
                "--from-job"
            ),
        )
    quotas = () if provider is None else _quotas(picture, provider)
    latencies = (
        picture.latencies_s
        if provider is not None
        else ((job.latencies_s if job is not None else ()) or (1.0,))
    )
    needs = Needs(
        picture.documents,
        Calls(latencies, picture.again if job is None else job.again),
        quotas,
        engine,
        asked.within_s,
        picture.answer_bytes,
    )
    concurrency = asked.concurrency or _concurrency(lane, settings)
    fleet = Fleet(
        concurrency,
        asked.workers,
        None,
        ramps=provider is not None and not any(one.per_minute for one in quotas),
    )
    planned = sized(needs, fleet, figures, seed=asked.seed)
    noted = [
        figures[name]
        for name in ("start_s", "survey_us", "feeder_us", "redis_us", "worker_us", "write_us")
    ]
    if engine is not None:
        noted.append(
            Figure(
                "engine",
                engine,
                "documents a second in one worker",
                f"job {asked.job}, between its start and its end",
            )
        )
    if provider is None and settings.cost.usd_per_hour:
        noted.append(
            Figure(
                "price of a worker",
                settings.cost.usd_per_hour,
                "USD an hour",
                hour_from(settings.cost),
            )
        )
    noted += [
        Figure(one.unit, one.each, f"a call; {_limit(one)}", _metering(provider))
        for one in quotas
        if provider is not None
    ]
    return _with_sizes(
        lane, picture, planned, figures, noted, _cost(lane, picture, settings, planned)
    )


def _of_batches(
    lane: str,
    picture: Picture,
    settings: WorkerSettings,
    asked: Asked,
    figures: Mapping[str, Figure],
) -> LanePlan:
    provider, job = settings.provider(picture.spec.provider), picture.job
    # as the lane reserves room: each is rounded up
    tokens = math.ceil(picture.body_bytes / CHARS_PER_TOKEN + 0.5)
    cap = provider.batch_enqueued_tokens
    size = min(
        picture.spec.batch_max_requests or BATCH_REQUESTS,
        BATCH_REQUESTS,
        max(1, int(BATCH_BYTES / max(1.0, picture.body_bytes))),
        picture.documents,
        *([] if cap is None else [max(1, cap // tokens)]),
    )
    seen = tuple(job.turnarounds_s) if job is not None else ()
    poll = picture.spec.batch_poll_s
    here = _measured_in(picture, lane)
    again = picture.again if here is None else here.again
    given = Batches(size, tokens, seen or (BATCH_WINDOW_S,), cap, again if seen else 0.0)
    given = given if poll is None else given._replace(look_first_s=poll, look_cap_s=poll)
    needs = Needs(picture.documents, Calls((1.0,)), (), None, asked.within_s, picture.answer_bytes)
    planned = sized_batches(needs, given, figures, workers=asked.workers, seed=asked.seed)
    words = (
        f"job {asked.job}, {len(seen)} batches"
        if seen
        else "the window of the provider's batches, at most; most end sooner"
    )
    noted = [
        *(figures[name] for name in ("start_s", "survey_us", "worker_us", "write_us")),
        Figure(
            "seconds of a batch", sum(given.turnarounds_s) / len(given.turnarounds_s), "mean", words
        ),
        Figure(
            "documents in a batch", size, "", "by its limits of requests, bytes and enqueued tokens"
        ),
    ]
    if cap is not None:
        noted.append(
            Figure("enqueued tokens", cap, "at once", "providers.NAME.batch_enqueued_tokens")
        )
    return _with_sizes(
        lane, picture, planned, figures, noted, _cost(lane, picture, settings, planned)
    )


def _with_sizes(
    lane: str,
    picture: Picture,
    planned: Planned,
    figures: Mapping[str, Figure],
    noted: Sequence[Figure],
    cost_usd: float | None,
) -> LanePlan:
    documents = picture.documents
    queued = 0 if packs(lane) else min(documents, WINDOW_MAX)
    redis = documents * figures["redis_bytes"].value + queued * figures["redis_message_bytes"].value
    sizes = ("redis_bytes", "redis_message_bytes", "sqlite_bytes", "postgres_bytes")
    return LanePlan(
        lane,
        planned,
        cost_usd,
        round(redis),
        round(documents * (figures["sqlite_bytes"].value + picture.answer_bytes)),
        round(documents * (figures["postgres_bytes"].value + picture.answer_bytes)),
        assumptions=[*noted, *(figures[name] for name in sizes)],
    )


def _quotas(picture: Picture, provider: ProviderSettings) -> Sequence[Quota]:
    """Return what a call is charged in the end, by the provider's way to meter.

    A limit that is not declared is asked for, too."""
    from penstock_ratelimit import Usage, profile_for

    profile = profile_for(provider.base_url, provider.metering)
    charged = profile.reserve(picture.tokens_in, picture.max_tokens, picture.tokens_out)
    charged |= profile.settle(Usage(picture.tokens_in, picture.tokens_out))
    apart = provider.itpm is not None or provider.otpm is not None
    units = ("requests", *(("input_tokens", "output_tokens") if apart else ("tokens",)))
    limits = provider.limits_of_ours
    return [
        Quota(unit.replace("_", " "), charged.get(unit, 1.0), limits.get(unit)) for unit in units
    ]


def _limit(one: Quota) -> str:
    return "no limit is declared" if one.per_minute is None else f"{one.per_minute:,.0f} a minute"


def _metering(provider: ProviderSettings | None) -> str:
    from penstock_ratelimit import profile_for

    return (
        ""
        if provider is None
        else f"as the profile {profile_for(provider.base_url, provider.metering).name!r} meters"
    )


def hour_from(cost: CostSettings) -> str:
    known = cost.known
    if known is None:
        return "by settings"
    kind = "on spot" if cost.on_spot else "on demand"
    return f"{cost.card} {kind}, as {known.source} had it on {known.checked}"


def _concurrency(lane: str, settings: WorkerSettings) -> int:
    if lane == settings.lane:
        return settings.concurrency
    from penstock_workers.settings import WorkerSettings

    return WorkerSettings.load(lane=lane).concurrency


def _cost(lane: str, picture: Picture, settings: WorkerSettings, planned: Planned) -> float | None:
    """Return the cost in US dollars; None where the price is unknown."""
    from penstock_producer.prices import TokensUsed

    job = picture.job
    if has_own_model(lane):
        hourly = settings.cost.usd_per_hour * planned.workers
        # loading is on no document's account
        return hourly * planned.phases[CALLS] / 3_600 if hourly else None
    alike = (
        [] if job is None else [one for one in job.lanes.values() if _charges_alike(one.lane, lane)]
    )
    paid = next((one.cost_usd for one in alike if one.cost_usd is not None), None)
    if paid is not None:
        # with what its prompt cache saved, and what refused answers cost
        return paid * picture.documents
    spec = picture.spec
    prices = settings.provider(spec.provider).prices_of(spec.model, tier=spec.tier_in(lane))
    if prices is None:
        return None
    used = TokensUsed(round(picture.tokens_in * MTOK), round(picture.tokens_out * MTOK))
    return prices.microusd(used, in_batch=packs(lane)) / MTOK / MTOK * picture.documents


def _measured_in(picture: Picture, lane: str) -> MeasuredLane | None:
    """Return what the earlier job was in this lane; None where it has answered nothing there."""
    return None if picture.job is None else picture.job.lanes.get(lane)


def _charges_alike(one: str, other: str) -> bool:
    return has_own_model(one) == has_own_model(other) and packs(one) == packs(other)
