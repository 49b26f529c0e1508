"""Where a provider's key may go."""

from __future__ import annotations

import pytest

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
