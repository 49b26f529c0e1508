"""What tokens cost: whose prices win, and what an answer costs by them."""

from __future__ import annotations

import datetime
import tomllib
from importlib.resources import files
from typing import Any

import pytest
from pydantic import ValidationError

from penstock_ledger import Saving
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.prices import (
    LongPrices,
    ModelPrices,
    TokensUsed,
    known_discount,
    known_gpus,
    known_prices,
    saved,
)
from penstock_workers.item.answer_forms import counted, tier_of, tokens_used, usage_of

OPENAI = "https://api.openai.com/v1"
PRICES = ModelPrices(input=2.0, output=8.0, cached_input=0.5, batch_discount=0.5)


def test_cached_tokens_cost_what_they_cost_and_the_others_the_full_price() -> None:
    """1,000,000 tokens of prompt of which 400,000 were cached, and 100,000 of completion."""
    used = TokensUsed(prompt=1_000_000, completion=100_000, cached=400_000)
    assert PRICES.microusd(used) == 600_000 * 2 + 400_000 * 0.5 + 100_000 * 8


def test_a_batch_costs_half() -> None:
    """The discount holds for tokens of every kind."""
    used = TokensUsed(prompt=1_000, completion=100, cached=400)
    assert PRICES.microusd(used, in_batch=True) * 2 == PRICES.microusd(used)


def test_a_batch_without_a_known_discount_costs_the_full_price() -> None:
    """A budget must not believe in a discount that was not stated."""
    prices = PRICES.model_copy(update={"batch_discount": None})
    used = TokensUsed(1_000, 100)
    assert prices.microusd(used, in_batch=True) == prices.microusd(used)


def test_writes_of_the_cache_and_reasoning_have_prices_of_their_own() -> None:
    """What a row leaves out costs what input and output do."""
    prices = ModelPrices(input=3.0, output=15.0, cached_input=0.3, cache_write=3.75)
    used = TokensUsed(prompt=1_000, completion=200, cached=300, cache_written=500, reasoning=150)
    assert prices.microusd(used) == round(200 * 3 + 300 * 0.3 + 500 * 3.75 + 200 * 15)
    dearer = prices.model_copy(update={"reasoning": 20.0})
    assert dearer.microusd(used) - prices.microusd(used) == 150 * 5


def test_what_is_kept_in_the_cache_for_an_hour_costs_more() -> None:
    """Anthropic charges its writes for an hour twice the input, and those for five minutes a
    quarter more than it."""
    prices = ModelPrices(
        input=3.0, output=15.0, cached_input=0.3, cache_write=3.75, cache_write_hour=6.0
    )
    kept = {"ephemeral_5m_input_tokens": 300, "ephemeral_1h_input_tokens": 200}
    usage = {
        "input_tokens": 9,
        "cache_creation_input_tokens": 500,
        "cache_creation": kept,
        "output_tokens": 4,
    }
    used = tokens_used(usage, *counted(usage))
    assert used == TokensUsed(509, 4, 0, 500, cache_written_hour=200)
    assert prices.microusd(used) == round(9 * 3 + 300 * 3.75 + 200 * 6 + 4 * 15)
    assert prices.model_copy(update={"cache_write_hour": None}).microusd(used) == round(
        9 * 3 + 500 * 3.75 + 4 * 15
    )
    assert tokens_used({**usage, "cache_creation": 7}, *counted(usage)).cache_written_hour == 0
    known = known_prices("https://api.anthropic.com", "claude-sonnet-4-5")
    assert known is not None
    assert known.long is not None
    assert (known.cache_write_hour, known.long.cache_write_hour) == (6.0, 12.0)


def test_a_long_prompt_costs_the_prices_of_long_ones() -> None:
    """At the border a request is still a short one; what the long row leaves out stays as it is."""
    prices = ModelPrices(input=1.0, output=2.0, long=LongPrices(above=1_000, input=4.0))
    assert prices.microusd(TokensUsed(1_000, 10)) == 1_020
    assert prices.microusd(TokensUsed(1_001, 10)) == 4_024


