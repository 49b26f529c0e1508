"""The beginnings that get an explicit cache: a pure decision by documents, prices and time.

Such a cache is paid for once as input, costs rent by the hour, and is read for sure. It is made
where that costs less than to send its beginning at the full price with each document: nothing is
promised of caches that a provider keeps by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock_producer.planning.prefixes import Shared
from penstock_producer.prices import ModelPrices

__all__ = ["LIFETIME_S", "Rent", "cache_microusd", "pays", "rent_microusd", "rents"]

LIFETIME_S: Final = 300.0
"""For so long a cache is made, and renewed while documents use it: what is forgotten ends by itself
after five minutes, and a longer one would be paid for beyond its last document."""
SLOWEST_PER_S: Final = 1.0
"""Documents that are answered each second, at least: what they will be is not known before. Eight
calls under way that take eight seconds each are as many."""
HOUR_S: Final = 3_600.0


class Rent(NamedTuple):
    """The explicit caches of a job: what they hold and cost."""

    names: frozenset[bytes] = frozenset()  # of the beginnings
    read: float = 0.0  # tokens, by all documents together
    held: float = 0.0  # tokens, of all caches together
    microusd: float = 0.0  # of making and keeping them


def pays(group: Shared, documents: int, prices: ModelPrices) -> bool:
    """Return whether a cache costs less than what ``documents`` of a group send without it.

    Without it the beginning of the group around it may be cached all the same."""
    cached = prices.input if prices.cached_input is None else prices.cached_input
    saves = documents * group.new_tokens * (prices.input - cached)
    return cache_microusd(group.tokens, documents, prices) < saves


def cache_microusd(tokens: float, documents: int, prices: ModelPrices) -> float:
    """Return the cost of making a cache, and of keeping it while its documents are answered."""
    kept_s = documents / SLOWEST_PER_S + LIFETIME_S
    return tokens * prices.input + rent_microusd(tokens, kept_s, prices)


def rent_microusd(tokens: float, seconds: float, prices: ModelPrices) -> float:
    """Return the rent of so many tokens for a time; dollars a million are millionths for each."""
    return tokens * (prices.cache_hour or 0.0) * seconds / HOUR_S


def rents(groups: Sequence[Shared], sent: float, prices: ModelPrices) -> Rent:
    """Return the caches that are worth it; ``sent`` is the share of documents that are sent.

    A document reads the longest of its beginnings that has a cache, so it counts for no other."""
    parents: Mapping[bytes, bytes] = {group.name: group.parent for group in groups}
    taken, found = Counter[bytes](), Rent()
    for group in sorted(groups, key=lambda one: one.depth, reverse=True):
        documents = round((group.documents - taken[group.name]) * sent)
        if not pays(group, documents, prices):
            continue
        around = group.parent
        while around:
            taken[around] += group.documents - taken[group.name]
            around = parents.get(around, b"")
        found = Rent(
            found.names | {group.name},
            found.read + documents * group.tokens,
            found.held + group.tokens,
            found.microusd + cache_microusd(group.tokens, documents, prices),
        )
    return found
