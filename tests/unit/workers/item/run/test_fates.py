"""From what happened to the outcome: attempts, waits and pauses, with exact numbers."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import orjson
import pytest
from attempts import BODY, make_attempt

from penstock_ledger.reasons import explain
from penstock_producer.dialects.pieces import Delta
from penstock_producer.feed.wire import SPENT_HEADER, STREAM_HEADER
from penstock_ratelimit import Signal
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.outcome import Dead, Done, Parked, Released, Retry
from penstock_workers.item.passing import Passing
from penstock_workers.item.run.fates import RetryPolicy, decide
from penstock_workers.item.settling.records import _batch
from penstock_workers.item.spent import Spent
from penstock_workers.settings import ProviderSettings

PRICED = ProviderSettings(usd_per_mtok_in=0.5, usd_per_mtok_out=2.0)


class Highest(random.Random):
    """Jitter at its upper end, so that waits are exact."""

    def uniform(self, a: float, b: float) -> float:
        return b


POLICY = RetryPolicy(base_s=1.0, cap_s=60.0, max_retry_after_s=900.0, rng=Highest())


def attempt(retries: int = 0, **spec: Any) -> Attempt:
    item = make_attempt(retries=retries, settings=PRICED, **spec)
    item.calls = 1
    return item


def failed(name: str, status: int | None = 500) -> Failure:
    return Failure(name, "says the provider", status)


def throttled(retry_after_s: float) -> Failure:
    return Failure("rate_limited", "says the provider", 429, Signal.THROTTLED, retry_after_s)


def test_a_reply_is_done_with_its_price() -> None:
    """A reply becomes a result that knows its cost: dollars per million tokens times tokens are
    microdollars."""
    reply = Reply(b"{}", 200, "req", "m", "stop", 1000, 100, "text", 12)
    item = attempt(retries=2)
    item.spent = Spent(1000, 100, 700)
    outcome = decide(item, reply, POLICY)
    assert isinstance(outcome, Done)
    assert (outcome.result.cost_microusd, outcome.result.attempts, outcome.result.latency_ms) == (
        700,
        3,
        12,
    )


def test_a_refused_answer_stays_in_the_books() -> None:
    """Its dead letter has its tokens and cost, with those of earlier tries that the message carries
    (C1, H10)."""
    item = attempt(max_attempts=1)
    item.delivery = Delivery("job:doc", {}, {SPENT_HEADER: [1000, 100, 700]}, queue="penstock.api")
    item.spent = Spent(10, 5, 15)
    outcome = decide(item, failed("schema_mismatch", 200), POLICY)
    assert isinstance(outcome, Dead)
    letter = outcome.letter
    assert (letter.prompt_tokens, letter.completion_tokens, letter.cost_microusd) == (
        1010,
        105,
        715,
    )


@pytest.mark.parametrize("header", [[-1, 0, 0], [1, 2], "x", None, [1, 2, 10**30], [True, 0, 0]])
def test_what_a_message_claims_was_spent_is_believed_within_reason(header: object) -> None:
    """Headers come from outside: one of another shape is left out (C1)."""
    item = attempt()
    item.delivery = Delivery("job:doc", {}, {SPENT_HEADER: header}, queue="penstock.api")
    item.spent = Spent(10, 5, 15)
    assert item.spent_in_all == Spent(10, 5, 15)


def test_what_a_refused_answer_cost_travels_with_the_retry() -> None:
    """Counted in Redis with this try, and carried on for the row in SQL (C1)."""
    item = attempt()
    item.spent = Spent(10, 5, 15)
    [retry] = _batch([Settled(item, Retry(1.0, "schema_mismatch"))]).retries
    assert (retry.prompt_tokens, retry.completion_tokens, retry.cost_microusd) == (10, 5, 15)
    assert orjson.loads(retry.raw)["headers"][SPENT_HEADER] == [10, 5, 15]


@pytest.mark.parametrize(
    "name", ["connection_lost", "timeout", "invalid_answer", "overloaded", "engine_died"]
)
def test_what_a_caller_has_seen_is_not_made_again(name: str) -> None:
    """A streamed answer that breaks is dead with the name of its failure from its first token on;
    before that it has the fate of any other call."""
    item = attempt()
    passing = item.passing = Passing(item.key, "channel", lambda _: None)
    assert not isinstance(decide(item, failed(name), POLICY), Dead)
    passing.put(dict, [Delta("text", "a")])
    assert not isinstance(decide(item, failed(name), POLICY), Dead), "it has not left yet"
    passing.take()
    outcome = decide(item, failed(name), POLICY)
    assert isinstance(outcome, Dead)
    assert (outcome.letter.reason, outcome.letter.attempts) == (name, 1)
    passing.unheard()
    assert not isinstance(decide(item, failed(name), POLICY), Dead), "its door has gone"


def test_the_account_is_at_fault_also_in_the_middle_of_a_stream() -> None:
    """The job pauses, as for each of its items."""
    item = attempt()
    item.passing = Passing(item.key, "channel", lambda _: None)
    item.passing.put(dict, [Delta("text", "a")])
    item.passing.take()
    assert isinstance(decide(item, failed("out_of_credit"), POLICY), Parked)


@pytest.mark.parametrize("door", ["0123456789abcdef", "x:*", 7, None])
def test_a_retry_is_for_the_same_door(door: object) -> None:
    """A name that no door has made is left out: headers come from outside."""
    item = make_attempt(headers={STREAM_HEADER: door})
    [retry] = _batch([Settled(item, Retry(1.0, "server_error"))]).retries
    kept = orjson.loads(retry.raw)["headers"].get(STREAM_HEADER)
    assert kept == (door if door == "0123456789abcdef" else None)


@pytest.mark.parametrize(("retries", "wait_s"), [(0, 1.0), (1, 2.0), (2, 4.0)])
def test_a_transient_failure_is_retried_with_growing_waits(retries: int, wait_s: float) -> None:
    """Each counted try doubles the ceiling of the wait."""
    outcome = decide(attempt(retries), failed("server_error"), POLICY)
    assert isinstance(outcome, Retry)
    assert (outcome.after_s, outcome.counted, outcome.rate_limited) == (wait_s, True, False)


def test_the_last_attempt_ends_in_a_dead_letter_that_can_be_replayed() -> None:
    """By default the fourth failed try is the last; the dead letter names reason, tries and
    request."""
    outcome = decide(attempt(retries=3), failed("server_error"), POLICY)
    assert isinstance(outcome, Dead)
    letter = outcome.letter
    assert (letter.reason, letter.attempts, letter.status_code, letter.request) == (
        "server_error",
        4,
        500,
        BODY,
    )


def test_a_job_may_ask_for_fewer_attempts() -> None:
    """max_attempts 1 means one try."""
    assert isinstance(decide(attempt(max_attempts=1), failed("timeout", None), POLICY), Dead)


def test_a_schema_mismatch_gets_one_second_chance_only() -> None:
    """Asking four times for what the model does not do wastes money."""
    assert isinstance(decide(attempt(0), failed("schema_mismatch", 200), POLICY), Retry)
    assert isinstance(decide(attempt(1), failed("schema_mismatch", 200), POLICY), Dead)


def test_waiting_for_capacity_never_costs_an_attempt() -> None:
    """A 429 on what would be the last attempt is waited for, as long as the provider asks and a
    jitter more."""
    outcome = decide(attempt(retries=3), throttled(7.0), POLICY)
    assert outcome == Retry(
        7.0 + 8.0, "rate_limited", "says the provider", counted=False, rate_limited=True
    )


def test_a_very_long_retry_after_pauses_the_job() -> None:
    """A provider that asks for an hour is shown to the operator, not waited for in silence."""
    outcome = decide(attempt(), throttled(3600.0), POLICY)
    assert isinstance(outcome, Parked)
    assert outcome.pauses is not None
    assert "3600 s" in explain(outcome.pauses)


def test_a_pause_for_the_provider_knows_its_end() -> None:
    """A job that pauses for a Retry-After goes on by itself when that is over (A2)."""
    outcome = decide(attempt(), throttled(3600.0), POLICY)
    assert isinstance(outcome, Parked)
    assert outcome.ends_in_s == 3600.0
    held = decide(attempt(), failed("unauthorized", 401), POLICY)
    assert isinstance(held, Parked)
    assert held.ends_in_s is None


def test_a_document_does_not_outwait_a_pause_that_can_be_lifted() -> None:
    """Asked to wait 800 s, the quota keeps all others waiting; the document itself is back in line
    within two minutes (A2)."""
    outcome = decide(attempt(), throttled(800.0), POLICY)
    assert isinstance(outcome, Retry)
    assert outcome.after_s <= 2 * POLICY.cap_s


@pytest.mark.parametrize("name", ["unauthorized", "out_of_credit"])
def test_account_trouble_pauses_the_job_and_keeps_the_item(name: str) -> None:
    """No item would fare better with a wrong key, so none is killed; the reason says what to do."""
    outcome = decide(attempt(), failed(name, 401), POLICY)
    assert isinstance(outcome, Parked)
    assert outcome.pauses is not None
    assert "resume" in explain(outcome.pauses)


@pytest.mark.parametrize("name", ["forbidden", "foreign_page"])
def test_the_second_403_is_the_last(name: str) -> None:
    """A document that is forbidden is tried once more, since firewalls err, and is then a dead
    letter of that name (A3)."""
    assert isinstance(decide(attempt(0), failed(name, 403), POLICY), Retry)
    outcome = decide(attempt(1), failed(name, 403), POLICY)
    assert isinstance(outcome, Dead)
    assert (outcome.letter.reason, outcome.letter.attempts) == (name, 2)


@pytest.mark.parametrize(
    "name", ["bad_request", "not_found", "request_too_large", "unprocessable", "context_overflow"]
)
def test_permanent_failures_are_dead_at_once(name: str) -> None:
    """A request that cannot succeed is not repeated."""
    outcome = decide(attempt(), failed(name, 400), POLICY)
    assert isinstance(outcome, Dead)
    assert outcome.letter.attempts == 1


def test_the_answer_is_kept_in_the_letter_but_cut() -> None:
    """A dead letter holds an excerpt of the provider's last answer."""
    item = attempt()
    item.last_answer = b"x" * 10_000
    outcome = decide(item, failed("bad_request", 400), POLICY)
    assert isinstance(outcome, Dead)
    assert outcome.letter.response is not None
    assert len(outcome.letter.response) == 2_000