def test_a_service_tier_costs_what_the_table_says_of_it() -> None:
    """Flex is half of everything, long prompts included; priority has prices of its own; where the
    table has none of a dearer tier, the cost is unknown and no guess."""
    found = known_prices(OPENAI, "gpt-5.4")
    assert found is not None
    used = TokensUsed(prompt=1_000_000, completion=1_000, cached=200_000)
    flex, priority = found.of_tier("flex"), found.of_tier("priority")
    assert flex is not None
    assert priority is not None
    for asked in (used, used._replace(prompt=10_000, cached=0)):
        assert flex.microusd(asked) * 2 == found.microusd(asked)
    assert (priority.input, priority.cached_input, priority.output) == (5.0, 0.5, 30.0)
    for ordinary in (None, "default", "standard", "auto", "on_demand"):
        assert found.of_tier(ordinary) is found
    without = known_prices(OPENAI, "o3")
    assert without is not None
    assert without.of_tier("priority") is None
    claude = known_prices("https://api.anthropic.com", "claude-sonnet-4-5")
    assert claude is not None
    assert (claude.of_tier("standard"), claude.of_tier("priority")) == (claude, None)


def test_prices_of_yours_hold_for_every_tier_but_those_that_they_name() -> None:
    """A discount that was not stated is not believed in."""
    own = ModelPrices(input=2.0, output=8.0)
    assert own.of_tier("flex") is own
    assert own.of_tier("priority") is own
    named = ModelPrices.model_validate(
        {
            "input": 2.0,
            "output": 8.0,
            "cached_input": 0.5,
            "tiers": {"flex": {"discount": 0.5}, "fast": {"output": 20.0}},
        }
    )
    flex, fast = named.of_tier("flex"), named.of_tier("fast")
    assert flex is not None
    assert fast is not None
    assert (flex.input, flex.output, flex.cached_input) == (1.0, 4.0, 0.25)
    assert (fast.input, fast.output, fast.cached_input) == (2.0, 20.0, 0.5)
    facts = ProviderFacts(prices={"m": named})
    assert facts.prices_of("m", tier="flex") == flex
    with pytest.raises(ValidationError, match="discount"):
        ModelPrices.model_validate({"input": 1, "tiers": {"flex": {"discount": 2}}})


def test_what_a_cause_saves_is_what_the_answer_would_have_cost_without_it() -> None:
    """Flex against the ordinary price, and the prompt cache at the price of the tier: each by
    itself. Priority costs more, so it saves less than nothing; and what has no price is unknown."""
    found = known_prices(OPENAI, "gpt-5-mini")
    used = TokensUsed(prompt=1_000_000, completion=100_000, cached=400_000)
    of_cache = 400_000 * (0.25 - 0.025)
    assert saved(found, used, tier="flex") == [
        Saving("tier:flex", 1, 1_100_000, 180_000),
        Saving("prompt_cache", 1, 400_000, round(of_cache / 2)),
    ]
    assert saved(found, used, tier="default") == [Saving("prompt_cache", 1, 400_000, 90_000)]
    assert saved(found, TokensUsed(1_000_000, 0), tier="priority") == [
        Saving("tier:priority", 1, 1_000_000, -200_000)
    ]
    for prices in (None, found):
        of_scale, _ = saved(prices, used, tier="scale")
        assert of_scale == Saving("tier:scale", 1, 1_100_000, 0, unpriced=1)
    assert saved(found, TokensUsed(100, 10), tier="of a provider's own") == []


@pytest.mark.parametrize(
    ("answer", "tier"),
    [
        ({"usage": {"prompt_tokens": 1}, "service_tier": "flex"}, "flex"),
        ({"usage": {"prompt_tokens": 1}, "service_tier": None}, None),
        ({"usage": {"prompt_tokens": 1}, "service_tier": ["flex"]}, None),
        ({"usage": {"prompt_tokens": 1}}, None),
        ({"usage": {"input_tokens": 1, "service_tier": "priority"}}, "priority"),
        ({"usageMetadata": {"promptTokenCount": 1, "serviceTier": "flex"}}, "flex"),
        ({"usageMetadata": {"promptTokenCount": 1, "trafficType": "ON_DEMAND_FLEX"}}, "flex"),
        ({"usageMetadata": {"promptTokenCount": 1, "trafficType": "ON_DEMAND"}}, "on_demand"),
        ({}, None),
    ],
)
def test_the_tier_is_the_one_that_the_answer_names(
    answer: dict[str, Any], tier: str | None
) -> None:
    """OpenAI names it beside the usage, Anthropic and Gemini in it; what was asked for is no
    account of what was given."""
    assert tier_of(usage_of(answer)) == tier


