"""What a choice between lanes is made of, and what is said and refused before a job runs."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_ledger import BatchesOpen, WorkerSeen
from penstock_ledger.model import Counts
from penstock_producer import JobSpec, SpecError
from penstock_producer.accepting.acceptance import check_acceptable
from penstock_producer.accepting.estimates import Estimate
from penstock_producer.accepting.new_jobs import digest_of
from penstock_producer.job.lanes import lanes_in_words
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.prices import ModelPrices, TierPrices
from penstock_producer.reporting.advice import on_terminal
from penstock_workers.control.lanes import speeds, troubles
from penstock_workers.control.lanes.forecast import Known, forecast, late
from penstock_workers.control.lanes.seen import InBatches, OneByOne
from penstock_workers.control.lanes.speeds import Measured, Rate, Tokens, tokens_each, usd_each
from penstock_workers.lane_changes import LaneChangeSettings

NOW = 1_800_000_000.0
H = 3_600.0
PRICES = ModelPrices(input=1.0, output=2.0, batch_discount=0.5)
PROVIDER = ProviderFacts(prices={"m": PRICES})
API = ("api", "default", "m")


def spec(**given: Any) -> JobSpec:
    return JobSpec.from_json({"prompt": "{text}", "model": "m", **given})


@pytest.mark.parametrize(
    ("given", "permitted"),
    [
        ({}, ("api",)),
        ({"lane": "auto"}, ("batch", "api")),
        ({"lane": "auto", "lanes": ["api", "gpu", "batch"]}, ("api", "gpu", "batch")),
        ({"lane": "api", "lanes": ["batch", "api"]}, ("api", "batch")),
    ],
)
def test_a_job_permits_the_lanes_that_it_names(
    given: dict[str, Any], permitted: tuple[str, ...]
) -> None:
    """The named lane comes first, and `auto` alone is half the price or real time of one
    provider."""
    assert spec(**given).permitted_lanes == permitted
    assert spec(**given).first_lane == permitted[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lane": "auto", "lanes": ["batch", "batch"]}, "names a lane twice"),
        (
            {"lane": "api", "lanes": ["batch"]},
            "the lane that the job begins with, api, is not there",
        ),
        ({"lane": "auto", "lanes": []}, "give a list of lanes"),
        ({"lane": "auto", "lanes": "batch,api"}, "give a list of lanes"),
        ({"lane": "auto", "lanes": ["fast"]}, f"lanes are {lanes_in_words()}"),
        (
            {"lane": "api", "lanes": ["api", "batch"], "preprocess": "a.b:c"},
            "give lanes without batch",
        ),
        (
            {"lane": "auto", "lanes": ["api", "embed"]},
            "lane embed does not answer /v1/chat/completions",
        ),
        ({"lane": "auto", "lanes": ["api", "gpu"], "fallback": ["n"]}, "lane gpu hosts its models"),
    ],
)
def test_what_one_of_its_lanes_cannot_do_is_refused(given: dict[str, Any], said: str) -> None:
    """Before anything is spent, with the lane's name and what to do."""
    with pytest.raises(SpecError) as refused:
        check_acceptable(spec(**given), PROVIDER)
    assert said in str(refused.value)


def test_lanes_count_for_what_a_job_is_only_where_they_are_named() -> None:
    """A job of an earlier release is the same job, and the estimate that is kept with a source is
    none of its content."""
    pin = {"kind": "file", "uri": "a", "sha256": "d"}
    assert digest_of(spec(), pin) == digest_of(spec(), pin | {"estimate": {"tokens_in": 1}})
    assert digest_of(spec(), pin) != digest_of(spec(lanes=["api", "batch"]), pin)


