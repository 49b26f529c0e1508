"""What limits in headers count in, by several answers: no single one is believed beyond a
minute."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock_ratelimit.provider.headers import read_limits
from penstock_ratelimit.provider.windows import DAY_S, MINUTE_S, WINDOWS_S, Figures, Windows

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
NAME = "x-ratelimit-limit-requests"


def bucket(limit: float, used: float, window_s: float) -> Figures:
    """What a bucket that refills all the time shows."""
    return Figures(limit, limit - used, used * window_s / limit)


def counter(limit: float, used: float, passed_s: float, window_s: float) -> Figures:
    """What a counter shows that starts anew with each window."""
    return Figures(limit, limit - used, window_s - passed_s)


def taught(*answers: Figures) -> float | None:
    windows = Windows()
    for seen in answers:
        windows.of(NAME, seen)
    return windows.of(NAME, None)


def test_a_minute_is_believed_at_once() -> None:
    """The first answer of a fleet paces it."""
    assert taught(bucket(6000, 60, MINUTE_S)) == MINUTE_S


@pytest.mark.parametrize("window_s", WINDOWS_S)
def test_any_other_window_takes_two_answers_that_agree(window_s: float) -> None:
    """A second, ten seconds, an hour, a day."""
    first, second = bucket(6000, 1000, window_s), bucket(6000, 3000, window_s)
    assert taught(first) == (MINUTE_S if window_s == MINUTE_S else None)
    assert taught(first, second) == window_s
    assert taught(second, first) == window_s


@pytest.mark.parametrize("depth_s", [1.0, 10.0])
def test_a_shallow_bucket_is_no_shorter_window(depth_s: float) -> None:
    """6,000 a minute of which a second's or ten seconds' worth fit in at once: some answers look
    like windows of 1 or 10 s."""
    answers = [
        Figures(6000, 100 * depth_s - used, used / 100)
        for used in range(10, round(100 * depth_s), 10)
    ]
    looks = {taught(seen) for seen in answers}
    assert looks <= {None, MINUTE_S}
    for first, second in pairwise(answers):
        assert taught(first, second) in (None, MINUTE_S)
    assert taught(*answers) == MINUTE_S


def test_a_counter_of_a_minute_looks_like_everything_and_is_a_minute() -> None:
    """Alone its answers are windows of a second to a day: 5,000 of 6,000 used with 8 s to go are
    600 a second, it seems."""
    course = [counter(6000, 100 * passed, passed, MINUTE_S) for passed in range(1, 60)]
    for start in range(len(course) - 1):
        assert taught(*course[start:]) == MINUTE_S
    assert taught(counter(6000, 1, 45.6, MINUTE_S)) is None  # 14.4 s for one: a day's
    assert taught(counter(6000, 5000, 52, MINUTE_S)) is None


def test_a_counter_that_often_starts_anew_has_a_short_window() -> None:
    """50 a second, shown by a counter: slowly until that is sure, then at that rate."""
    course = [counter(50, used, used / 50, 1.0) for _ in range(5) for used in (5, 15, 25, 35, 45)]
    assert taught(*course[:5]) == MINUTE_S
    assert taught(*course) == 1.0


def test_answers_that_overtake_each_other_make_no_short_window() -> None:
    """The last seconds of a minute, in any order."""
    course = [
        counter(6000, 5000 + 100 * passed, 50 + passed, MINUTE_S)
        for passed in (1, 3, 2, 5, 4, 7, 6, 9, 8, 3, 1)
    ]
    assert taught(*course) == MINUTE_S


def test_a_day_found_by_two_answers_is_no_rate_per_minute() -> None:
    """Posted headers of a small account: its tokens are a day's, which the first answer alone does
    not settle."""
    windows = Windows()
    read = [
        read_limits(
            {
                "x-ratelimit-limit-tokens": "1500000",
                "x-ratelimit-remaining-tokens": remaining,
                "x-ratelimit-reset-tokens": reset,
            },
            "x-ratelimit",
            NOW,
            windows,
        )[0]
        for remaining, reset in (("1495621", "4m12.172s"), ("1482750", "16m33.562s"))
    ]
    assert [(reading.dim, reading.window_s) for reading in read] == [
        ("tokens", None),
        ("tokens_per_day", DAY_S),
    ]


@pytest.mark.parametrize(
    ("style", "answers", "per_second"),
    [
        # OpenAI's guide and posted headers
        ("x-ratelimit", [("requests", "5000", "4999", "12ms")], {"requests": 5000 / 60}),
        # a quantized limit: "60,000 requests/minute may be enforced as 1,000 requests/second"
        (
            "x-ratelimit",
            [("requests", "60000", "59100", "900ms"), ("requests", "60000", "59400", "600ms")],
            {"requests": 1000},
        ),
        # Groq: requests are a day's, tokens a minute's, whatever its resets say
        (
            "groq",
            [("requests", "14400", "14370", "2m59.56s"), ("tokens", "18000", "17997", "7.66s")],
            {"requests_per_day": 14_400 / DAY_S, "tokens": 300},
        ),
        # Groq again: a bucket that looks like one second's is a minute's, as documented
        (
            "groq",
            [("tokens", "18000", "9000", "500ms"), ("tokens", "18000", "12000", "333ms")],
            {"tokens": 300},
        ),
        # Azure: requests of an unknown window, tokens a minute's
        (
            "azure",
            [("requests", "20", "19", "1"), ("tokens", "20000", "19913", "41")],
            {"requests": None, "tokens": 20_000 / 60},
        ),
    ],
)
def test_each_providers_real_headers_make_their_rates(
    style: str, answers: list[tuple[str, str, str, str]], per_second: dict[str, float | None]
) -> None:
    """In units per second, after the answers in this order."""
    windows, rates = Windows(), dict[str, float | None]()
    for name, limit, remaining, reset in answers:
        headers = {
            f"x-ratelimit-limit-{name}": limit,
            f"x-ratelimit-remaining-{name}": remaining,
            f"x-ratelimit-reset-{name}": reset,
        }
        rates |= {
            reading.dim: reading.per_second for reading in read_limits(headers, style, NOW, windows)
        }
    assert rates == {
        dim: rate if rate is None else pytest.approx(rate) for dim, rate in per_second.items()
    }


def test_anthropics_minute_stays_a_minute() -> None:
    """Documented: no answer makes it shorter."""
    windows = Windows()
    for remaining, reset in ((2000, "2027-01-15T08:00:10Z"), (1000, "2027-01-15T08:00:20Z")):
        headers = {
            "anthropic-ratelimit-requests-limit": "6000",
            "anthropic-ratelimit-requests-remaining": str(remaining),
            "anthropic-ratelimit-requests-reset": reset,
        }
        assert read_limits(headers, "anthropic", NOW, windows)[0].per_second == 100