def test_an_answer_that_says_more_cached_than_asked_costs_no_less_than_nothing() -> None:
    """What servers say of their tokens is not to be trusted."""
    assert (
        PRICES.microusd(
            TokensUsed(prompt=10, completion=0, cached=1_000_000, cache_written=1_000_000)
        )
        == 5
    )


def test_the_table_knows_a_model_at_its_providers_address_and_not_elsewhere() -> None:
    """A server of one's own with a model of the same name costs nothing that a provider asks."""
    known = known_prices(OPENAI, "gpt-4o-mini-2024-07-18")
    assert known is not None
    assert (known.input, known.cached_input, known.output, known.batch_discount) == (
        0.15,
        0.075,
        0.6,
        0.5,
    )
    assert known_prices("http://127.0.0.1:8000/v1", "gpt-4o-mini") is None
    assert known_prices("https://api.openai.com.example.org/v1", "gpt-4o-mini") is None
    assert known_prices("http://[::bad", "gpt-4o-mini") is None


def test_a_name_that_only_begins_like_a_known_one_is_unknown() -> None:
    """A new model must not cost what an old one did."""
    assert known_prices(OPENAI, "gpt-4o-mini-2") is None
    assert known_prices("https://api.anthropic.com/v1", "claude-opus-5-5") is None


def test_a_release_with_a_price_of_its_own_has_it() -> None:
    """The date at a model's end is looked past only where the full name has no row."""
    first, later = (
        known_prices(OPENAI, "gpt-4o-2024-05-13"),
        known_prices(OPENAI, "gpt-4o-2024-08-06"),
    )
    assert first is not None
    assert later is not None
    assert (first.input, later.input) == (5.0, 2.5)


def test_settings_win_over_the_table_and_a_model_over_all_models() -> None:
    """In this order: the operator's for the model, the operator's for all, the table."""
    own = ModelPrices(input=9.0, output=9.0)
    facts = ProviderFacts(
        base_url=OPENAI, usd_per_mtok_in=1.0, usd_per_mtok_out=2.0, prices={"gpt-4o": own}
    )
    assert facts.prices_of("gpt-4o-2024-08-06", "gpt-4o") == own.model_copy(
        update={"batch_discount": 0.5}
    )
    of_all = facts.prices_of("gpt-4o-mini")
    assert of_all is not None
    assert (of_all.input, of_all.output, of_all.batch_discount) == (1.0, 2.0, 0.5)
    known = ProviderFacts(base_url=OPENAI).prices_of(None, "gpt-4o-mini")
    assert known is not None
    assert known.checked is not None
    assert ProviderFacts(base_url=OPENAI).prices_of("a-model-of-tomorrow") is None
    assert ProviderFacts().prices_of("gpt-4o-mini") is None


def test_a_price_that_is_no_price_is_refused() -> None:
    """Negative, endless and absurd ones, and misspelt fields."""
    for wrong in (
        {"input": -1},
        {"input": "free"},
        {"input": 1e9},
        {"inputs": 1, "input": 1},
        {"input": float("inf")},
    ):
        with pytest.raises(ValidationError):
            ModelPrices.model_validate(wrong)


