"""Headers: how long to stay away, and how much of which limit is left.

Pure functions of what is passed in."""

from __future__ import annotations

from dataclasses import astuple
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ratelimit import parse_retry_after
from penstock_ratelimit.provider.headers import STYLES, Reading, parse_duration, read_limits
from penstock_ratelimit.provider.windows import DAY_S, WINDOWS_S, Figures, infer_window
from penstock_ratelimit.rates import MAX_PAUSE_S

NOW = 1_800_000_000.0  # Friday, 15 January 2027, 08:00:00 GMT

header_names = st.sampled_from(
    [
        "retry-after",
        "Retry-After-MS",
        "date",
        "x-ratelimit-limit",
        "x-tokenlimit-remaining",
        "x-ratelimit-reset",
    ]
    + [
        f"x-ratelimit-{part}-{end}"
        for part in ("limit", "remaining", "reset")
        for end in ("requests", "Tokens")
    ]
    + [f"anthropic-ratelimit-input-tokens-{part}" for part in ("limit", "remaining", "reset")]
)
header_texts = (
    st.text()
    | st.floats().map(repr)
    | st.integers().map(str)
    | st.from_regex(r"([0-9]{1,400}(\.[0-9]+)?(ms|s|m|h|d))+", fullmatch=True)
    | st.datetimes().map(lambda at: at.isoformat() + "Z")
    | st.datetimes().map(lambda at: at.strftime("%a, %d %b %Y %H:%M:%S GMT"))
)
any_headers = st.dictionaries(header_names, header_texts)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"Retry-After": " 2 "}, 2.0),
        ({"RETRY-AFTER": "0.25"}, 0.25),
        ({"retry-after-ms": "125", "retry-after": "60"}, 0.125),
        ({"retry-after-ms": "0", "retry-after": "60"}, 0.0),
        ({"retry-after-ms": "soon", "retry-after": "60"}, 60.0),
        ({"retry-after-ms": "nan", "retry-after": "60"}, 60.0),
        ({"retry-after-ms": "-1"}, 0.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30"}, 30.0),
        ({"retry-after": "Fri, 15 Jan 2027 09:00:30 +0100"}, 30.0),
        ({"retry-after": "Fri, 15 Jan 9999 08:00:30 GMT"}, MAX_PAUSE_S),
        ({"retry-after": "36000"}, 36_000.0),
        ({"retry-after": "1e300"}, MAX_PAUSE_S),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "-inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "please wait"}, None),
        ({"retry-after": "99 Foo 99999 99:99:99"}, None),
    ],
)
def test_retry_after_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    """Milliseconds, seconds and dates are read; the past is now, the absurd is a day, garbage says
    nothing."""
    assert parse_retry_after(headers, NOW) == (
        seconds if seconds is None else pytest.approx(seconds)
    )


@pytest.mark.parametrize("skew_s", [-7200.0, -3.0, 0.0, 3.0, 7200.0, 3e7])
def test_a_date_means_the_same_wait_whoever_has_the_wrong_clock(skew_s: float) -> None:
    """A date is held against the answer's own date, not against our clock."""
    headers = {
        "Date": formatdate(NOW + skew_s, usegmt=True),
        "Retry-After": formatdate(NOW + skew_s + 30, usegmt=True),
    }
    assert parse_retry_after(headers, NOW) == 30.0


@given(headers=any_headers)
def test_no_header_breaks_the_reader_of_waits(headers: dict[str, str]) -> None:
    """Whatever a provider sends, the answer is a bounded wait or nothing."""
    seconds = parse_retry_after(headers, NOW)
    assert seconds is None or 0 <= seconds <= MAX_PAUSE_S


@given(headers=any_headers, style=st.sampled_from(sorted(STYLES)))
def test_no_header_breaks_the_reader_of_limits(headers: dict[str, str], style: str) -> None:
    """Whatever a provider sends, a reading holds numbers that make sense, or none."""
    for reading in read_limits(headers, style, NOW):
        assert reading.limit is None or 0 < reading.limit <= 1e15
        assert reading.remaining is None or 0 <= reading.remaining <= (reading.limit or 1e15)
        assert reading.reset_s is None or 0 <= reading.reset_s < float("inf")
        assert reading.window_s in (None, *WINDOWS_S)


