"""The api lane in front of Bedrock's Converse, as the simulated provider speaks it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import boto3
import orjson
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from penstock_producer.dialects.translation import answer_for
from penstock_producer.job.endpoints import CHAT, CONVERSE
from penstock_simulate import SimulatorConfig
from penstock_simulate.web import running
from penstock_workers.errors import NoCredentials
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.lanes.api.polls import names_in
from penstock_workers.lanes.api.row import _provider
from penstock_workers.settings import ProviderSettings

ID, SECRET = "AKIAEXAMPLEOFTESTS00", "canary/aws+secret/0123456789abcdef0123456"
REGION = "eu-central-1"
ASK: dict[str, Any] = {
    "model": "amazon.nova-lite-v1:0",
    "messages": [{"role": "user", "content": [{"text": "Read it."}]}],
}
TOOL = {"toolSpec": {"name": "keep", "inputSchema": {"json": {"type": "object"}}}}


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def provider_at(url: str, **given: Any) -> ProviderSettings:
    return ProviderSettings(kind="bedrock", base_url=url, region=REGION, **given)


@asynccontextmanager
async def lane(key: str = ID, **config: Any) -> AsyncIterator[ApiLane]:
    async with running(SimulatorConfig(api_key=key, latency_ms=0.0, **config)) as url:
        made = ApiLane({"aws": provider_at(url)})
        await made.start()
        try:
            yield made
        finally:
            await made.close()


async def asked(made: ApiLane, **given: Any) -> Failure | Reply:
    request = Request("j:d", "aws", CONVERSE, orjson.dumps(ASK | given), 10.0)
    return name_failure(await made.infer(Prepared(request)), time.time())


async def test_a_conversation_is_answered() -> None:
    """The model is in the path, encoded, and the request is signed; the answer is read whole, and
    said in the words of OpenAI's chat."""
    profile = f"arn:aws:bedrock:{REGION}:123456789012:inference-profile/eu.amazon.nova-lite-v1:0"
    async with lane() as made:
        reply, named = await asked(made), await asked(made, model=profile)
        cut = await asked(made, inferenceConfig={"maxTokens": 1})
        used = await asked(made, toolConfig={"tools": [TOOL], "toolChoice": {"any": {}}})
    assert isinstance(reply, Reply)
    assert isinstance(named, Reply)
    assert isinstance(cut, Reply)
    assert isinstance(used, Reply)
    assert (reply.finish_reason, cut.finish_reason, cut.completion_tokens) == ("stop", "length", 1)
    assert reply.content
    assert reply.prompt_tokens
    assert reply.completion_tokens
    chat = orjson.loads(answer_for(CHAT, reply.body, 0.0))
    assert chat["choices"][0]["message"]["content"] == reply.content
    assert chat["usage"]["total_tokens"] == reply.prompt_tokens + reply.completion_tokens
    called = orjson.loads(answer_for(CHAT, used.body, 0.0))["choices"][0]
    assert called["finish_reason"] == "tool_calls"
    assert called["message"]["tool_calls"][0]["function"]["name"] == "keep"


async def test_a_model_that_is_no_name_is_never_sent() -> None:
    """Neither to another model's path nor to another place."""
    async with lane() as made:
        failures = [await asked(made, model=odd) for odd in ("../files", "a..b", "", "x y", None)]
    assert [failure.name for failure in failures if isinstance(failure, Failure)] == [
        "bad_request"
    ] * 5


@pytest.mark.parametrize(
    ("config", "name", "status"),
    [
        ({"key": "another-key-1234"}, "unauthorized", 403),
        ({"overload_rate": 1.0}, "overloaded", 503),
        ({"error_rate": 1.0}, "server_error", 500),
        ({"throttle_rate": 1.0}, "rate_limited", 429),
        ({"poison_rate": 1.0, "seed": 1}, None, None),
    ],
)
async def test_refusals_have_their_names(
    config: dict[str, Any], name: str | None, status: int | None
) -> None:
    """By the header that names Amazon's errors; their bodies have a message alone."""
    async with lane(**config) as made:
        failure = await asked(made)
    assert isinstance(failure, Failure)
    if name is not None:
        assert (failure.name, failure.status) == (name, status)


async def test_without_credentials_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker says which provider lacks them, and what may be set."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(NoCredentials, match=r"providers\.aws: .*AWS_PROFILE"):
        await ApiLane({"aws": provider_at("http://127.0.0.1:9")}).start()
    found = list(_provider("aws", provider_at("http://127.0.0.1:9")))
    assert [(one.is_good, one.stops) for one in found] == [(False, True)]


async def test_a_bedrock_key_goes_before_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """`api_key_env` names it, and nothing is signed."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bedrock-api-key-0123456789")
    async with running(SimulatorConfig(api_key="bedrock-api-key-0123456789")) as url:
        made = ApiLane({"aws": provider_at(url, api_key_env="AWS_BEARER_TOKEN_BEDROCK")})
        await made.start()
        reply = await asked(made)
        await made.close()
    assert isinstance(reply, Reply)


async def test_secrets_are_in_no_log_and_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the secret key, nor who has it, where a call is refused."""
    with caplog.at_level(logging.DEBUG):
        async with lane(key="another-key-1234") as made:
            failure = await asked(made)
    assert SECRET not in caplog.text
    assert SECRET not in repr(failure)
    assert ID not in repr(failure)


async def test_the_sdk_of_amazon_agrees_with_the_simulator() -> None:
    """boto3 signs, asks and reads as it would at Bedrock, and names the errors that it gets."""

    def conversed(url: str) -> tuple[dict[str, Any], str]:
        client = boto3.Session().client(
            "bedrock-runtime",
            endpoint_url=url,
            region_name=REGION,
            config=Config(retries={"total_max_attempts": 1}),
        )
        told = client.converse(modelId=ASK["model"], messages=ASK["messages"])
        with pytest.raises(ClientError) as caught:
            client.converse(modelId=ASK["model"], messages=[])
        return told, caught.value.response["Error"]["Code"]

    async with running(SimulatorConfig(api_key=ID, latency_ms=0.0)) as url:
        told, code = await asyncio.to_thread(conversed, url)
    assert told["output"]["message"]["content"][0]["text"]
    assert told["usage"]["inputTokens"] > 0
    assert code == "ValidationException"


def test_the_models_of_a_region_are_listed() -> None:
    """Bedrock has a list in a form of its own."""
    body = b'{"modelSummaries":[{"modelId":"amazon.nova-lite-v1:0","modelName":"Nova Lite"}]}'
    assert names_in(body) == ["amazon.nova-lite-v1:0"]
