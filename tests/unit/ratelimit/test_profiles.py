"""Metering profiles: what each provider charges for the same request, and what it gives back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ratelimit.provider.headers import STYLES
from penstock_ratelimit.provider.profiles import (
    BEDROCK_UNSET_MAX_TOKENS,
    PROFILES,
    Usage,
    profile_for,
)
from penstock_ratelimit.rates import MAX_BURST_S, MAX_HORIZON_S

PROMPT, MAX_TOKENS, EXPECTED = 1000.0, 4000, 300.0
USAGE = Usage(input_tokens=500, output_tokens=200, cache_read_tokens=400, cache_write_tokens=100)


@pytest.mark.parametrize(
    ("name", "tokens", "input_tokens", "output_tokens", "tokens_unset"),
    [
        ("generic", 1300, 1000, 300, 1300),
        ("openai", 5000, 1000, 4000, 1300),
        ("azure", 5000, 1000, 4000, 1300),
        ("anthropic", 1300, 1000, 300, 1300),
        ("bedrock", 5000, 1000, 4000, 1000 + BEDROCK_UNSET_MAX_TOKENS),
        ("gemini", 1000, 1000, 0, 1000),
        ("groq", 5000, 1000, 4000, 1300),
        ("together", 1300, 1000, 300, 1300),
        ("mistral", 1300, 1000, 300, 1300),
        ("vllm", 1300, 1000, 300, 1300),
    ],
)
def test_what_each_provider_charges_at_admission(
    name: str, tokens: float, input_tokens: float, output_tokens: float, tokens_unset: float
) -> None:
    """A prompt of 1,000 tokens, max_tokens 4,000, usual answers of 300; then without max_tokens."""
    profile = PROFILES[name]
    assert profile.reserve(PROMPT, MAX_TOKENS, EXPECTED) == {
        "requests": 1,
        "requests_per_day": 1,
        "tokens": tokens,
        "tokens_per_day": tokens,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
    }
    assert profile.reserve(PROMPT, None, EXPECTED)["tokens"] == tokens_unset


@pytest.mark.parametrize(
    ("name", "tokens", "input_tokens", "output_tokens"),
    [
        ("generic", 1200, 1000, 200),
        ("anthropic", 800, 600, 200),  # cache reads do not count, cache writes do
        ("bedrock", 600 + 5 * 200, 600, 200),  # burndown
        ("gemini", 1000, 1000, 0),
        ("together", 1200, 1000, 200),
        ("mistral", 1200, 1000, 200),
        ("vllm", 1200, 1000, 200),
    ],
)
def test_what_each_provider_charged_in_the_end(
    name: str, tokens: float, input_tokens: float, output_tokens: float
) -> None:
    """500 tokens of input, 400 read from the cache, 100 written to it, 200 of output."""
    assert PROFILES[name].settle(USAGE) == {
        "tokens": tokens,
        "tokens_per_day": tokens,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
    }


@pytest.mark.parametrize("name", ["openai", "azure", "groq"])
def test_what_is_never_given_back_is_never_settled(name: str) -> None:
    """A refund that the provider does not make would end in a 429."""
    assert PROFILES[name].settle(USAGE) == {}


def test_an_expected_answer_is_never_longer_than_asked_for() -> None:
    """With max_tokens 100, an answer of 300 is not to be expected."""
    assert PROFILES["anthropic"].reserve(PROMPT, 100, EXPECTED)["output_tokens"] == 100


@pytest.mark.parametrize(
    ("name", "tokens"), [("openai", 4010), ("anthropic", 10), ("gemini", 10), ("generic", 10)]
)
def test_what_is_certain_is_charged_in_any_case(name: str, tokens: float) -> None:
    """max_tokens counts as certain only where the provider charges it: elsewhere it stops no
    request."""
    certain = PROFILES[name].certain(10, MAX_TOKENS)
    assert (certain["requests"], certain["tokens"], certain["input_tokens"]) == (1, tokens, 10)


@given(
    name=st.sampled_from(sorted(PROFILES)),
    prompt=st.floats(0, 1e9),
    max_tokens=st.none() | st.integers(-5, 10**9),
    expected=st.floats(0, 1e9),
)
def test_charges_are_never_negative_and_never_less_than_certain(
    name: str, prompt: float, max_tokens: int | None, expected: float
) -> None:
    """Whatever is asked for, a charge is an amount, and a certain part is a part."""
    profile = PROFILES[name]
    charged, certain = (
        profile.reserve(prompt, max_tokens, expected),
        profile.certain(prompt, max_tokens),
    )
    assert charged.keys() == certain.keys()
    assert all(0 <= certain[dim] <= charged[dim] for dim in certain)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_usable_as_it_is(name: str) -> None:
    """Names of headers exist, dimensions are charged for, seconds are within what a quota takes."""
    profile = PROFILES[name]
    assert profile.name == name
    assert profile.header_style in STYLES
    assert set(profile.dims) <= profile.reserve(1, None, 1).keys()
    assert 0 < profile.burst_s <= MAX_BURST_S
    assert 0 < profile.horizon_s <= MAX_HORIZON_S


def test_per_second_providers_get_no_more_than_a_second_ahead() -> None:
    """Burst and horizon together stay within the smallest bucket that these providers are known to
    have."""
    for name in ("together", "azure", "mistral", "xai"):
        assert PROFILES[name].burst_s + PROFILES[name].horizon_s < 1.0


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://my-resource.openai.azure.com/openai/deployments/x", "azure"),
        ("https://my.services.ai.azure.com", "azure"),
        ("https://API.ANTHROPIC.com:443/v1", "anthropic"),
        ("https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1", "bedrock"),
        ("https://bedrock-mantle.us-east-1.api.aws/v1", "bedrock"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("https://api.together.xyz/v1", "together"),
        ("https://api.mistral.ai/v1", "mistral"),
        ("https://api.x.ai/v1", "xai"),
        ("http://127.0.0.1:8000/v1", "generic"),
        ("https://api.openai.com.evil.example/v1", "generic"),
        ("https://notapi.openai.com/v1", "generic"),
        ("http://[", "generic"),
        ("", "generic"),
    ],
)
def test_the_address_names_the_profile(base_url: str, name: str) -> None:
    """By host, not by what else stands in the address; unknown ones are generic."""
    assert profile_for(base_url).name == name


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5}, Usage(10, 5)),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
            Usage(6, 5, cache_read_tokens=4),
        ),
        (
            {"input_tokens": 10, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}},
            Usage(6, 5, cache_read_tokens=4),
        ),
        (
            {
                "input_tokens": 10,
                "output_tokens": 5,
                "cache_read_input_tokens": 400,
                "cache_creation_input_tokens": 3,
            },
            Usage(10, 5, cache_read_tokens=400, cache_write_tokens=3),
        ),
        ({"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": None}, Usage(10, 5)),
        ({"prompt_tokens": 7, "total_tokens": 7}, Usage(7, 0)),  # embeddings
        (
            {
                "prompt_tokens": 4,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 9},
            },
            Usage(0, 1, 4),
        ),
        ({"prompt_tokens": 4, "completion_tokens": -1, "prompt_tokens_details": None}, Usage(4, 0)),
        ({"prompt_tokens": -4, "completion_tokens": 1}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": 10**30}, None),
        ({"prompt_tokens": "12"}, None),
        ({"completion_tokens": 5}, None),
        ({}, None),
    ],
)
def test_usage_is_read_from_both_families_with_distrust(
    usage: dict[str, object], expected: Usage | None
) -> None:
    """OpenAI counts cached tokens among the input, Anthropic beside it; nonsense is no usage."""
    assert Usage.from_body(usage) == expected
