"""Where a provider's key may go, and what is left to others who use it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from penstock_workers.errors import PlainHttp
from penstock_workers.settings import ProviderSettings, is_open_to_others


@pytest.mark.parametrize(
    ("url", "is_open"),
    [
        ("https://api.openai.com/v1", False),
        ("http://127.0.0.1:8399/v1", False),
        ("http://localhost:8399/v1", False),
        ("http://[::1]:8399/v1", False),
        ("http://10.0.0.7:8000/v1", True),
        ("http://vllm:8000/v1", True),
        ("http://127.0.0.1.evil.example/v1", True),
    ],
)
def test_plain_http_to_others(url: str, is_open: bool) -> None:
    """Only https and this machine keep a key to themselves (B18)."""
    assert is_open_to_others(url) is is_open


def test_a_key_does_not_travel_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is not sent over http to another machine, unless a setting of that provider allows it
    (B18)."""
    monkeypatch.setenv("SOME_KEY", "canary-0123456789")
    provider = ProviderSettings(
        base_url="http://user:hunter22@vllm:8000/v1", api_key_env="SOME_KEY"
    )
    with pytest.raises(
        PlainHttp, match=r"SOME_KEY.*https://.*allow_plain_http = true in \[providers.mine\]"
    ) as refused:
        provider.api_key("mine")
    assert "hunter22" not in str(refused.value)
    assert (
        provider.model_copy(update={"allow_plain_http": True}).api_key("mine")
        == "canary-0123456789"
    )
    assert ProviderSettings(base_url="http://vllm:8000/v1").api_key("mine") is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"interactive_ttft_s": 0.5}, "needs the server's own figures: give metrics_url"),
        ({"interactive_ttft_s": 0, "metrics_url": "http://h/metrics"}, "greater than 0"),
        ({"interactive_ttft_s": float("nan"), "metrics_url": "http://h/metrics"}, "finite"),
        ({"interactive_share": 1.0}, "less than or equal to 0.99"),
        ({"interactive_share": -0.1}, "greater than or equal to 0"),
        ({"request_priority": 0}, "greater than or equal to 1"),
        ({"request_priority": 5, "kind": "anthropic"}, "is vLLM's, and kind 'anthropic' has none"),
    ],
)
def test_what_cannot_let_people_go_first_is_refused(given: dict[str, object], why: str) -> None:
    """Before anything is spent, with the field and the fix."""
    with pytest.raises(ValidationError, match=why):
        ProviderSettings.model_validate(given)


def test_forecasts_go_by_what_is_left_of_the_limits() -> None:
    """A fifth for others leaves four fifths of each."""
    provider = ProviderSettings(rpm=600, tpm=1_000, interactive_share=0.2)
    assert provider.limits_of_ours == {"requests": 480, "tokens": 800}
    assert provider.limits == {"requests": 600, "tokens": 1_000}
