"""The api lane in front of Vertex AI: Gemini's requests in a project, with tokens of Google."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pydantic import ValidationError

from penstock_producer.job.endpoints import GENERATE
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_simulate import SimulatorConfig
from penstock_simulate.web import running
from penstock_workers.errors import BatchSettingMissing, NoCredentials
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.lanes.batch.apis import open_batches
from penstock_workers.settings import ProviderSettings

TOKEN = "ya29.token-of-a-test-0123456789"
PLACE: dict[str, Any] = {"project": "mine", "region": "europe-west4"}
ASK = {"model": "gemini-2.5-flash", "contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}


@asynccontextmanager
async def tokens(given: list[str]) -> AsyncIterator[str]:
    """A server that gives out tokens, as Google's does, for a signed assertion."""

    async def token(request: web.Request) -> web.Response:
        form = await request.post()
        assert form["assertion"]
        given.append(TOKEN)
        return web.json_response({"access_token": TOKEN, "expires_in": 3600})

    app = web.Application()
    app.router.add_post("/token", token)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/token"
    await runner.cleanup()


def service_account(folder: Path, token_uri: str) -> str:
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    told = {"type": "service_account", "client_email": "a@b.c", "token_uri": token_uri}
    path = folder / "account.json"
    path.write_text(json.dumps({**told, "private_key": key.decode(), "project_id": "mine"}))
    return str(path)


async def asked(made: ApiLane) -> Failure | Reply:
    request = Request("j:d", "cloud", GENERATE, orjson.dumps(ASK), 10.0)
    return name_failure(await made.infer(Prepared(request)), time.time())


async def test_requests_go_to_a_project_with_a_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is got once for the credentials that Google's tools would find, and used until it runs
    out."""
    given: list[str] = []
    async with tokens(given) as token_uri, running(SimulatorConfig(api_key=TOKEN)) as url:
        account = service_account(tmp_path, token_uri)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", account)
        made = ApiLane({"cloud": ProviderSettings(kind="vertex", base_url=url, **PLACE)})
        await made.start()
        replies = [await asked(made) for _ in range(2)]
        await made.close()
    assert all(isinstance(reply, Reply) and reply.content for reply in replies)
    assert given == [TOKEN]


async def test_without_credentials_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker says which provider lacks them, and what may be done."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/account.json")
    settings = ProviderSettings(kind="vertex", base_url="http://127.0.0.1:9", **PLACE)
    with pytest.raises(NoCredentials, match=r"providers\.cloud: .*gcloud auth"):
        await ApiLane({"cloud": settings}).start()


def test_a_project_and_a_region_make_the_address() -> None:
    """Both are asked for by their field, and so is the place of batches."""
    facts = ProviderFacts.model_validate({"kind": "vertex", **PLACE})
    assert facts.base_url == "https://europe-west4-aiplatform.googleapis.com"
    everywhere = ProviderFacts.model_validate({"kind": "vertex", **PLACE, "region": "global"})
    assert everywhere.base_url == "https://aiplatform.googleapis.com"
    for left_out in PLACE:
        given = {name: value for name, value in PLACE.items() if name != left_out}
        with pytest.raises(ValidationError, match="needs its project and region"):
            ProviderFacts.model_validate({"kind": "vertex", **given})
    with pytest.raises(BatchSettingMissing, match="batch_bucket"):
        open_batches("cloud", ProviderSettings(kind="vertex", batch_bucket="s3://mine", **PLACE))
