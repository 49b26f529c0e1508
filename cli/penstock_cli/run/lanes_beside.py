"""What a job would take on each lane, side by side: cost, time and what bounds it. Nothing is called for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock_cli.show.text import duration, usd
from penstock_producer.job.lanes import LANES, packs, served_lanes

if TYPE_CHECKING:
    from rich.table import Table

    from penstock_producer.accepting.estimates import Estimate
    from penstock_producer.job.spec import JobSpec
    from penstock_workers.settings import ProviderSettings

BATCH_WINDOW_H: Final = 24  # the completion window of every provider's batches
UNKNOWN: Final = "unknown"


class LaneGuess(NamedTuple):
    """In words for people; ``bound``: what makes it take that long, or why it is not known."""

    lane: str
    cost: str
    time: str
    bound: str


def beside(guess: Estimate, documents: int, spec: JobSpec, provider: ProviderSettings) -> list[LaneGuess]:
    """One row per lane that can answer the job's endpoint."""
    return [_guess(lane, guess, documents, spec, provider) for lane in served_lanes() if _can_answer(lane, spec)]


def table(rows: list[LaneGuess]) -> Table:
    from rich.table import Table

    shown = Table(
        "lane", "cost", "time", "bounded by", box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim"
    )
    for row in rows:
        shown.add_row(*row)
    return shown


def _can_answer(lane: str, spec: JobSpec) -> bool:
    """A lane for one endpoint only is no choice for the jobs of others."""
    only = LANES[lane].endpoint
    return only is None or only == spec.endpoint


def _guess(lane: str, guess: Estimate, documents: int, spec: JobSpec, provider: ProviderSettings) -> LaneGuess:
    if LANES[lane].has_own_model:
        return LaneGuess(
            lane, UNKNOWN, UNKNOWN, "how fast your cards are; --sample 100 --lane " + lane + " measures it"
        )
    cost = guess.usd(provider.prices_of(spec.model), in_batch=packs(lane))
    in_words = UNKNOWN if cost is None else f"about {usd(cost)}"
    return LaneGuess(lane, in_words, *(_in_batches() if packs(lane) else _in_real_time(guess, documents, provider)))


def _in_batches() -> tuple[str, str]:
    return f"up to {BATCH_WINDOW_H} h", f"the provider's window of {BATCH_WINDOW_H} h; most batches end sooner"


def _in_real_time(guess: Estimate, documents: int, provider: ProviderSettings) -> tuple[str, str]:
    """By the declared limits. What a provider allows beyond them, or by its headers alone, is not known before calls."""
    minutes = {
        f"{limit:,.0f} {words} a minute": units / limit
        for words, units, limit in (
            ("requests", documents, provider.rpm),
            ("tokens", guess.tokens_in + guess.tokens_out, provider.tpm),
            ("input tokens", guess.tokens_in, provider.itpm),
            ("output tokens", guess.tokens_out, provider.otpm),
        )
        if limit is not None
    }
    if not minutes:
        return UNKNOWN, "the provider's limits; give --rpm and --tpm"
    binding = max(minutes, key=minutes.__getitem__)
    return f"about {duration(math.ceil(minutes[binding] * 60))}", binding