@pytest.mark.parametrize(
    ("limit", "remaining", "reset", "window_s"),
    [
        # posted headers: community.openai.com/t/535297 and /541210
        (5000, 4999, "12ms", 60.0),
        (160_000, 159_976, "9ms", 60.0),
        (1_500_000, 1_495_621, "4m12.172s", DAY_S),
        (1_500_000, 1_482_750, "16m33.562s", DAY_S),
        (1_500_000, 43_244, "23h18m29.144s", DAY_S),
        (500, 499, "120ms", 60.0),
        (60, 59, "1s", 60.0),  # the guide's own example
        (14_400, 14_370, "2m59.56s", DAY_S),  # Groq's guide: requests
        (18_000, 17_997, "7.66s", None),  # Groq's guide: tokens; no window fits
        (150_000, 149_984, "6m0s", None),  # OpenAI's guide: tokens; no window fits
        (10, 5, "0.5s", 1.0),
        (100, 40, "6s", 10.0),
        (3600, 3500, "100s", 3600.0),
        (5000, 5000, "12ms", None),  # nothing used
        (5000, 4999, "0s", None),
        (5000, 4999, "4ms", None),  # rounding alone is a quarter of it
        (5000, 4999, "20ms", None),  # 100 s
    ],
)
def test_the_window_follows_from_what_is_left_and_when_it_is_back(
    limit: float, remaining: float, reset: str, window_s: float | None
) -> None:
    """limit * reset / used, snapped to a window that providers use; nothing when it cannot be
    computed."""
    reset_s = parse_duration(reset)
    assert reset_s is not None
    assert infer_window(Figures(limit, remaining, reset_s)) == window_s


@given(
    window_s=st.sampled_from(WINDOWS_S),
    limit=st.integers(1, 10**9),
    part=st.floats(0.001, 1.0),
    rounding=st.sampled_from([0.0, 500.0]),
)
def test_an_inferred_window_is_right_or_unknown(
    window_s: float, limit: int, part: float, rounding: float
) -> None:
    """Rounded to milliseconds and to thousands as providers do, it is never a wrong window."""
    used = max(1, round(limit * part))
    reset_s = round(used * window_s / limit, 3)
    told = limit - used if not rounding else round((limit - used) / 1000) * 1000
    assert infer_window(Figures(limit, told, reset_s, rounding)) in (None, window_s)


@given(window_s=st.sampled_from(WINDOWS_S), used=st.integers(1, 1000))
def test_a_bucket_that_is_well_used_tells_its_window(window_s: float, used: int) -> None:
    """Once a fleet works at any speed, the window is known."""
    limit = 1000
    reset_s = used * window_s / limit
    assert infer_window(Figures(limit, limit - used, reset_s)) == (
        window_s if reset_s >= 0.005 else None
    )


def openai(limit: str, remaining: str, reset: str, end: str = "tokens") -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{end}": limit,
        f"X-RateLimit-Remaining-{end}": remaining,
        f"x-ratelimit-reset-{end}": reset,
    }


def by_dim(headers: dict[str, str], style: str) -> dict[str, Reading]:
    return {reading.dim: reading for reading in read_limits(headers, style, NOW)}


def test_openai_headers_are_read_per_minute() -> None:
    """Both limits, with their windows inferred; header names have no case."""
    found = by_dim(
        openai("5000", "4999", "12ms", "requests") | openai("160000", "159976", "9ms"),
        "x-ratelimit",
    )
    assert {dim: astuple(reading)[1:] for dim, reading in found.items()} == {
        "requests": pytest.approx((5000.0, 4999.0, 0.012, 60.0)),
        "tokens": pytest.approx((160_000.0, 159_976.0, 0.009, 60.0)),
    }
    assert found["tokens"].per_second == pytest.approx(160_000 / 60)


