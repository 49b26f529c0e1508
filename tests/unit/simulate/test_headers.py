"""Rate-limit headers and waits, as each provider writes them."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from penstock_ratelimit.provider.headers import STYLES, read_limits
from penstock_ratelimit.provider.profiles import PROFILES
from penstock_simulate.answers.headers import ABSURD_VALUES, WRITERS, RetryHeaders, go_duration
from penstock_simulate.answers.servers import SERVERS
from penstock_simulate.choices import PRESETS, HeaderStyle, RetryStyle
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.limits import KeyLimits, charge

WALL = 1_767_225_600.4  # 2026-01-01T00:00:00.4Z


def headers_after(
    requests: int, input_tokens: int, output_tokens: int, **config: Any
) -> dict[str, str]:
    made = SimulatorConfig(**config)
    limits = KeyLimits(made)
    limits.admit(charge(requests, input_tokens, output_tokens), 0.0)
    return WRITERS[HeaderStyle(made.metering.headers)](limits.meters, 0.0, WALL)


def test_openais_headers_follow_its_arithmetic() -> None:
    """A bucket one minute deep shows what OpenAI's posted headers show: limit 5000, one used, 12 ms
    to full."""
    assert headers_after(1, 24, 0, like="openai", rpm=5_000, tpm=160_000) == {
        "x-ratelimit-limit-requests": "5000",
        "x-ratelimit-remaining-requests": "4999",
        "x-ratelimit-reset-requests": "12ms",
        "x-ratelimit-limit-tokens": "160000",
        "x-ratelimit-remaining-tokens": "159976",
        "x-ratelimit-reset-tokens": "9ms",
    }
    assert headers_after(1, 24, 0) == {}


def test_a_daily_limit_shows_in_the_place_of_the_minutes() -> None:
    """A posted header of OpenAI: 1,500,000 tokens of which 4,379 are used are full again after
    4m12s, so in a day."""
    found = headers_after(1, 4_379, 0, like="openai", tpm=60_000, tpd=1_500_000)
    assert found["x-ratelimit-limit-tokens"] == "1500000"
    assert found["x-ratelimit-remaining-tokens"] == "1495621"
    assert found["x-ratelimit-reset-tokens"].startswith("4m12.")
    groq = headers_after(1, 0, 0, like="groq", rpm=30, rpd=14_400, tpm=6_000)
    assert (groq["x-ratelimit-limit-requests"], groq["x-ratelimit-limit-tokens"]) == (
        "14400",
        "6000",
    )
    assert headers_after(1, 0, 0, like="groq", rpm=30) == {}


def test_anthropics_headers_have_times_and_thousands() -> None:
    """Split limits with their sum, remaining tokens to the nearest thousand, and the time at which
    each is full."""
    found = headers_after(1, 1_600, 4_400, like="anthropic", rpm=60, itpm=60_000, otpm=12_000)
    head = "anthropic-ratelimit-"
    assert found[head + "requests-remaining"] == "59"
    assert found[head + "requests-reset"] == "2026-01-01T00:00:02Z"
    assert found[head + "input-tokens-limit"] == "60000"
    assert found[head + "input-tokens-remaining"] == "58000"
    assert found[head + "output-tokens-remaining"] == "8000"
    assert found[head + "output-tokens-reset"] == "2026-01-01T00:00:23Z"
    assert (found[head + "tokens-limit"], found[head + "tokens-remaining"]) == ("72000", "66000")
    assert len(found) == 12


def test_togethers_headers_are_per_second() -> None:
    """Requests and tokens per second under names of their own."""
    assert headers_after(1, 150, 0, like="together", rpm=600, tpm=60_000) == {
        "x-ratelimit-limit": "10",
        "x-ratelimit-remaining": "9",
        "x-ratelimit-reset": "1",
        "x-tokenlimit-limit": "1000",
        "x-tokenlimit-remaining": "850",
        "x-tokenlimit-reset": "1",
    }


def test_azures_headers_show_the_window_that_is_enforced() -> None:
    """600 requests per minute read as 100 per ten seconds, and nothing tells when the window
    ends."""
    assert headers_after(1, 100, 0, like="azure", rpm=600, tpm=60_000) == {
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": "99",
        "x-ratelimit-limit-tokens": "60000",
        "x-ratelimit-remaining-tokens": "59900",
    }


@pytest.mark.parametrize("like", ["bedrock", "gemini", "vllm", *SERVERS])
def test_some_tell_nothing(like: str) -> None:
    """Limits that hold and are in no header."""
    assert headers_after(1, 100, 0, like=like, rpm=600, tpm=60_000) == {}


@pytest.mark.parametrize("like", [name for name in PRESETS if name not in SERVERS])
def test_what_is_told_is_what_our_reader_reads(like: str) -> None:
    """Every limit that a provider tells is read with its dimension and its rate; Azure alone hides
    its window."""
    limits = {"rpm": 1_200, "rpd": 864_000} | (
        {"itpm": 60_000, "otpm": 12_000} if like == "anthropic" else {"tpm": 120_000}
    )
    told = headers_after(40, 20_000, 10_000, like=like, **limits)
    style = PROFILES[like].header_style
    read = {reading.dim: reading.per_second for reading in read_limits(told, style, WALL)}
    assert style in STYLES
    assert read == {
        "openai": {"requests_per_day": 10, "tokens": 2_000},
        "azure": {"requests": None, "tokens": 2_000},
        "anthropic": {"requests": 20, "input_tokens": 1_000, "output_tokens": 200},
        "groq": {"requests_per_day": 10, "tokens": 2_000},
        "together": {"requests": 20, "tokens": 2_000},
    }.get(like, {})


@pytest.mark.parametrize("like", ["openai", "azure", "anthropic", "together"])
def test_remaining_is_never_below_nothing(like: str) -> None:
    """A limit in debt shows 0."""
    config = SimulatorConfig(like=like, tpm=6_000)
    limits = KeyLimits(config)
    limits.correct(charge(0, 0, 9_000), 0.0)
    limits.catch_up(0.0)
    found = WRITERS[HeaderStyle(config.metering.headers)](limits.meters, 0.0, WALL)
    assert [value for name, value in found.items() if "remaining" in name] == ["0"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (90, "1m30s"),
        (252.172, "4m12.172s"),
        (360, "6m0s"),
        (3602, "1h0m2s"),
    ],
)
def test_durations_are_written_as_go_does(seconds: float, shown: str) -> None:
    """Reset headers read like OpenAI's."""
    assert go_duration(seconds) == shown