def test_the_policy_caps_the_wait() -> None:
    """Whatever the number of tries, jitter stays within the cap."""
    policy = replace(POLICY, cap_s=5.0)
    outcome = decide(attempt(retries=20, max_attempts=50), failed("server_error"), policy)
    assert isinstance(outcome, Retry)
    assert outcome.after_s == 5.0


def test_a_retry_is_put_off_while_the_fleet_sends_too_many() -> None:
    """With the budget of retries used up, the first retry waits eight times as long, and still
    counts as one."""
    outcome = decide(attempt(), failed("server_error"), POLICY, put_off=True)
    assert isinstance(outcome, Retry)
    assert (outcome.after_s, outcome.counted) == (8.0, True)


def test_what_the_provider_calls_hopeless_is_not_sent_again() -> None:
    """`x-should-retry: false` on a failure that would be retried makes it the last."""
    hopeless = replace(failed("server_error"), final=True)
    assert isinstance(decide(attempt(), hopeless, POLICY), Dead)


def test_an_item_whose_engine_died_goes_back_and_counts_as_a_crash() -> None:
    """Another worker takes it, and what kills engines again and again is found out by that count."""
    outcome = decide(attempt(), failed("engine_died", None), POLICY)
    assert isinstance(outcome, Released)
    assert outcome.crashed


def test_the_waits_that_the_docs_argue_for_are_the_defaults() -> None:
    """A second, then twice as long each time, at most a minute; a provider may ask for a quarter
    of an hour before the job pauses (docs/decisions.md, "Backoff")."""
    usual = RetryPolicy(rng=Highest())
    assert [usual.wait_s(tries, None) for tries in (0, 1, 20)] == [1.0, 2.0, 60.0]
    assert isinstance(decide(attempt(), throttled(900.0), usual), Retry)
    assert isinstance(decide(attempt(), throttled(901.0), usual), Parked)