def test_a_bucket_of_a_day_is_never_taken_for_one_of_a_minute() -> None:
    """The plain tokens header of a small account is its limit per day: 1,440 times too much for a
    minute."""
    found = by_dim(openai("1500000", "1495621", "4m12.172s"), "x-ratelimit")
    assert set(found) == {"tokens_per_day"}
    assert found["tokens_per_day"].per_second == pytest.approx(1_500_000 / DAY_S)


def test_an_unknown_window_makes_no_rate() -> None:
    """With nothing used yet, a limit may count minutes or days: it is shown, and is no rate."""
    (reading,) = read_limits(openai("1500000", "1500000", "0s"), "x-ratelimit", NOW)
    assert (reading.dim, reading.limit, reading.per_second) == ("tokens", 1_500_000, None)


def test_the_tightest_of_organisation_and_project_wins() -> None:
    """Both bind: the lower rate, and the fewer units left, whichever of them has which."""
    headers = openai("60000", "30000", "30s") | openai("40000", "39960", "60ms", "project-tokens")
    assert by_dim(headers, "x-ratelimit")["tokens"] == Reading(
        "tokens", 40_000.0, 30_000.0, 30.0, 60.0
    )
    headers = openai("60000", "50000", "10s") | openai("40000", "20000", "30s", "project-tokens")
    assert by_dim(headers, "x-ratelimit")["tokens"] == Reading(
        "tokens", 40_000.0, 20_000.0, 30.0, 60.0
    )


def test_unknown_suffixes_and_nonsense_values_are_ignored() -> None:
    """What a later revision adds, or a proxy garbles, changes nothing that is known."""
    headers = openai("5000", "4999", "12ms", "requests") | openai(
        "1", "0", "1s", "tokens_usage_based"
    )
    headers |= openai("1", "0", "1s", "images") | openai("-1", "-1", "-1")
    assert set(by_dim(headers, "x-ratelimit")) == {"requests"}
    assert by_dim(openai("unlimited", "all", "never"), "x-ratelimit") == {}
    assert by_dim(openai("0", "0", "0s"), "x-ratelimit") == {}


def test_more_left_than_the_limit_is_a_full_bucket() -> None:
    """A provider that counts a refund on top of a full bucket does not lend us more than the
    limit."""
    assert by_dim(openai("100", "250", "1s"), "x-ratelimit")["tokens"].remaining == 100


def anthropic(name: str, limit: int, remaining: int, reset: str) -> dict[str, str]:
    values = {"limit": str(limit), "remaining": str(remaining), "reset": reset}
    return {f"anthropic-ratelimit-{name}-{part}": value for part, value in values.items()}


def test_anthropic_is_read_by_the_split_limits_only() -> None:
    """The plain tokens limit is "the most restrictive in effect", whichever that is: it would make
    one limit of two."""
    headers = anthropic("requests", 4000, 3999, "2027-01-15T08:00:01Z")
    headers |= anthropic("tokens", 80_000, 12_000, "2027-01-15T08:00:51Z")
    headers |= anthropic("input-tokens", 400_000, 390_000, "2027-01-15T08:00:02Z")
    headers |= anthropic("output-tokens", 80_000, 12_000, "2027-01-15T08:00:51Z")
    found = by_dim(headers, "anthropic")
    assert set(found) == {"requests", "input_tokens", "output_tokens"}
    assert found["output_tokens"] == Reading("output_tokens", 80_000.0, 12_000.0, 51.0, 60.0)
    assert {reading.window_s for reading in found.values()} == {60.0}


