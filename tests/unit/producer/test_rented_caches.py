"""An explicit cache is made where it costs less than what it saves, and for nothing else."""

from __future__ import annotations

import pytest

from penstock_producer.planning.prefixes import CachedPrompts, Shared, kept_groups
from penstock_producer.planning.rented_caches import (
    LIFETIME_S,
    cache_microusd,
    pays,
    rent_microusd,
    rents,
)
from penstock_producer.prices import ModelPrices, known_prices

GOOGLE = "https://generativelanguage.googleapis.com"
PRO = known_prices(GOOGLE, "gemini-2.5-pro") or ModelPrices(input=0.0)


def group(
    name: str, documents: int, tokens: float = 10_000, new: float | None = None, parent: str = ""
) -> Shared:
    depth = 2 if parent else 1
    given = tokens if new is None else new
    return Shared(name.encode() * 6, depth, documents, tokens, given, parent.encode() * 6)


def test_the_cost_of_a_cache_is_input_once_and_rent_by_the_hour() -> None:
    """A million tokens for an hour cost 1.25 and 4.50 dollars at gemini-2.5-pro."""
    assert rent_microusd(1_000_000, 3_600, PRO) == 4_500_000
    hour = round(3_600 - LIFETIME_S)  # documents, one each second, and the lifetime behind them
    assert cache_microusd(1_000_000, hour, PRO) == pytest.approx(1_250_000 + 4_500_000)


@pytest.mark.parametrize("tokens", [4_096, 1_000_000])
def test_it_pays_from_two_documents_on_whatever_its_length(tokens: float) -> None:
    """Each saves 1.125 of a million at gemini-2.5-pro; making it and five minutes cost 1.625."""
    assert [pays(group("a", 1, tokens), many, PRO) for many in (0, 1, 2, 3, 4_000)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_it_does_not_pay_where_its_rent_is_dear_or_reading_saves_nothing() -> None:
    """By the prices that are given, and no others."""
    dear = PRO.model_copy(update={"cache_hour": 10_000.0})
    assert not pays(group("a", 1_000), 1_000, dear)
    assert not pays(group("a", 1_000), 1_000, PRO.model_copy(update={"cached_input": 1.25}))
    assert not pays(group("a", 1_000), 1_000, ModelPrices(input=1.0))


def test_a_document_counts_for_the_longest_of_its_beginnings_alone() -> None:
    """So instructions that all documents share need no cache where their manuals have one."""
    manuals = [group(name, 50, 10_000, 6_000, "i") for name in "ab"]
    found = rents([group("i", 100, 4_000), *manuals], 1.0, PRO)
    assert found.names == {manual.name for manual in manuals}
    assert (found.read, found.held) == (100 * 10_000, 20_000)
    more = rents([group("i", 140, 4_000), *manuals], 1.0, PRO)
    assert more.names == {b"i" * 6, *found.names}
    assert more.read == found.read + 40 * 4_000
    assert more.microusd == found.microusd + cache_microusd(4_000, 40, PRO)


def test_an_addition_that_is_short_gets_no_cache_of_its_own() -> None:
    """It would be paid for with all that stands before it, which another cache has already."""
    found = rents([group("i", 9, 40_000), group("a", 3, 40_200, 200, "i")], 1.0, PRO)
    assert found.names == {b"i" * 6}
    assert found.read == 9 * 40_000


def test_documents_that_are_not_sent_save_nothing() -> None:
    """As duplicates that another one's answer serves."""
    assert rents([group("a", 10)], 0.1, PRO).names == frozenset()


def test_workers_know_the_beginnings_that_have_one() -> None:
    """They are kept with the job; where its provider has no such caches they count for nothing."""
    groups = [group("a", 10), group("b", 10)]
    source = {"prefixes": kept_groups(groups, "gemini-2.5-pro", [b"b" * 6])}
    at = ("", "/v1beta/generateContent")
    found = CachedPrompts.of(source, "gemini", *at, packs=False)
    batches = CachedPrompts.of(source, "gemini", *at, packs=True)
    assert found is not None
    assert batches is not None
    assert (found.rented, batches.rented) == (frozenset({(b"b" * 6).hex()}), frozenset())
