"""A job's lanes are compared side by side, and one of them is chosen for it."""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock_cli.job.lane_needs import BATCH_WINDOW_S
from penstock_producer.job.lanes import AUTO, LANES, can_answer, packs
from penstock_producer.reporting.advice import on_terminal
from penstock_producer.reporting.text import duration, usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from penstock_cli.connect import Books
    from penstock_ledger.model import Job
    from penstock_producer.accepting.estimates import Estimate
    from penstock_producer.job.spec import JobSpec
    from penstock_workers.lane_changes import LaneChangeSettings
    from penstock_workers.settings import ProviderSettings, WorkerSettings


UNKNOWN: Final = "unknown"


class LaneGuess(NamedTuple):
    """None where it is not known.

    ``bound``: what makes it take that long, or why that is not known."""

    lane: str
    cost_usd: float | None
    seconds: float | None
    bound: str


def beside(
    guess: Estimate, documents: int, spec: JobSpec, provider: ProviderSettings
) -> list[LaneGuess]:
    """Return one row per lane that can answer the job's endpoint."""
    return [
        _guess(lane, guess, documents, spec, provider)
        for lane in LANES
        if can_answer(lane, spec.endpoint)
    ]


def table(rows: Sequence[LaneGuess]) -> Table:
    """Return the table for people: a batch takes at most its window, others about their time."""

    from penstock_cli.show.terminal import plain_table

    shown = plain_table("lane", "cost", "time", "bounded by")
    for row in rows:
        about = "up to" if packs(row.lane) else "about"
        shown.add_row(
            row.lane,
            UNKNOWN if row.cost_usd is None else f"about {usd(row.cost_usd)}",
            UNKNOWN if row.seconds is None else f"{about} {duration(row.seconds)}",
            row.bound,
        )
    return shown


def _guess(
    lane: str, guess: Estimate, documents: int, spec: JobSpec, provider: ProviderSettings
) -> LaneGuess:
    if LANES[lane].has_own_model:
        return LaneGuess(
            lane,
            None,
            None,
            f"how fast your GPUs are; a run with --lane {lane} --sample 100 measures it",
        )
    cost = guess.usd(provider.prices_of(spec.model, tier=spec.tier_in(lane)), in_batch=packs(lane))
    if cost is not None:
        cost *= guess.factors.get(lane, 1.0)
    if packs(lane):
        if (too_few := provider.too_few(documents)) is not None:
            return LaneGuess(lane, None, None, f"refused: {too_few}")
        return LaneGuess(lane, cost, *_in_batches(guess, provider.batch_enqueued_tokens))
    return LaneGuess(lane, cost, *_in_real_time(guess, documents, provider))


def _in_batches(guess: Estimate, at_once: int | None) -> tuple[float, str]:
    """Return the longest time and its bound, where a provider packs.

    One window of the provider follows another, where the account may not have all tokens in batches
    at once."""
    rounds = 1 if at_once is None else max(1, math.ceil(guess.tokens_in / at_once))
    if at_once is None or rounds == 1:
        return BATCH_WINDOW_S, "the window of the provider's batches; most end sooner"
    return (
        rounds * BATCH_WINDOW_S,
        f"{at_once:,} tokens in batches at once: {rounds:,} rounds, most of them sooner",
    )


def _in_real_time(
    guess: Estimate, documents: int, provider: ProviderSettings
) -> tuple[float | None, str]:
    """Return the seconds by the declared limits, and which of them binds.

    What a provider allows beyond them, or by its headers alone, is not known before calls.
    """
    needed = {
        "requests": documents,
        "tokens": guess.tokens_in + guess.tokens_out,
        "input_tokens": guess.tokens_in,
        "output_tokens": guess.tokens_out,
    }
    minutes = {
        f"{limit:,.0f} {dim.replace('_', ' ')} a minute": needed[dim] / limit
        for dim, limit in provider.limits_of_ours.items()
    }
    if not minutes:
        return None, "the provider's limits; give --rpm and --tpm"
    binding = max(minutes, key=minutes.__getitem__)
    return math.ceil(minutes[binding] * 60), binding


def choice_lines(
    spec: JobSpec,
    guess: Estimate,
    documents: int,
    provider: ProviderSettings,
    rules: LaneChangeSettings,
) -> list[str]:
    """Return what a preview says about the choice of lane.

    It asks no store: what a batch takes is not known to it. ``rules`` is `[lanes]` of the settings.
    """
    from penstock_workers.control.lanes.forecast import Known, forecast, late

    known = Known(provider, provider.limits_of_ours, provider.batch_enqueued_tokens)
    asked = (spec, guess, documents, known, rules, time.time())
    lines = []
    if spec.lane == AUTO:
        choice = forecast(*asked)
        lines.append(f"lane {AUTO} would begin with {choice.name}: {choice.why}")
    warning = late(*asked)
    return (
        lines
        if warning is None or (spec.lane == AUTO and "No lane" in lines[0])
        else [*lines, on_terminal(warning)]
    )


def late_warning(ledger: Books, job: Job, settings: WorkerSettings | None = None) -> str | None:
    """Say of a job just accepted that its deadline may not be met, and what would meet it.

    ``settings`` are those of its workers, where they are known; else as they stand here."""
    import redis

    from penstock_producer.accepting.estimates import Estimate
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.pins import ESTIMATE
    from penstock_workers.control.lanes.forecast import HISTORY, Known, late
    from penstock_workers.settings import WorkerSettings

    spec, found = JobSpec.accepted(job.spec), job.source.get(ESTIMATE)
    if spec.deadline_s is None or job.moves or not isinstance(found, dict):
        return None
    settings = settings or WorkerSettings.load()
    provider = settings.providers.get(spec.provider)
    if provider is None:
        return None
    view = None
    with contextlib.suppress(redis.RedisError, OSError):
        view = ledger.quota(spec.provider)
    known = Known(
        provider,
        provider.limits_of_ours,
        provider.batch_enqueued_tokens,
        ledger.batches_lasted(spec.provider, HISTORY),
        view,
    )
    guess = Estimate(
        found["tokens_in"],
        found["tokens_out"],
        found["capped"],
        model=found.get("model"),
        factors=found.get("factors") or {},
    )
    warning = late(spec, guess, found["documents"], known, settings.lanes, time.time())
    return None if warning is None else on_terminal(warning)