def test_a_speed_is_the_slower_of_what_is_known() -> None:
    """Limits are shared with other jobs; what was measured in this lane with this job goes before
    everything."""
    limits = {"requests": 20.0, "tokens": 1_000.0}
    by_tokens = speeds.one_by_one(None, None, limits, Tokens(80, 20), 0)
    assert by_tokens == (OneByOne(10.0), "by the limit of 60,000 tokens a minute")
    assert speeds.one_by_one(None, None, limits, Tokens(80, 20), 1).pace == OneByOne(5.0)
    assert speeds.one_by_one(None, Rate(3.0, None, 60, NOW), limits, None, 0).pace == OneByOne(3.0)
    assert speeds.one_by_one(Rate(12.0, None, 60, NOW), None, limits, None, 5) == (
        OneByOne(12.0),
        "measured over 1 min",
    )
    silent = speeds.one_by_one(Rate(0.0, None, 180, NOW), None, limits, None, 0)
    assert silent == (None, "it has answered nothing for 3 min")
    assert speeds.one_by_one(None, None, {}, None, 0).pace is None


def test_a_batch_takes_what_four_of_five_took() -> None:
    """One that runs is so much nearer to its end; one that runs far longer than others says nothing
    any more."""
    lasted = [100.0, 200.0, 300.0, 400.0, 9_000.0]
    assert speeds.of_batches(lasted, None, None, None, 1.25, NOW) == (
        InBatches(400.0),
        "as 5 batches took",
    )
    assert speeds.of_batches(lasted, None, 1_000, Tokens(10, 5), 1.25, NOW).pace == InBatches(
        400.0, 100
    )
    runs = BatchesOpen(NOW - 300, None, None, 0)
    assert speeds.of_batches(lasted, runs, None, None, 1.25, NOW).pace == InBatches(
        400.0, None, 100.0
    )
    overdue = speeds.of_batches(lasted, runs._replace(created_at=NOW - 900), None, None, 1.25, NOW)
    assert overdue == (None, "a batch runs for 15 min, and others took 7 min")
    unknown = speeds.of_batches([], None, None, None, 1.25, NOW)
    assert unknown == (None, "no batch of this provider has ended here yet, and they may take 24 h")


def test_what_a_job_does_is_measured_over_minutes() -> None:
    """From twenty seconds on; when it was elsewhere in between, anew; and it says something for
    other jobs of that lane."""
    measured = Measured()
    for second in range(0, 61, 10):
        measured.note("j", API, second * 5, second * 0.01, NOW + second)
        assert (measured.of_job("j", "api") is None) == (second < 20)
    assert measured.of_job("j", "api") == pytest.approx((5.0, 0.002, 60.0, NOW + 60))
    assert measured.of_lane(API, NOW + 600) == measured.of_job("j", "api")
    assert measured.of_lane(API, NOW + 4 * H) is None
    measured.note("j", API, 400, 0.6, NOW + 3 * H)
    assert measured.of_job("j", "api") is None


def test_a_document_costs_what_answers_have_shown() -> None:
    """Else what was estimated at the submit; a lane with a model of its own has no such price, and
    an unknown one is none."""
    source = {"estimate": {"tokens_in": 1_000, "tokens_out": 500, "documents": 10}}
    few, many = Counts(5, 0, 0, {}, 5, 900, 900, 0), Counts(30, 0, 10, {}, 40, 800, 400, 0)
    assert tokens_each(source, few) == (100, 50, {})
    assert tokens_each(source, many) == (20, 10, {})
    assert tokens_each({}, few) is None
    assert usd_each("api", Tokens(20, 10), PRICES) == pytest.approx(0.00004)
    assert usd_each("batch", Tokens(20, 10), PRICES) == pytest.approx(0.00002)
    assert usd_each("api", Tokens(20, 10, {"api": 2.0}), PRICES) == pytest.approx(0.00008)
    assert usd_each("gpu", Tokens(20, 10), PRICES) is None
    assert usd_each("api", Tokens(20, 10), None) is None