@pytest.mark.parametrize(
    ("remaining", "reset", "window_s"),
    [
        # 2,000 of 400,000 are gone, give or take 500: too little to infer from
        (398_000, "2027-01-15T08:07:12Z", 60.0),
        # 10,000 are gone for 36 minutes: a bucket of a day
        (390_000, "2027-01-15T08:36:00Z", DAY_S),
        (390_000, "2027-01-15T08:00:02Z", 60.0),  # 2 s, give or take one: too little to infer from
    ],
)
def test_anthropic_windows_are_inferred_only_beyond_the_rounding(
    remaining: int, reset: str, window_s: float
) -> None:
    """Remaining tokens come in thousands and resets in seconds; below that the documented minute
    holds."""
    headers = anthropic("input-tokens", 400_000, remaining, reset)
    (reading,) = read_limits(headers, "anthropic", NOW)
    assert reading.window_s == window_s


def test_an_anthropic_reset_is_held_against_the_servers_clock() -> None:
    """A worker whose clock is an hour off reads the same reset."""
    headers = {"date": formatdate(NOW + 3600, usegmt=True)} | anthropic(
        "requests", 60, 50, "2027-01-15T09:00:10Z"
    )
    assert read_limits(headers, "anthropic", NOW)[0].reset_s == 10.0


def test_together_is_read_per_second() -> None:
    """Its limits are requests and tokens per second, under names of their own."""
    headers = {"x-ratelimit-limit": "10", "x-ratelimit-remaining": "9", "x-ratelimit-reset": "1"}
    headers |= {"x-tokenlimit-limit": "3000", "x-tokenlimit-remaining": "2500"}
    found = by_dim(headers, "together")
    assert found["requests"] == Reading("requests", 10.0, 9.0, 1.0, 1.0)
    assert found["tokens"].per_second == 3000


def test_groq_requests_are_a_days() -> None:
    """Its requests headers "always refer to requests per day", its tokens headers to a minute."""
    headers = openai("14400", "14370", "2m59.56s", "requests") | openai("18000", "17997", "7.66s")
    found = by_dim(headers, "groq")
    assert {dim: reading.window_s for dim, reading in found.items()} == {
        "requests_per_day": DAY_S,
        "tokens": 60.0,
    }


def test_azure_requests_make_no_rate() -> None:
    """Its limit of requests may be of a second or of ten: what is left is read, and no rate is made
    of it."""
    headers = openai("20", "19", "1", "requests") | openai("20000", "19913", "41")
    found = by_dim(headers, "azure")
    assert (found["requests"].remaining, found["requests"].per_second) == (19, None)
    assert found["tokens"].per_second == pytest.approx(20_000 / 60)


def test_windows_in_the_name_need_no_inference() -> None:
    """Cerebras names minute and day; both are read apart."""
    headers = openai("30", "29", "1.2", "requests-minute") | openai(
        "14400", "14399", "33011.38", "requests-day"
    )
    found = by_dim(headers, "x-ratelimit")
    assert {dim: reading.per_second for dim, reading in found.items()} == {
        "requests": 0.5,
        "requests_per_day": pytest.approx(14_400 / DAY_S),
    }


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12ms", 0.012),
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("4m12.172s", 252.172),
        ("1h0m2s", 3602.0),
        ("150µs", 0.00015),
        ("2m59.56s", 179.56),
        ("36s", 36.0),
        ("0s", 0.0),
        ("", None),
        ("5", None),
        ("s", None),
        ("1 s", None),
        ("1s tomorrow", None),
        ("-1s", None),
        ("1w", None),
        ("9" * 400 + "s", None),
    ],
)
def test_durations_are_read_as_go_writes_them(text: str, seconds: float | None) -> None:
    """Parts add up; anything else is no duration."""
    assert parse_duration(text) == (None if seconds is None else pytest.approx(seconds))


def test_a_reset_may_be_a_date() -> None:
    """OpenRouter and others tell the time of the reset, in seconds or milliseconds since 1970."""
    for reset in (str(int(NOW) + 20), str(int(NOW) * 1000 + 20_000), "2027-01-15T08:00:20+00:00"):
        assert read_limits(openai("60", "30", reset), "x-ratelimit", NOW)[
            0
        ].reset_s == pytest.approx(20.0)