def test_every_row_of_the_table_can_be_used_and_says_when_it_was_checked() -> None:
    """No model has two prices at one address, no date lies ahead of the table's release, and no
    discount is missing its date."""
    raw = tomllib.loads(files("penstock_producer").joinpath("prices.toml").read_text("utf-8"))
    assert len(raw) >= 6
    gpus = raw.pop("gpus")
    assert all(of_cloud["source"].startswith("https://") for of_cloud in gpus.values())
    rows = [row for of_cloud in gpus.values() for row in of_cloud["cards"]]
    assert all(row["checked"] <= datetime.date(2026, 11, 23) for row in rows)
    assert all(0 < row.get("spot_hour", 0.01) < row["hour"] < 20 for row in rows)
    assert len({name.lower() for name in known_gpus()}) == len(rows)
    for provider in raw.values():
        assert provider["source"].startswith("https://")
        names = [name for row in provider["prices"] for name in row["models"]]
        assert len(names) == len(set(names))
        assert all(row["checked"] <= datetime.date(2026, 11, 28) for row in provider["prices"])
        if "batches" in provider:
            assert (
                known_discount(f"https://{provider['hosts'][0]}/v1")
                == provider["batches"]["discount"]
            )
            assert provider["batches"]["checked"] <= datetime.date(2026, 11, 28)
        for name in names:
            assert known_prices(f"https://{provider['hosts'][0]}/v1", name) is not None


@pytest.mark.parametrize(
    ("usage", "used"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 3}, TokensUsed(9, 3)),
        ({"prompt_tokens_details": {"cached_tokens": 4}}, TokensUsed(9, 3, cached=4)),
        ({"input_tokens_details": {"cached_tokens": 4}}, TokensUsed(9, 3, cached=4)),
        (
            {"prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3}},
            TokensUsed(9, 3, cached=4, cache_written=3),
        ),
        ({"completion_tokens_details": {"reasoning_tokens": 2}}, TokensUsed(9, 3, reasoning=2)),
        ({"prompt_tokens_details": {"cached_tokens": -4}}, TokensUsed(9, 3)),
        ({"prompt_tokens_details": {"cached_tokens": True}}, TokensUsed(9, 3)),
        ({"prompt_tokens_details": "many"}, TokensUsed(9, 3)),
        (
            {"input_tokens": 9, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20},
            TokensUsed(129, 3, cached=100, cache_written=20),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 4},
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 0,
            },
            TokensUsed(9, 3, cached=4),
        ),
    ],
)
def test_tokens_of_every_kind_are_read_from_what_a_provider_reports(
    usage: dict[str, object], used: TokensUsed
) -> None:
    """OpenAI's two APIs and Anthropic's, and gateways that mix them; what makes no sense counts as
    none."""
    assert tokens_used(usage, 9, 3) == used


def test_an_answer_in_openais_names_costs_whatever_stands_beside_them() -> None:
    """LiteLLM adds Anthropic's figures of the cache: the tokens are those that OpenAI's names say,
    and never none."""
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
    }
    assert counted(usage) == (9, 3)


@pytest.mark.parametrize(
    ("base_url", "of_provider", "own", "expected"),
    [
        ("https://api.openai.com/v1", None, None, 0.5),
        ("https://api.openai.com/v1", 0.25, None, 0.25),
        ("https://api.openai.com/v1", 0.25, 0.75, 0.75),
        ("http://localhost:8000/v1", None, None, None),
        ("http://localhost:8000/v1", 0.5, None, 0.5),
        ("http://localhost:8000/v1", 0.5, 0.0, 0.0),
    ],
)
def test_a_model_has_its_own_discount_else_that_of_its_provider_else_the_tables(
    base_url: str, of_provider: float | None, own: float | None, expected: float | None
) -> None:
    """For prices of the operator's, by the name of a release too."""
    prices = ModelPrices(input=1.0, output=2.0, batch_discount=own)
    facts = ProviderFacts(base_url=base_url, batch_discount=of_provider, prices={"m": prices})
    found = facts.prices_of("m-2026-01-31")
    assert found == prices.model_copy(update={"batch_discount": expected})


def test_the_discount_of_the_settings_holds_for_prices_of_the_table() -> None:
    """Who has made another deal with a provider says so once."""
    facts = ProviderFacts(base_url="https://api.openai.com/v1", batch_discount=0.6)
    known = ProviderFacts(base_url="https://api.openai.com/v1").prices_of("gpt-4o-mini")
    assert known is not None
    assert facts.prices_of("gpt-4o-mini") == known.model_copy(update={"batch_discount": 0.6})
