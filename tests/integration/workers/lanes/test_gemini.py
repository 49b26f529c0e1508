"""The api lane in front of Gemini's generateContent, as the simulated provider speaks it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from penstock_producer.job.endpoints import GENERATE
from penstock_simulate import SimulatorConfig
from penstock_simulate.web import running
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.settings import ProviderSettings

KEY = "AIza-lane-0123456789abcdef"
ASK: dict[str, Any] = {
    "model": "sim-small",
    "contents": [{"role": "user", "parts": [{"text": "Read it."}]}],
}


@asynccontextmanager
async def lane(
    monkeypatch: pytest.MonkeyPatch, key: str = KEY, at: str = "", **config: Any
) -> AsyncIterator[ApiLane]:
    monkeypatch.setenv("LANE_TEST_KEY", key)
    async with running(SimulatorConfig(api_key=KEY, latency_ms=0.0, **config)) as url:
        provider = ProviderSettings(kind="gemini", base_url=url + at, api_key_env="LANE_TEST_KEY")
        made = ApiLane({"google": provider})
        await made.start()
        try:
            yield made
        finally:
            await made.close()


async def asked(made: ApiLane, **given: Any) -> Failure | Reply:
    request = Request("j:d", "google", GENERATE, orjson.dumps(ASK | given), 10.0)
    return name_failure(await made.infer(Prepared(request)), time.time())


@pytest.mark.parametrize("at", ["", "/v1beta"])
async def test_contents_are_answered(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """The model is in the path and the key in its header, with base URLs of both kinds; the answer
    is read whole."""
    async with lane(monkeypatch, at=at) as made:
        reply = await asked(made)
        named = await asked(made, model="models/sim-small")
        cut = await asked(made, generationConfig={"maxOutputTokens": 1})
    assert isinstance(reply, Reply)
    assert isinstance(named, Reply)
    assert isinstance(cut, Reply)
    assert (reply.finish_reason, cut.finish_reason, cut.completion_tokens) == ("stop", "length", 1)
    assert reply.content
    assert reply.model == named.model == "sim-small"
    assert reply.prompt_tokens
    assert reply.completion_tokens


async def test_a_model_that_is_no_name_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to another model's path nor to another place."""
    async with lane(monkeypatch) as made:
        failures = [await asked(made, model=odd) for odd in ("../files", "x:delete", None)]
        broken = await made.infer(Prepared(Request("j:d", "google", GENERATE, b"[1]", 10.0)))
    assert [failure.name for failure in failures if isinstance(failure, Failure)] == [
        "bad_request"
    ] * 3
    failure = name_failure(broken, time.time())
    assert isinstance(failure, Failure)
    assert failure.name == "bad_request"


@pytest.mark.parametrize(
    ("config", "name", "status"),
    [
        ({"key": "another-key-1234"}, "unauthorized", 401),
        ({"overload_rate": 1.0}, "overloaded", 503),
        ({"error_rate": 1.0}, "server_error", 500),
        ({"throttle_rate": 1.0}, "rate_limited", 429),
    ],
)
async def test_refusals_have_their_names(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], name: str, status: int
) -> None:
    """By Google's envelope and statuses."""
    async with lane(monkeypatch, **config) as made:
        failure = await asked(made)
    assert isinstance(failure, Failure)
    assert (failure.name, failure.status) == (name, status)
