"""Promises of the figures behind the page: what groups, engines and encoders add up to."""

from __future__ import annotations

import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from attempts import make_attempt
from msgspec import structs
from prometheus_client import generate_latest

from penstock_ledger.model import DeadLetter, ItemKey, Result, Saving
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.outcome import (
    Dead,
    Done,
    Outcome,
    Parked,
    Released,
    Retry,
    Skipped,
    Unreadable,
)
from penstock_workers.item.settling.tally import OutcomeTally
from penstock_workers.item.spent import NOTHING_SPENT, Spent
from penstock_workers.lanes.embed.computing import BatchFigures
from penstock_workers.lanes.gpu.engine.engine_queue import EngineFigures
from penstock_workers.lanes.registry import BOUND_BY, bound_figures, engine_figures
from penstock_workers.metrics import catalogue, start_metrics
from penstock_workers.metrics.samples import Sample, Spread
from penstock_workers.metrics.serve import registry_of
from penstock_workers.settings import WorkerSettings

KEY = ItemKey("job", 1, "doc")
RESULT = Result(
    key=KEY,
    status_code=200,
    body=b"{}",
    request_id=None,
    model="m",
    finish_reason="stop",
    prompt_tokens=10,
    completion_tokens=3,
    cost_microusd=250_000,
    latency_ms=400,
    attempts=1,
    calls=1,
)
LETTER = DeadLetter(
    key=KEY,
    reason="bad_request",
    attempts=1,
    calls=1,
    last_error="no",
    status_code=400,
    request=b"{}",
    response=None,
)


PAID = Spent(10, 3, 250_000)


def settled(
    outcome: Outcome, calls: int = 1, provider: str = "default", spent: Spent = NOTHING_SPENT
) -> Settled:
    attempt = make_attempt(provider=provider)
    attempt.calls, attempt.spent = calls, spent
    return Settled(attempt, outcome)


def unopened(outcome: Outcome) -> Settled:
    """A message that could not be read: there is no attempt."""
    return Settled(Delivery("task", None, {}), outcome)


def found(samples: Any) -> dict[tuple[str, ...], Any]:
    return {(sample.metric.name, *sample.labels): sample.value for sample in samples}


def test_each_outcome_is_counted_once_by_its_name() -> None:
    """Every kind of outcome has a name, those of items that were never understood too."""
    tally = OutcomeTally(["default"])
    before = {
        labels[2] for labels in found(tally.figures("api")) if labels[0] == "penstock_items_total"
    }
    group = [
        settled(Done(RESULT)),
        settled(Dead(LETTER)),
        settled(Retry(1.0, "e")),
        settled(Skipped("s")),
    ]
    group += [unopened(Released("r")), unopened(Parked("p")), unopened(Unreadable("u"))]
    tally.settled(group)
    assert set(tally.items.values()) == {1}
    assert before == set(tally.items), (
        "every series is there from the start, or its first increase would be lost"
    )


def test_an_answer_that_was_taken_is_no_call_and_waiting_for_one_is_no_failed_try() -> None:
    """Equal requests show up as such: alarms about retries and the times of calls are about
    calls."""
    tally = OutcomeTally(["default"])
    taken = structs.replace(RESULT, reason="dedup", calls=0, latency_ms=0)
    tally.settled(
        [
            settled(Done(taken), calls=0),
            settled(Retry(1.0, "same_request", "x", counted=False), calls=0),
        ]
    )
    shown = found(tally.figures("api"))
    assert shown["penstock_reused_total", "api", "dedup"] == 1
    assert shown["penstock_reused_total", "api", "cache"] == 0
    assert shown["penstock_retries_total", "api", "uncounted"] == 0
    assert not any(name == "penstock_failed_tries_total" for name, *_ in shown)
    assert sum(shown["penstock_call_seconds", "api"].counts) == 0


def test_what_causes_saved_and_what_they_added_are_counted_apart() -> None:
    """A counter only grows, so that a tier which costs more has a series of its own."""
    tally = OutcomeTally(["default"])
    group = [settled(Done(RESULT)), settled(Retry(1.0, "e")), settled(Dead(LETTER))]
    for (item, _), microusd in zip(group, (500_000, 250_000, -750_000), strict=True):
        assert isinstance(item, Attempt)
        cause = "tier:flex" if microusd > 0 else "tier:priority"
        item.savings = (Saving(cause, 1, 13, microusd),)
    tally.settled(group)
    got = found(tally.figures("api"))
    name = "penstock_savings_usd_total"
    assert got[name, "api", "default", "tier:flex", "saved"] == 0.75
    assert got[name, "api", "default", "tier:priority", "lost"] == 0.75


