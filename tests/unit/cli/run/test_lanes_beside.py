"""What a job would take on each lane, before anything is spent."""

from __future__ import annotations

from penstock_cli.run.lane_choice import beside
from penstock_producer.accepting.estimates import Estimate
from penstock_producer.job.lanes import packs
from penstock_producer.job.spec import JobSpec
from penstock_workers.settings import ProviderSettings

GUESS = Estimate(tokens_in=2_000_000, tokens_out=1_000_000, capped=True)
SPEC = JobSpec(prompt="{text}", model="gpt-5-mini")


def test_the_limit_that_takes_longest_binds() -> None:
    """3,000,000 tokens at 100,000 a minute take 30 minutes; 1,000 requests at 500 a minute would
    take two."""
    provider = ProviderSettings(rpm=500, tpm=100_000)
    rows = {row.lane: row for row in beside(GUESS, 1_000, SPEC, provider)}
    assert rows["api"].seconds == 1_800
    assert rows["api"].bound == "100,000 tokens a minute"
    many = {row.lane: row for row in beside(GUESS, 100_000, SPEC, provider)}
    assert many["api"].bound == "500 requests a minute"


def test_a_known_price_is_shown_and_an_unknown_one_is_not_zero() -> None:
    """2 million tokens in at 0.25 USD and one million out at 2 USD per million."""
    (api, *_) = beside(GUESS, 10, SPEC, ProviderSettings())
    assert api.cost_usd == 2.5
    (api, *_) = beside(GUESS, 10, SPEC, ProviderSettings(base_url="http://127.0.0.1:9/v1"))
    assert (api.cost_usd, api.seconds) == (None, None)
    assert "--rpm" in api.bound


def test_batches_cost_half_where_the_discount_is_known() -> None:
    """The same tokens, by the table's discount of that provider."""
    prices = ProviderSettings().prices_of("gpt-5-mini")
    assert GUESS.usd(prices, in_batch=True) == 1.25
    assert packs("batch")


def test_enqueued_tokens_make_rounds_of_the_batch_lane() -> None:
    """Two million tokens where the account may have 600,000 at once: four windows, one after the
    other."""
    rows = {
        row.lane: row
        for row in beside(GUESS, 10, SPEC, ProviderSettings(batch_enqueued_tokens=600_000))
    }
    assert rows["batch"].seconds == 4 * 86_400
    assert "600,000 tokens in batches at once: 4 rounds" in rows["batch"].bound
    roomy = {
        row.lane: row
        for row in beside(GUESS, 10, SPEC, ProviderSettings(batch_enqueued_tokens=10**9))
    }
    assert roomy["batch"].seconds == 86_400


def test_a_job_that_makes_no_batch_says_so_in_the_lane_that_packs() -> None:
    """The least number of requests and the setting that has it, in the place of a cost."""
    provider = ProviderSettings(batch_min_requests=100)
    rows = {row.lane: row for row in beside(GUESS, 99, SPEC, provider)}
    assert rows["api"].cost_usd is not None
    assert (rows["batch"].cost_usd, rows["batch"].seconds) == (None, None)
    assert rows["batch"].bound.startswith("refused: a batch has at least 100 requests")
    enough = {row.lane: row for row in beside(GUESS, 100, SPEC, provider)}
    assert enough["batch"].seconds == 86_400


def test_lanes_with_a_model_of_their_own_say_how_they_are_measured() -> None:
    """No figure is made up; and the lane for vectors is no choice for a chat."""
    rows = {row.lane: row for row in beside(GUESS, 10, SPEC, ProviderSettings())}
    assert rows["gpu"].cost_usd is None
    assert "--lane gpu --sample 100" in rows["gpu"].bound
    assert "embed" not in rows
    vectors = JobSpec(prompt="{text}", model="m", endpoint="/v1/embeddings")
    assert "embed" in {row.lane for row in beside(GUESS, 10, vectors, ProviderSettings())}
    reranked = JobSpec(model="m", endpoint="/v1/rerank", lane="embed")
    assert "embed" in {row.lane for row in beside(GUESS, 10, reranked, ProviderSettings())}