def test_a_lane_without_workers_or_with_batches_that_stand_still_is_in_trouble() -> None:
    """By heartbeats, and by the time since a batch was created, or packed where none runs."""
    workers = [WorkerSeen("w", 1.0, {"lane": "api"}), WorkerSeen("b", 40.0, {"lane": "batch"})]
    assert troubles.of_workers("api", "m", workers) is None
    assert troubles.of_workers("batch", "m", workers) == ("no_workers", "has no worker")
    assert troubles.of_batches(BatchesOpen(NOW - 20 * H, None, None, 0), NOW) is None
    stuck = troubles.of_batches(BatchesOpen(NOW - 27 * H, None, None, 0), NOW)
    assert stuck == ("stuck", "stands still: a batch runs for 1 d 3 h")
    waits = troubles.of_batches(BatchesOpen(None, NOW - H, "429 for the\nkey", 0), NOW)
    assert waits == ("stuck", "stands still: a batch waits for 1 h to be created (429 for the key)")


def test_a_submit_says_what_would_meet_the_deadline() -> None:
    """Where none of the job's lanes is expected to: another lane with its cost, or a later
    deadline."""
    guess, rules = Estimate(1_000_000, 500_000, True), LaneChangeSettings()
    known = Known(PROVIDER, {"requests": 1_000}, None, [4 * H])
    said = late(spec(lane="batch", deadline_s=2 * H), guess, 10_000, known, rules, NOW)
    assert said is not None
    assert said.startswith("no lane of this job is expected to meet its deadline at ")
    assert ": batch ends about " in said
    assert (
        ", 2 h after it (as one batch took); what would meet it: --lane auto --lanes batch,api, "
        "which costs about 2.00 USD"
    ) in on_terminal(said)
    assert said.endswith(", or a deadline of 5 h or more")
    assert late(spec(lane="auto", deadline_s=2 * H), guess, 10_000, known, rules, NOW) is None
    assert late(spec(lane="batch", deadline_s=6 * H), guess, 10_000, known, rules, NOW) is None
    assert late(spec(lane="gpu", deadline_s=60), guess, 10_000, known, rules, NOW) is None


def test_a_dry_run_says_where_auto_would_begin() -> None:
    """By what is known without a call."""
    guess, rules = Estimate(1_000_000, 500_000, True), LaneChangeSettings()
    unknown = Known(PROVIDER, {"requests": 1_000})
    tried = forecast(spec(lane="auto", deadline_s=8 * H), guess, 10_000, unknown, rules, NOW)
    assert (tried.lane, tried.reason) == ("batch", "chosen")
    assert "no batch of this provider has ended here yet" in tried.why
    assert tried.why.endswith("; batch costs about 1.00 USD in all")
    patient = forecast(spec(lane="auto"), guess, 10_000, unknown, rules, NOW)
    assert patient.why == "batch costs about 1.00 USD in all; there is no deadline"
    few = PROVIDER.model_copy(update={"batch_min_requests": 100})
    small = forecast(spec(lane="auto"), guess, 99, unknown._replace(provider=few), rules, NOW)
    assert small.lane == "api"
    assert str(small.figures["batch.no_choice"]).startswith(
        "too_few: takes no such job (a batch has"
    )


def test_a_preview_offers_flex_where_it_costs_less_and_the_job_names_no_tier() -> None:
    """By the provider's prices and limits, in `auto` alone; a tier that the job, its parameters or
    no price names is none to choose."""
    of_flex = {"flex": TierPrices(discount=0.5)}
    prices = ModelPrices(input=1.0, output=2.0, batch_discount=0.5, tiers=of_flex)
    provider = ProviderFacts(prices={"m": prices})
    known = Known(provider, {"requests": 600.0}, lasted=[20 * H] * 5)
    guess = Estimate(1_000_000, 100_000, True)

    def chosen(with_: Known = known, **given: Any) -> tuple[str, str | None]:
        asked = spec(**{"lane": "auto", "deadline_s": 3 * H, **given})
        choice = forecast(asked, guess, 1_000, with_, LaneChangeSettings(), NOW)
        return choice.name, choice.tier

    assert chosen() == ("flex", "flex")
    assert chosen(lanes=["api"]) == ("flex", "flex")
    assert chosen(tier="standard") == chosen(params={"service_tier": "auto"}) == ("api", None)
    unpriced = known._replace(provider=PROVIDER)
    assert chosen(unpriced) == ("api", None)
    assert chosen(lane="api", lanes=["api", "batch"]) == ("api", None)
