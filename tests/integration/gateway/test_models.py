"""`GET /v1/models`, by the clients of OpenAI and Anthropic, and the refusal of a call whose model
no worker serves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from doors import asked, door, door_settings, new_key
from servers import RedisServer

from penstock_gateway.settings import GatewaySettings
from penstock_ledger import Meta, RedisLedger, open_database
from penstock_producer.feed.queues import LISTED, LOADS, SERVES, Served
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.prices import ModelPrices

HOSTED = Served(("Qwen/Qwen3-8B", "qwen"), adapters=("legal",), context=40_960)


@pytest.fixture
def settings(tmp_path: Path, redis_server: RedisServer) -> GatewaySettings:
    facts = ProviderFacts(prices={"priced-1": ModelPrices(input=1.0, output=2.0)})
    return door_settings(tmp_path, redis_server.url).model_copy(
        update={"providers": {"default": facts}}
    )


@pytest.fixture
def url(settings: GatewaySettings) -> Iterator[str]:
    with door(settings) as url:
        yield url


def says(
    settings: GatewaySettings, redis_server: RedisServer, worker: str, field: str, served: Served
) -> None:
    """A worker's heartbeat."""
    with contextlib.closing(open_database(settings.database_url)) as database:
        hot = RedisLedger(redis_server.client(), Meta(database).epoch())
    hot.heartbeat(worker, {"lane": "gpu", field: served.to_text()})


def test_clients_list_what_workers_host_and_what_the_settings_price(
    url: str, settings: GatewaySettings, redis_server: RedisServer
) -> None:
    """Every name of a hosted model, then the provider's; one by its name, a slash in it included;
    others are 404."""
    says(settings, redis_server, "one", SERVES, HOSTED)
    says(settings, redis_server, "two", SERVES, HOSTED)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    assert [(one.id, one.owned_by) for one in client.models.list()] == [
        ("Qwen/Qwen3-8B", "penstock"),
        ("qwen", "penstock"),
        ("legal", "penstock"),
        ("priced-1", "default"),
    ]
    assert client.models.retrieve("Qwen/Qwen3-8B").model_dump()["max_model_len"] == 40_960
    with pytest.raises(openai.NotFoundError, match="GET /v1/models lists what is"):
        client.models.retrieve("none-such")
    theirs = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    listed = theirs.models.list()
    assert [one.display_name for one in listed.data] == [
        "Qwen/Qwen3-8B",
        "qwen",
        "legal",
        "priced-1",
    ]
    assert not listed.has_next_page()
    assert theirs.models.retrieve("qwen").created_at.year == 1970


def test_a_key_must_be_one_that_may_ask(url: str, settings: GatewaySettings) -> None:
    """The scope is `infer`, as of the calls that name these models."""
    asks, reads = new_key(settings, "shop", "infer"), new_key(settings, "shop", "read")
    assert asked(f"{url}/v1/models", authorization=f"Bearer {asks}").status == 200
    assert (
        asked(f"{url}/v1/models", authorization=f"Bearer {reads}").content["error"]["code"]
        == "missing_scope"
    )
    assert asked(f"{url}/v1/models").status == 401


def test_a_call_is_told_which_models_there_are_and_which_one_loads(
    url: str, settings: GatewaySettings, redis_server: RedisServer
) -> None:
    """404 with the names, 503 while a worker loads it."""
    says(settings, redis_server, "one", SERVES, HOSTED)
    says(settings, redis_server, "two", LOADS, Served(("slow-1",)))
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    say: Any = [{"role": "user", "content": "Say something."}]
    with pytest.raises(
        openai.NotFoundError, match="'none-such' does not exist here; served are: qwen"
    ):
        client.chat.completions.create(model="none-such", messages=say)
    with pytest.raises(openai.InternalServerError, match="a worker is loading the model 'slow-1'"):
        client.chat.completions.create(model="slow-1", messages=say)


def test_models_that_the_provider_lists_are_listed(
    url: str, settings: GatewaySettings, redis_server: RedisServer
) -> None:
    """As workers have read it; what else a heartbeat may say is none."""
    with contextlib.closing(open_database(settings.database_url)) as database:
        hot = RedisLedger(redis_server.client(), Meta(database).epoch())
    for number, listed in enumerate(
        ('{"default": ["b-model", "a-model", 7, ""], "other": ["x"]}', "[]", "{", "7")
    ):
        hot.heartbeat(f"worker-{number}", {"lane": "api", LISTED: listed})
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    assert [one.id for one in client.models.list()] == ["priced-1", "a-model", "b-model"]
    assert client.models.retrieve("a-model").owned_by == "default"


def test_models_of_a_known_provider_are_listed_without_a_worker(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    """Those of the table of prices, so that the list is not empty."""
    facts = ProviderFacts(base_url="https://api.openai.com/v1")
    settings = door_settings(tmp_path, redis_server.url).model_copy(
        update={"providers": {"default": facts}}
    )
    with door(settings) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        assert any(one.id.startswith("gpt-") for one in client.models.list())
