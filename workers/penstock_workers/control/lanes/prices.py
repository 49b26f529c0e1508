"""Says what a document of a job costs in a lane.

By the answers that the job has, else by what was estimated when it was submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock_ledger.model import Counts
from penstock_producer.accepting.estimates import Estimate
from penstock_producer.job.lanes import has_own_model, packs
from penstock_producer.pins import ESTIMATE
from penstock_producer.prices import ModelPrices

__all__ = ["Tokens", "model_of", "tokens_each", "usd_each"]


MEASURED_FROM: Final = 20
"""Answers that say more than an estimate."""


class Tokens(NamedTuple):
    """The tokens of a document."""

    into: float
    out: float


def tokens_each(source: Mapping[str, Any], counts: Counts) -> Tokens | None:
    """Return the tokens of a document; None while nothing is known of the job's documents."""
    asked = counts.succeeded + counts.dead - sum(counts.reused.values())
    if asked >= MEASURED_FROM and counts.prompt_tokens:
        return Tokens(counts.prompt_tokens / asked, counts.completion_tokens / asked)
    guess = source.get(ESTIMATE)
    if not isinstance(guess, dict) or not guess.get("documents"):
        return None
    return Tokens(guess["tokens_in"] / guess["documents"], guess["tokens_out"] / guess["documents"])


def model_of(source: Mapping[str, Any]) -> str | None:
    """Return the model of a job that names none itself.

    It is that of its first request, as noted when the job was submitted."""
    guess = source.get(ESTIMATE)
    model = guess.get("model") if isinstance(guess, dict) else None
    return model if isinstance(model, str) else None


def usd_each(lane: str, tokens: Tokens | None, prices: ModelPrices | None) -> float | None:
    """Return the cost of a document at a provider's prices, in USD.

    None for lanes that ask no provider, and where tokens or prices are not known."""
    if tokens is None or has_own_model(lane):
        return None
    many = 1_000  # tokens are counted whole
    guess = Estimate(round(tokens.into * many), round(tokens.out * many), True)
    cost = guess.usd(prices, in_batch=packs(lane))
    return None if cost is None else cost / many
