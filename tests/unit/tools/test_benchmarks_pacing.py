"""The arithmetic that the pacing benchmark's figures rest on, and the strict provider that it
measures against."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

import pytest
import redis
from servers import RedisServer

from benchmarks.pacing.case import Case, Targets
from benchmarks.pacing.cases import CASES
from benchmarks.pacing.figures import Line, jain, peak_per_second, percentile, utilisation
from benchmarks.pacing.meter import RedisWork
from benchmarks.pacing.outcome import Outcome, verdicts
from benchmarks.pacing.process import Estimates, job_of
from benchmarks.pacing.provider import (
    ACCOUNTS,
    BINS,
    SCRIPT,
    TERMS,
    Accounts,
    Call,
    Charge,
    Terms,
    read_bins,
)
from benchmarks.pacing.sizes import EVEN, LONG_TAIL, TWO_KINDS, Sizes

Send = Callable[..., list[float]]
RATES = {"requests": 10.0, "tokens": 1000.0}


def test_jain_is_one_for_equal_shares_and_one_in_n_for_a_single_winner() -> None:
    """Jain's index is 1 for equal shares, 1/n where one takes all, and 1 where nothing was
    taken."""
    assert jain([7, 7, 7, 7]) == pytest.approx(1.0)
    assert jain([12, 0, 0, 0]) == pytest.approx(0.25)
    assert jain([3, 1]) == pytest.approx(16 / 20)
    assert jain([]) == jain([0, 0]) == 1.0


def test_utilisation_is_a_part_of_what_was_allowed() -> None:
    """Utilisation is units used by units allowed, and 0 where none were allowed."""
    assert utilisation(380, 400) == pytest.approx(0.95)
    assert utilisation(5, 0) == 0.0


def test_percentiles_are_values_that_occurred() -> None:
    """A percentile is one of the values and no interpolation; of no values it is not a number."""
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert percentile(values, 0.5) == 3.0
    assert percentile(values, 0.99) == 5.0
    assert percentile(values, 0.0) == 1.0
    assert math.isnan(percentile([], 0.5))


def test_a_peak_second_is_any_ten_tenths_in_a_row() -> None:
    """The peak is the largest sum over any second, whichever tenth of a second it begins at."""
    bins = {100: 5.0, 105: 5.0, 109: 5.0, 110: 5.0, 130: 12.0}
    assert peak_per_second(bins) == 15.0
    assert peak_per_second({}) == 0.0


def test_a_line_tells_when_somebody_is_served_before_one_who_came_earlier() -> None:
    """Leaving the line before an earlier arrival counts as overtaking; leaving in turn does not."""
    line = Line()
    first, second, third = line.arrive(), line.arrive(), line.arrive()
    assert line.leave(second)
    assert not line.leave(first)
    assert not line.leave(third)


def test_slots_are_given_to_jobs_in_their_parts_from_the_first_slots_on() -> None:
    """Every run of slots is divided among the jobs by their parts, also the first few."""
    jobs = [job_of(n, (0.9, 0.1)) for n in range(40)]
    assert jobs.count("job-0") == 36
    assert [job_of(n, (0.5, 0.5)) for n in range(4)] == ["job-0", "job-1", "job-0", "job-1"]


@pytest.mark.parametrize("kind", [EVEN, LONG_TAIL, TWO_KINDS])
def test_sizes_keep_the_mean_that_a_case_asks_for(kind: str) -> None:
    """Drawn requests have the case's mean size within 5 %, whatever their distribution."""
    rng, sizes = random.Random(1), Sizes(kind, 1000.0, 1e9)
    totals = [call.prompt + call.output for call in (sizes.draw(rng) for _ in range(40_000))]
    assert sum(totals) / len(totals) == pytest.approx(1000.0, rel=0.05)


def test_no_request_is_larger_than_allowed() -> None:
    """No drawn request exceeds the case's largest size, but for rounding."""
    rng, sizes = random.Random(1), Sizes(LONG_TAIL, 1000.0, 3000.0)
    assert max(call.prompt + call.output for call in (sizes.draw(rng) for _ in range(5000))) <= 3001


