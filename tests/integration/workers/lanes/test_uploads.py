"""Requests that are forms with files, by the lane `api`: what a provider gets, and what answers cost."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import pytest
from attempts import make_attempt

from penstock_producer.accepting.estimates import Measure
from penstock_producer.job.endpoints import TRANSCRIPTIONS
from penstock_producer.prices import ModelPrices, known_prices
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.web import running
from penstock_workers.item.answer import Tried
from penstock_workers.item.answer_forms import tokens_used
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.item.run.cost import dearest
from penstock_workers.item.settling.rows import charge
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.settings import ProviderSettings

RECORDING = b"ID3" + bytes(range(256)) * 625  # ten seconds at 128 kbit/s


def body_of(recording: bytes = RECORDING, **fields: Any) -> bytes:
    file = "data:audio/mpeg;base64," + base64.b64encode(recording).decode()
    return json.dumps({"model": "gpt-4o-transcribe", "file": file, **fields}).encode()


async def asked(body: bytes, **config: Any) -> tuple[Tried, Failure | Reply]:
    async with running(SimulatorConfig(latency_ms=0, **config)) as url:
        lane = ApiLane({"default": ProviderSettings(base_url=f"{url}/v1")})
        await lane.start()
        try:
            tried = await lane.infer(Prepared(Request("t", "default", TRANSCRIPTIONS, body, 20.0)))
        finally:
            await lane.close()
    return tried, name_failure(tried, time.time())


async def test_a_recording_arrives_as_a_file_and_its_text_comes_back() -> None:
    """Byte for byte, with its type; lists are fields of their own, as OpenAI's clients write them."""
    fields: dict[str, Any] = {
        "response_format": "verbose_json",
        "timestamp_granularities": ["word", "segment"],
    }
    _, reply = await asked(body_of(language="en", prompt=None, **fields))
    assert isinstance(reply, Reply), reply
    assert reply.content is not None
    assert f"of {len(RECORDING)} bytes" in reply.content
    assert json.loads(reply.body)["segments"][0]["text"] == reply.content
    assert (reply.prompt_tokens, reply.completion_tokens) == (100, len(reply.content) // 4 + 1)


@pytest.mark.parametrize(
    ("model", "cost"),
    [("gpt-4o-transcribe", 100 * 6.0 + 11 * 10.0), ("whisper-1", 10 / 60 * 0.006 * 1e6)],
)
async def test_an_answer_costs_its_tokens_or_its_minutes(model: str, cost: float) -> None:
    """As the provider bills: tokens of sound at their own price, or the length."""
    _, reply = await asked(body_of(model=model))
    assert isinstance(reply, Reply)
    prices = known_prices("https://api.openai.com/v1", model)
    assert prices is not None
    used = tokens_used(reply.usage, reply.prompt_tokens, reply.completion_tokens)
    assert prices.microusd(used) == round(cost)
    provider = ProviderSettings(prices={model: ModelPrices(input=0.0, minute=0.006, media=6.0)})
    attempt = make_attempt(body=body_of(), settings=provider, model=model)
    charge(attempt, reply)
    assert attempt.spent.unpriced == 0
    assert attempt.spent.cost_microusd == (1_000 if model == "whisper-1" else 600)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (body_of(b""), "bad_request"),
        (body_of(bytes(26_214_401)), "request_too_large"),
        (body_of(file="calls/a.mp3"), "bad_request"),
        (body_of(file=None), "bad_request"),
        (body_of(file="data:audio/mpeg;base64,***"), "bad_request"),
        (body_of(file='data:audio/x"\r\nX: 1;base64,AAAA'), "bad_request"),
        (body_of(**dict[str, Any]({'a"\r\nX: y': "z"})), "bad_request"),
        (b"[]", "bad_request"),
    ],
    ids=["empty", "large", "path", "none", "base64", "type", "field", "list"],
)
async def test_what_cannot_be_sent_is_dead_at_once(body: bytes, name: str) -> None:
    """Refused here or by the provider, it is not tried again, and no header can be made of it."""
    _, failure = await asked(body)
    assert isinstance(failure, Failure)
    assert failure.name == name


async def test_refusals_of_forms_are_those_of_other_requests() -> None:
    """A limit is a limit, and a failure is tried again."""
    outcomes = await asyncio.gather(
        asked(body_of(), throttle_rate=1),
        asked(body_of(), error_rate=1),
        asked(body_of(), drop_rate=1),
    )
    assert [outcome[1].name for outcome in outcomes if isinstance(outcome[1], Failure)] == [
        "rate_limited",
        "server_error",
        "connection_lost",
    ]


def test_an_estimate_and_a_reservation_know_the_length() -> None:
    """Of a model that is paid by the minute: the estimate by a usual rate, the reservation by the
    least."""
    prices = known_prices("https://api.openai.com/v1", "whisper-1")
    assert prices is not None
    estimate = Measure.taken([body_of(model="whisper-1")] * 3).of(6)
    assert estimate.usd(prices) == pytest.approx(6 * 10 / 60 * 0.006, rel=0.01)
    reserved, _ = dearest(prices, body_of(model="whisper-1"), 100)
    assert reserved == pytest.approx(40 / 60 * 6_000, rel=0.01)
