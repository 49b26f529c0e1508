"""What a document of a job costs in a lane: by the answers that it has, else by what was estimated
at its submit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock_ledger.model import Counts
from penstock_producer.accepting.estimates import Estimate
from penstock_producer.job.lanes import has_own_model, packs
from penstock_producer.pins import ESTIMATE
from penstock_producer.prices.token_prices import ModelPrices

__all__ = ["Tokens", "model_of", "tokens_each", "usd_each"]

MEASURED_FROM: Final = 20
"""Answers that say more than an estimate."""


class Tokens(NamedTuple):
    """Of a document."""

    into: float
    out: float


def tokens_each(source: Mapping[str, Any], counts: Counts) -> Tokens | None:
    """None: nothing is known of the job's documents yet."""
    asked = counts.succeeded + counts.dead - sum(counts.reused.values())
    if asked >= MEASURED_FROM and counts.prompt_tokens:
        return Tokens(counts.prompt_tokens / asked, counts.completion_tokens / asked)
    guess = source.get(ESTIMATE)
    if not isinstance(guess, dict) or not guess.get("documents"):
        return None
    return Tokens(guess["tokens_in"] / guess["documents"], guess["tokens_out"] / guess["documents"])


def model_of(source: Mapping[str, Any]) -> str | None:
    """That the requests of a job name which names none itself: the first one's, as its submit has
    seen it."""
    guess = source.get(ESTIMATE)
    model = guess.get("model") if isinstance(guess, dict) else None
    return model if isinstance(model, str) else None


def usd_each(lane: str, tokens: Tokens | None, prices: ModelPrices | None) -> float | None:
    """At a provider's prices; None for lanes that ask none, and where tokens or prices are not
    known."""
    if tokens is None or has_own_model(lane):
        return None
    many = 1_000  # tokens are counted whole
    guess = Estimate(round(tokens.into * many), round(tokens.out * many), True)
    cost = guess.usd(prices, in_batch=packs(lane))
    return None if cost is None else cost / many