@pytest.mark.parametrize("charge", list(Charge))
def test_what_is_charged_afterwards_makes_the_truth_of_what_was_charged_at_admission(
    charge: Charge,
) -> None:
    """The charges at admission and afterwards add up to what the provider counts in the end."""
    call = Call(prompt=80, output=20, max_tokens=40)
    at_first, rest = call.at_admission(charge), call.afterwards(charge)
    total = sum(at_first.values()) + sum(rest.values())
    assert total == 1 + (120 if charge is Charge.MAX_TOKENS else 100)


def test_an_estimate_that_is_five_times_too_low_is_learned_within_an_answer() -> None:
    """After one answer the estimate of the next request is what that answer cost."""
    call = Call(prompt=800, output=200, max_tokens=400)
    estimates = Estimates(Case("", "", estimate_factor=0.2, learns=True), learns=True)
    assert estimates.costs(call)["tokens"] == pytest.approx(200)
    assert estimates.observe(call) == {"tokens": 1000}
    assert estimates.costs(call)["tokens"] == pytest.approx(1000)


def test_every_case_fits_what_its_provider_and_the_limiters_can_take() -> None:
    """No benchmark case has a request or a burst that its provider's bucket could never hold."""
    for case in CASES.values():
        depth_s = case.window_s or case.depth_s
        worst = case.largest_s * (1.2 if case.charge is not Charge.ACTUAL else 1.0)
        assert worst <= depth_s, case.name
        assert case.burst_s <= depth_s, case.name


def test_work_on_redis_adds_up_over_a_restart() -> None:
    """Counters of a server before and after its restart are added, and those of the start taken
    off."""
    before, after = RedisWork(10, 100.0), RedisWork(4, 50.0)
    assert before.plus(after).less(RedisWork(1, 3.0)) == RedisWork(13, 147.0)


# --- promises
# --------------------------------------------------------------------------------------------------


def outcome(**figures: float) -> Outcome:
    known = {
        "seconds": 20.0,
        "items": 1000,
        "utilisation": 0.99,
        "refused": 0,
        "jain": 1.0,
        "jain_jobs": 1.0,
        "calls_per_item": 0.3,
        "redis_us_per_item": 30.0,
        "peak": 1.1,
        "inversions": 0,
        "wait_p50_s": 1.0,
        "wait_p99_s": 2.0,
    }
    return Outcome(**{**known, **figures})  # type: ignore[arg-type]


def test_a_promise_without_a_figure_is_not_kept() -> None:
    """A target whose figure could not be measured counts as missed."""
    targets = Targets(recovered_s=1.0)
    assert [
        v.met for v in verdicts(outcome(recovered_s=math.nan), targets) if "trouble" in v.what
    ] == [False]
    assert [v.met for v in verdicts(outcome(recovered_s=0.4), targets) if "trouble" in v.what] == [
        True
    ]


def test_every_target_that_is_set_gives_one_verdict() -> None:
    """Each target that a case sets is checked once, beside those that hold for all."""
    targets = Targets(jain=0.99, refused_share=0.01, calls_per_item=0.5)
    found = verdicts(outcome(utilisation=0.9, calls_per_item=0.6), targets)
    assert {v.what: v.met for v in found} == {
        "utilisation": False,
        "429s": True,
        "429s of all sends": True,
        "Jain over processes": True,
        "Redis calls per item": False,
        "errors of the limiter": True,
    }


# --- the strict provider, with the time passed in
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def client(redis_server: RedisServer) -> redis.Redis:
    return redis_server.client()


def provider(client: redis.Redis, **options: float) -> Send:
    Terms(RATES, **options).install(client)  # type: ignore[arg-type]
    script = client.register_script(SCRIPT)

    def send(
        at_s: float, costs: Mapping[str, float], *, judge: bool = True, who: str = "me"
    ) -> list[float]:
        pairs = [part for row in costs.items() for part in row]
        args = [int(at_s * 1e6), who, "job", int(judge), len(costs), *pairs]
        return [float(figure) for figure in script(keys=[TERMS, ACCOUNTS, BINS], args=args)]

    return send


def accepted(reply: list[float]) -> bool:
    return reply[0] == 1


