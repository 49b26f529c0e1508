"""The api lane in front of Anthropic's Messages, as the simulated provider speaks them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from penstock_simulate import SimulatorConfig
from penstock_simulate.web import running
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.settings import ProviderSettings

KEY = "sk-ant-lane-0123456789abcdef"
LONG = [{"type": "text", "text": "A file is read. " * 500, "cache_control": {"type": "ephemeral"}}]
ASK: dict[str, Any] = {
    "model": "sim-small",
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "Read it."}],
}


@asynccontextmanager
async def lane(
    monkeypatch: pytest.MonkeyPatch, key: str = KEY, **config: Any
) -> AsyncIterator[ApiLane]:
    monkeypatch.setenv("LANE_TEST_KEY", key)
    async with running(SimulatorConfig(api_key=KEY, latency_ms=0.0, **config)) as url:
        provider = ProviderSettings(kind="anthropic", base_url=url, api_key_env="LANE_TEST_KEY")
        made = ApiLane({"claude": provider})
        await made.start()
        try:
            yield made
        finally:
            await made.close()


async def asked(made: ApiLane, **given: Any) -> Failure | Reply:
    request = Request("j:d", "claude", "/v1/messages", orjson.dumps(ASK | given), 10.0)
    return name_failure(await made.infer(Prepared(request)), time.time())


async def test_a_message_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key, the version and the path are Anthropic's, and the answer is read whole."""
    async with lane(monkeypatch) as made:
        reply = await asked(made)
        cut = await asked(made, max_tokens=1)
    assert isinstance(reply, Reply)
    assert isinstance(cut, Reply)
    assert (reply.finish_reason, cut.finish_reason) == ("stop", "length")
    assert reply.content
    assert (reply.request_id or "").startswith("req_")
    assert reply.prompt_tokens
    assert reply.completion_tokens


async def test_a_cached_prompt_counts_as_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written to the cache or read from it: it has as many tokens both times."""
    async with lane(monkeypatch) as made:
        replies = [
            await asked(made, messages=[{"role": "user", "content": LONG}]) for _ in range(2)
        ]
    first, second = (reply for reply in replies if isinstance(reply, Reply))
    assert (first.usage or {})["cache_creation_input_tokens"] > 0
    assert (second.usage or {})["cache_read_input_tokens"] > 0
    assert first.prompt_tokens == second.prompt_tokens
    assert (first.prompt_tokens or 0) > 1000


@pytest.mark.parametrize(
    ("config", "name", "status"),
    [
        ({"key": "another-key-1234"}, "unauthorized", 401),
        ({"overload_rate": 1.0}, "overloaded", 529),
        ({"error_rate": 1.0}, "server_error", 500),
        ({"throttle_rate": 1.0}, "rate_limited", 429),
        (
            {
                "credit_calls": 1,
                "credit_error": "enforced_spend_limit_reached",
                "like": "anthropic",
            },
            "out_of_credit",
            429,
        ),
    ],
)
async def test_refusals_have_their_names(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], name: str, status: int
) -> None:
    """By Anthropic's envelope and statuses."""
    async with lane(monkeypatch, **config) as made:
        _, failure = [await asked(made) for _ in range(2)]
    assert isinstance(failure, Failure)
    assert (failure.name, failure.status) == (name, status)