def test_a_group_adds_up_to_what_was_sent_and_spent() -> None:
    """Calls, tokens and cost count refused answers, too (C1); time is that of finished items; 429s
    go by provider."""
    tally = OutcomeTally(["default", "other"])
    tally.settled(
        [
            settled(Done(RESULT), spent=PAID),
            settled(Done(RESULT), spent=PAID),
            settled(Dead(LETTER), spent=PAID),
        ]
    )
    tally.settled(
        [
            settled(Retry(1.0, "e", counted=False, rate_limited=True), provider="other"),
            settled(Retry(1.0, "e"), spent=PAID),
        ]
    )
    got = found(tally.figures("api"))
    assert got["penstock_calls_total", "api", "default"] == 4
    assert got["penstock_calls_total", "api", "other"] == 1
    assert got["penstock_rate_limited_total", "api", "other"] == 1
    assert got["penstock_rate_limited_total", "api", "default"] == 0
    assert got["penstock_tokens_total", "api", "default", "in"] == 40
    assert got["penstock_tokens_total", "api", "default", "out"] == 12
    assert got["penstock_cost_usd_total", "api", "default"] == 1.0
    assert (
        got["penstock_retries_total", "api", "counted"]
        == got["penstock_retries_total", "api", "uncounted"]
        == 1
    )
    assert got["penstock_dead_total", "api", "bad_request"] == 1
    assert (
        got["penstock_call_seconds", "api"].total,
        sum(got["penstock_call_seconds", "api"].counts),
    ) == (0.8, 2)
    assert (
        got["penstock_commit_items", "api"].total,
        sum(got["penstock_commit_items", "api"].counts),
    ) == (5, 2)


def test_buckets_are_cumulative_and_take_their_own_bound() -> None:
    """A value on a bound belongs below it, as `le` says; the last bucket holds all."""
    spread = Spread((1.0, 2.5))
    for value in (0.5, 1.0, 2.0, 99.0):
        spread.add(value)
    assert spread.buckets() == [("1.0", 2.0), ("2.5", 3.0), ("+Inf", 4.0)]


def test_what_a_gpu_engine_says_has_names() -> None:
    """All that the engine tells of itself is on the page, in base units, whatever release of vLLM
    it is."""
    now = [0.0]
    figures = EngineFigures(lambda _state: None, lambda _engine, _state: None, clock=lambda: now[0])
    cache = SimpleNamespace(queries=100, hits=25)
    scheduler = SimpleNamespace(
        num_running_reqs=7, num_waiting_reqs=2, kv_cache_usage=0.5, prefix_cache_stats=cache
    )
    finished = [SimpleNamespace(queued_time=2.0)]
    now[0] = 10.0
    figures.note(
        scheduler,
        SimpleNamespace(
            num_generation_tokens=300,
            num_prompt_tokens=1000,
            num_preempted_reqs=4,
            finished_requests=finished,
        ),
    )
    gauges = figures.gauges(max_seqs=8, lined_up=1)
    got = found([*engine_figures("gpu", gauges), *bound_figures("gpu", str(gauges["bound"]))])
    assert got["penstock_engine_running", "gpu"] == 7
    assert got["penstock_engine_waiting", "gpu"] == 3
    assert got["penstock_engine_kv_cache_ratio", "gpu"] == 0.5
    assert got["penstock_engine_prefix_hit_ratio", "gpu"] == 0.25
    assert got["penstock_engine_preemptions_total", "gpu"] == 4
    assert got["penstock_engine_prompt_tokens_per_second", "gpu"] == 100
    assert got["penstock_engine_generation_tokens_per_second", "gpu"] == 30
    assert got["penstock_engine_wait_seconds", "gpu"] == pytest.approx(0.1)
    assert got["penstock_bound", "gpu", "engine"] == 1
    assert sum(got["penstock_bound", "gpu", by] for by in BOUND_BY) == 1


def test_what_an_encoder_says_has_names() -> None:
    """Batch sizes, padding and the budget of the embed lane are on the page."""
    figures = BatchFigures(lambda: 1.0)
    got = found(
        engine_figures(
            "embed", {**figures.lately(), "token_budget": 4096, "waiting": 3, "bound": "engine"}
        )
    )
    assert got["penstock_embed_padding_efficiency_ratio", "embed"] == 1.0
    assert got["penstock_embed_token_budget", "embed"] == 4096
    assert got["penstock_engine_waiting", "embed"] == 3
    assert ("penstock_embed_batch_items", "embed") in got
    assert ("penstock_embed_tokens_per_second", "embed") in got


def test_no_port_no_page() -> None:
    """Metrics are off unless a port is set, and then no thread and no socket exists."""
    with start_metrics(WorkerSettings(redis_url="redis://h", database_url="sqlite://")) as port:
        assert port is None


def test_a_part_that_fails_leaves_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    """One part's bug costs its own figures, says so in the log, and the others are still served."""

    def broken() -> list[Sample]:
        raise RuntimeError("a bug")

    page = generate_latest(registry_of(broken, lambda: [catalogue.SLOTS(4, "api")])).decode()
    assert 'penstock_slots{lane="api"} 4.0' in page
    assert "some figures of the worker are missing" in caplog.text


def test_the_page_is_served_until_the_block_ends() -> None:
    """Port 0 takes a free one; after the block no server answers there."""
    settings = WorkerSettings(redis_url="redis://h", database_url="sqlite://", metrics_port=0)
    with start_metrics(settings, lambda: [catalogue.SLOTS(4, "api")]) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            assert b"# TYPE penstock_slots gauge" in answer.read()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)