def test_a_bucket_takes_its_depth_at_once_and_then_its_rate(client: redis.Redis) -> None:
    """A full bucket accepts its depth at once, and after that one request per refill."""
    send = provider(client, depth_s=1.0, charge_refused=False)
    taken = sum(accepted(send(1000.0, {"requests": 1})) for _ in range(20))
    assert taken == 10
    assert not accepted(send(1000.09, {"requests": 1}))
    assert accepted(send(1000.1, {"requests": 1}))


def test_a_deep_bucket_opens_with_one_second_and_fills_up_to_its_depth(client: redis.Redis) -> None:
    """A bucket of five seconds starts with one second's worth and fills to five."""
    send = provider(client, depth_s=5.0, charge_refused=False)
    assert sum(accepted(send(1000.0, {"requests": 1})) for _ in range(60)) == 10
    assert sum(accepted(send(1100.0, {"requests": 1})) for _ in range(60)) == 50


def test_all_dimensions_fit_or_nothing_is_charged(client: redis.Redis) -> None:
    """A request that exceeds one dimension is refused and charged in none."""
    send = provider(client, charge_refused=False)
    assert not accepted(send(1000.0, {"requests": 1, "tokens": 1001}))
    assert Accounts.read(client).charged == {}
    assert accepted(send(1000.0, {"requests": 1, "tokens": 1000}))


def test_a_refused_request_says_when_it_would_fit(client: redis.Redis) -> None:
    """A refusal states the microseconds until the bucket has refilled far enough."""
    send = provider(client, charge_refused=False)
    send(1000.0, {"requests": 1, "tokens": 900})
    assert send(1000.0, {"requests": 1, "tokens": 600})[1] == pytest.approx(0.5e6, abs=2)


def test_a_refused_request_is_charged_as_one_request_where_the_provider_does_so(
    client: redis.Redis,
) -> None:
    """Where the provider charges refusals, a refused request costs one request and no tokens."""
    send = provider(client)
    send(1000.0, {"requests": 1, "tokens": 5000})
    assert sum(accepted(send(1000.0, {"requests": 1, "tokens": 1})) for _ in range(20)) == 9


def test_a_correction_of_one_dimension_leaves_the_refill_of_the_others_alone(
    client: redis.Redis,
) -> None:
    """A refund of tokens does not change how many requests have been refilled."""
    send = provider(client, charge_refused=False)
    for _ in range(10):
        assert accepted(send(1000.0, {"requests": 1, "tokens": 1}))
    send(1000.5, {"tokens": -5}, judge=False)
    assert sum(accepted(send(1000.5, {"requests": 1})) for _ in range(10)) == 5


def test_output_charged_afterwards_can_leave_a_debt_that_holds_the_next_request(
    client: redis.Redis,
) -> None:
    """Tokens charged beyond the bucket refuse the next request until they are refilled."""
    send = provider(client, charge_refused=False)
    send(1000.0, {"tokens": 1500}, judge=False)
    assert not accepted(send(1000.0, {"requests": 1, "tokens": 0}))
    assert accepted(send(1000.5, {"requests": 1, "tokens": 0}))


def test_a_fixed_window_is_full_again_at_its_boundary_and_not_before(client: redis.Redis) -> None:
    """A window of a minute takes its limit once, and again from the next full minute on."""
    send = provider(client, window_s=60.0, charge_refused=False)
    assert sum(accepted(send(1201.0, {"requests": 1})) for _ in range(700)) == 600
    late = send(1259.0, {"requests": 1})
    assert not accepted(late)
    assert late[1] == pytest.approx(1e6)
    assert accepted(send(1260.0, {"requests": 1}))


def test_the_accounts_keep_processes_jobs_and_tenths_of_seconds_apart(client: redis.Redis) -> None:
    """The provider's accounts count acceptances by process and job, and units by tenth of a
    second."""
    send = provider(client, charge_refused=False)
    send(1000.0, {"requests": 1, "tokens": 100}, who="a")
    earlier = Accounts.read(client)
    send(1000.25, {"requests": 1, "tokens": 200}, who="b")
    send(1000.25, {"requests": 1, "tokens": 2000}, who="b")
    seen = Accounts.read(client).since(earlier)
    assert (seen.accepted, seen.refused) == ({"a": 0, "b": 1}, {"b": 1})
    assert seen.charged == {"requests": 1, "tokens": 200}
    assert seen.jobs == {"job": 1}
    assert read_bins(client, "tokens") == {10000: 100, 10002: 200}