@pytest.mark.parametrize(
    ("style", "told"),
    [
        (RetryStyle.BOTH, {"retry-after": "2", "retry-after-ms": "1201"}),
        (RetryStyle.SECONDS, {"retry-after": "2"}),
        (RetryStyle.MILLISECONDS, {"retry-after-ms": "1201"}),
        (RetryStyle.NONE, {}),
    ],
)
def test_a_wait_is_told_in_the_style_asked_for(style: RetryStyle, told: dict[str, str]) -> None:
    """Rounded up, so that a client that obeys never comes too early."""
    assert RetryHeaders(style, lambda: WALL).write(1.2001) == told


def test_a_date_is_not_before_the_wait_is_over() -> None:
    """HTTP dates have whole seconds: the next one counts."""
    told = RetryHeaders(RetryStyle.DATE, lambda: WALL).write(1.5)["retry-after"]
    assert parsedate_to_datetime(told).timestamp() == 1_767_225_602


def test_absurd_waits_come_one_after_the_other() -> None:
    """Every absurd value comes up, then they start over."""
    writer = RetryHeaders(RetryStyle.ABSURD, lambda: WALL)
    seen = [writer.write(1.0)["retry-after"] for _ in range(len(ABSURD_VALUES) + 1)]
    assert seen == [*ABSURD_VALUES, ABSURD_VALUES[0]]
