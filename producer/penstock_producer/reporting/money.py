"""A job has costs by lane, and its batches, its equal requests and the cache saved some.

Prices are written in the same words wherever they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock_ledger.model import Paid, Saving
from penstock_producer.accepting.estimates import MTOK
from penstock_producer.job.lanes import has_own_model, packs
from penstock_producer.reporting.text import usd

if TYPE_CHECKING:
    from penstock_ledger import MadeWith
    from penstock_ledger.model import Counts, LaneCounts
    from penstock_producer.prices import ModelPrices

__all__ = [
    "MICRO",
    "LaneCost",
    "Money",
    "Saved",
    "SavedBy",
    "as_json",
    "by_lane",
    "cost_of_engines",
    "cost_of_providers",
    "is_unpriced",
    "known_from",
    "money_of",
    "notes_savings",
    "per_million",
    "saved",
    "saved_by_cause",
    "saved_in_all",
    "together",
    "usd_or_unknown",
]


UNKNOWN = "unknown"
MICRO = 1_000_000


def per_million(per_input: float, per_output: float) -> str:
    return f"{usd(per_input)} in, {usd(per_output)} out per million tokens"


def known_from(prices: ModelPrices) -> str:
    """Return where prices come from, and when they were compared."""
    return (
        "by settings"
        if prices.checked is None
        else f"as {prices.source} had them on {prices.checked}"
    )


def usd_or_unknown(amount: float | None) -> str:
    return UNKNOWN if amount is None else usd(amount)


class Money(NamedTuple):
    """The money that was spent, as far as prices are known."""

    known_usd: float
    is_whole: bool  # whether a price is known of all of it

    @property
    def usd(self) -> float | None:
        """For programs: None where a part is not known."""
        return self.known_usd if self.is_whole else None

    @property
    def words(self) -> str:
        """For people."""
        if self.is_whole:
            return usd(self.known_usd)
        return (
            f"at least {usd(self.known_usd)} (some prices unknown)" if self.known_usd else UNKNOWN
        )


class Spent(Protocol):
    """Sums of payments, as accounts have them."""

    @property
    def cost_microusd(self) -> int: ...
    @property
    def unpriced(self) -> int: ...


def money_of(spent: Spent, *, is_priced: bool = True) -> Money:
    """Return what was spent. ``is_priced`` False: the caller knows that some of it has no price."""
    return Money(round(spent.cost_microusd / MICRO, 6), is_priced and not spent.unpriced)


def together(parts: Iterable[Money]) -> Money:
    """Return their sum; nothing is a sum of nothing."""
    every = list(parts)
    return Money(round(sum(one.known_usd for one in every), 6), all(one.is_whole for one in every))


class LaneCost(NamedTuple):
    """Of one lane. ``None`` for money: of some of it no price is known."""

    lane: str | None  # None: see ``besides``
    succeeded: int
    dead: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    known_usd: float = 0.0  # the same without that
    # of what has no lane: paid besides outcomes; else outcomes that no lane is noted of
    besides: bool = False

    @property
    def money(self) -> Money:
        return Money(self.known_usd, self.cost_usd is not None)

    @property
    def documents(self) -> int:
        return self.succeeded + self.dead


class SavedBy(NamedTuple):
    """The difference that one cause made to the cost of answers, below 0 where they cost more."""

    answers: int
    tokens: int  # of them that the cause is about
    saved_usd: float | None  # None: of some of it no price is known
    known_usd: float  # the same without that

    @property
    def money(self) -> Money:
        return Money(self.known_usd, self.saved_usd is not None)


class Saved(NamedTuple):
    """US dollars; None where the price that they are compared with is not known."""

    batch_discount_usd: float | None
    dedup_usd: float | None
    cache_usd: float | None
    # by service tiers and the provider's prompt cache, as each answer was booked
    by_cause: Mapping[str, SavedBy]
    is_noted: bool = True  # False: releases that booked none of that made some of the answers

    def to_json(self) -> dict[str, Any]:
        by_cause = {cause: one._asdict() for cause, one in self.by_cause.items()}
        return {**self._asdict(), "by_cause": by_cause}


def by_lane(
    counts: Counts, lanes: Sequence[LaneCounts], own_lane: str | None, made_with: Sequence[MadeWith]
) -> list[LaneCost]:
    """Return what each lane cost, the dearest first.

    What the ledger has no lane of belongs to ``own_lane``; that is None where a job has moved.
    """
    rest = _rest(counts, lanes)
    sums: dict[str | None, list[int]] = {one.lane: _figures(one) for one in lanes}
    found = list[LaneCost]()
    if own_lane is None:
        beside = [0, 0, *counts.beside]
        rest = [max(0, figure - paid) for figure, paid in zip(rest, beside, strict=True)]
        if any(beside):
            found.append(_lane_cost(None, beside, made_with)._replace(besides=True))
    if any(rest) if own_lane is None else rest[0] or any(rest[2:]):
        known = sums.get(own_lane, [0] * len(rest))
        sums[own_lane] = [before + more for before, more in zip(known, rest, strict=True)]
    found += [_lane_cost(lane, figures, made_with) for lane, figures in sums.items()]
    return sorted(found, key=lambda one: (-(one.cost_usd or 0.0), -one.documents, one.lane or ""))


def is_unpriced(one: MadeWith) -> bool:
    """Return whether what was made so has no known price.

    An hour of 0 is one that was never set."""
    if one.engine:
        return not one.usd_per_hour
    return one.usd_per_mtok_in is None and one.usd_per_mtok_out is None


def cost_of_engines(lanes: Sequence[LaneCost]) -> float | None:
    """Return the cost of lanes that host a model."""
    return _total([one.cost_usd for one in lanes if has_own_model(one.lane or "")])


def cost_of_providers(lanes: Sequence[LaneCost]) -> float | None:
    return _total([one.cost_usd for one in lanes if not has_own_model(one.lane or "")])


def saved(
    counts: Counts,
    lanes: Sequence[LaneCost],
    made_with: Sequence[MadeWith],
    savings: Iterable[Saving] = (),
) -> Saved:
    """Return what was saved, by the prices that the job's results were made with.

    Where these differ, an answer that was used again counts as the mean of those that were asked.
    ``savings``: as answers were booked.
    """
    return Saved(
        _by_discount(lanes, made_with),
        _by_reuse("dedup", counts, made_with),
        _by_reuse("cache", counts, made_with),
        saved_by_cause(savings),
        all(map(notes_savings, made_with)),
    )


def saved_by_cause(savings: Iterable[Saving]) -> dict[str, SavedBy]:
    """Return savings as reports show them, by cause."""
    found = dict[str, SavedBy]()
    for one in savings:
        money = Money(round(one.saved_microusd / MICRO, 6), not one.unpriced)
        found[one.cause] = SavedBy(one.answers, one.tokens, money.usd, money.known_usd)
    return found


def saved_in_all(savings: Iterable[Saving], *, is_noted: bool = True) -> Money:
    """Return what all causes saved together, below 0 where answers cost more.

    ``is_noted`` False: releases that booked nothing of it made some of the answers."""
    every = list(savings)
    known = round(sum(one.saved_microusd for one in every) / MICRO, 6)
    return Money(known, is_noted and not any(one.unpriced for one in every))


def notes_savings(one: MadeWith) -> bool:
    """Return whether what its answers saved is booked; a model in the worker has no such prices."""
    return one.notes_savings or bool(one.engine)


def _rest(counts: Counts, lanes: Sequence[LaneCounts]) -> list[int]:
    """Return what no lane is known of, never below 0.

    Both are read one after the other, and documents end in between.
    """
    whole = (
        counts.succeeded,
        counts.dead,
        counts.calls,
        counts.prompt_tokens,
        counts.completion_tokens,
        counts.cost_microusd,
        counts.unpriced,
    )
    known = [sum(column) for column in zip(*(_figures(one) for one in lanes), strict=True)] or [
        0
    ] * len(whole)
    return [max(0, figure - of_lanes) for figure, of_lanes in zip(whole, known, strict=True)]


def _figures(one: LaneCounts) -> list[int]:
    return [
        one.succeeded,
        one.dead,
        one.calls,
        one.prompt_tokens,
        one.completion_tokens,
        one.cost_microusd,
        one.unpriced,
    ]


def _lane_cost(lane: str | None, figures: Sequence[int], made_with: Sequence[MadeWith]) -> LaneCost:
    succeeded, dead, *paid = figures
    sums = Paid(*paid)
    unpriced = any(
        is_unpriced(one) for one in made_with if lane == one.lane or (lane is None and sums.calls)
    )
    money = money_of(sums, is_priced=not unpriced)
    return LaneCost(
        lane,
        succeeded,
        dead,
        sums.calls,
        sums.prompt_tokens,
        sums.completion_tokens,
        money.usd,
        money.known_usd,
    )


def _by_discount(lanes: Sequence[LaneCost], made_with: Sequence[MadeWith]) -> float | None:
    """Return what the discount of batches saved.

    A batch that cost c at a discount of d would have cost c / (1 - d).
    """
    discounts = {one.batch_discount or 0.0 for one in made_with if packs(one.lane)}
    costs = [one.cost_usd for one in lanes if packs(one.lane or "")]
    if not costs or discounts <= {0.0}:
        return 0.0
    cost = _total(costs)
    discount = discounts.pop() if len(discounts) == 1 else 1.0
    return None if cost is None or discount == 1.0 else round(cost * discount / (1.0 - discount), 6)


def _by_reuse(how: str, counts: Counts, made_with: Sequence[MadeWith]) -> float | None:
    number = counts.reused.get(how, 0)
    if not number:
        return 0.0
    if any(map(is_unpriced, made_with)):
        return None
    prices = {
        (one.usd_per_mtok_in or 0.0, one.usd_per_mtok_out or 0.0, one.batch_discount or 0.0)
        for one in made_with
        if not one.engine
    }
    if len(prices) == 1 and not any(one.engine for one in made_with):
        per_input, per_output, discount = prices.pop()
        prompt, completion = counts.reused_tokens.get(how, (0, 0))
        ordinary = prompt * per_input + completion * per_output
        return round((1.0 - discount) * ordinary / MTOK, 6)
    asked = counts.succeeded - sum(counts.reused.values())
    return round(number * counts.cost_microusd / MICRO / asked, 6) if asked > 0 else None


def _total(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return round(sum(known), 6) if len(known) == len(costs) else None


def as_json(lanes: Sequence[LaneCost]) -> list[dict[str, Any]]:
    return [one._asdict() for one in lanes]
