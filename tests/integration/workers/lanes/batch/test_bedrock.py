"""What is Bedrock's alone about batches: files in S3, a token for each job, a least number of
records, and the settings without which nothing is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from batch_servers import BEDROCK, KEY, TAG, all_answers, packed, provider_at
from botocore.exceptions import ClientError
from servers import S3Server

from penstock_simulate import SimulatorConfig
from penstock_simulate.web import running
from penstock_workers.errors import BatchSettingMissing
from penstock_workers.lanes.batch.apis import open_batches
from penstock_workers.lanes.batch.apis.http import Times
from penstock_workers.lanes.batch.apis.provider import (
    AccountStopped,
    BatchAnswer,
    BatchGone,
    BatchProvider,
    BatchRefused,
    BatchSeen,
    NewBatch,
)
from penstock_workers.settings import ProviderSettings

SECRET = "canary/secret+0123456789abcdef0123456789"
BODY = b'{"model":"m","messages":[{"role":"user","content":[{"text":"Read it."}]}]}'


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@asynccontextmanager
async def simulated(
    monkeypatch: pytest.MonkeyPatch, **config: Any
) -> AsyncIterator[tuple[str, BatchProvider]]:
    given = {"batch_s": 0.0, "batch_step_s": 0.0, "api_key": KEY, "batch_min_records": 1, **config}
    async with running(SimulatorConfig(**given)) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"{url}/s3")
        async with provider_at(url, "bedrock", Times(pause_s=0.01)) as provider:
            yield url, provider


def batch_of(provider: BatchProvider, folder: Path, ids: list[str]) -> NewBatch:
    return packed(folder, provider, ids, "/model/converse", BODY)


async def test_a_job_that_is_made_twice_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The token is that of the batch: a create whose answer was lost costs nothing."""
    async with simulated(monkeypatch) as (_, provider):
        batch = batch_of(provider, tmp_path, ["a", "b"])
        batch = batch._replace(file_id=await provider.upload(batch))
        first, second = await provider.create(batch), await provider.create(batch)
        assert first.batch_id == second.batch_id
        found = await provider.find(TAG, 0.0)
    assert found is not None
    assert found.batch_id == first.batch_id


async def test_too_few_records_are_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It says what the least is, and where the rest of the job can go."""
    async with simulated(monkeypatch) as (_, provider):
        provider._place = provider._place._replace(least=100)  # type: ignore[attr-defined]
        batch = batch_of(provider, tmp_path, ["a"])
        with pytest.raises(BatchRefused, match=r"fewer than 100 records .* real time"):
            await provider.upload(batch)
        assert await provider.find_upload(TAG) is None


async def test_a_batch_that_bedrock_finds_too_small_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the account's own quota is higher than the setting."""
    async with simulated(monkeypatch, batch_min_records=100) as (_, provider):
        batch = batch_of(provider, tmp_path, ["a"])
        seen = await provider.create(batch._replace(file_id=await provider.upload(batch)))
        async with asyncio.timeout(10):
            while not seen.ended:
                seen = await provider.look(seen.batch_id)
    (problem,) = seen.problems
    assert "from 100 to" in problem.message
    assert seen.outputs == ()


@pytest.mark.parametrize("left_out", ["batch_bucket", "batch_role"])
def test_what_batches_need_is_asked_for_by_its_field(left_out: str) -> None:
    """Nothing is opened without a place for files and a role."""
    given = {name: value for name, value in BEDROCK.items() if name != left_out}
    settings = ProviderSettings.model_validate({"kind": "bedrock", **given})
    with pytest.raises(BatchSettingMissing, match=rf"providers\.aws\.{left_out} is not set"):
        open_batches("aws", settings)


async def test_without_credentials_the_account_stops(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A person has to act, and no secret is in what they read."""
    async with simulated(monkeypatch) as (_, provider):
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        with pytest.raises(AccountStopped, match="AWS_PROFILE"):
            await provider.upload(batch_of(provider, tmp_path, ["a"]))
    async with simulated(monkeypatch) as (_, provider):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFANOTHERACCOUNT")
        with pytest.raises(AccountStopped) as refused:
            await provider.upload(batch_of(provider, tmp_path, ["a"]))
    assert SECRET not in str(refused.value)


async def test_files_go_to_s3_and_come_from_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, s3_server: S3Server
) -> None:
    """Against moto: an upload is there whole, found again, read line by line, and deleted."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.url)
    client = s3_server.client()
    client.create_bucket(Bucket="batches")
    async with provider_at("http://127.0.0.1:9", "bedrock", Times()) as provider:
        batch = batch_of(provider, tmp_path, ["a", "b"])
        assert await provider.find_upload(TAG) is None
        uri = await provider.upload(batch)
        assert uri is not None
        assert uri == f"s3://batches/of/penstock/penstock-{TAG}/penstock-{TAG}.jsonl"
        key = uri.removeprefix("s3://batches/")
        stored = client.get_object(Bucket="batches", Key=key)["Body"].read()
        assert stored == batch.path.read_bytes()
        assert await provider.find_upload(TAG) == uri
        line = {"recordId": "a", "modelInput": {}, "modelOutput": {"stopReason": "end_turn"}}
        client.put_object(Bucket="batches", Key="out/x.jsonl.out", Body=json.dumps(line).encode())
        seen = BatchSeen("x", "Completed", True, None, outputs=("s3://batches/out/x.jsonl.out",))
        assert await all_answers(provider, seen) == [
            BatchAnswer("a", 200, b'{"stopReason": "end_turn"}')
        ]
        await provider.delete(seen._replace(file_id=uri))
        assert await provider.find_upload(TAG) is None
        with pytest.raises(BatchGone):
            await all_answers(provider, seen)
        client.delete_bucket(Bucket="batches")


async def test_the_sdk_of_amazon_agrees_with_the_simulator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """boto3 puts a file, makes a job, follows it, reads its answers and learns what is wrong."""

    def played(url: str, lines: bytes) -> tuple[Any, Any, str]:
        session = boto3.Session(region_name="eu-central-1")
        jobs, files = session.client("bedrock", endpoint_url=url), session.client("s3")
        files.put_object(Bucket="mine", Key="in.jsonl", Body=lines)
        asked = {
            "jobName": "night",
            "roleArn": BEDROCK["batch_role"],
            "modelId": "amazon.nova-lite-v1:0",
            "modelInvocationType": "Converse",
            "inputDataConfig": {"s3InputDataConfig": {"s3Uri": "s3://mine/in.jsonl"}},
            "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": "s3://mine/out/"}},
        }
        arn = jobs.create_model_invocation_job(**asked, clientRequestToken="one")["jobArn"]
        with pytest.raises(ClientError) as caught:
            jobs.create_model_invocation_job(
                **{**asked, "jobName": "other"}, clientRequestToken="one"
            )
        listed = jobs.list_model_invocation_jobs(nameContains="night")["invocationJobSummaries"]
        while (job := jobs.get_model_invocation_job(jobIdentifier=arn))["status"] != "Completed":
            assert job["status"] in ("Submitted", "Validating", "InProgress")
        key = f"out/{arn.rpartition('/')[2]}/in.jsonl.out"
        told = files.get_object(Bucket="mine", Key=key)["Body"].read()
        return listed, told, caught.value.response["Error"]["Code"]

    async with simulated(monkeypatch) as (url, provider):
        batch = batch_of(provider, tmp_path, ["a", "b"])
        listed, told, code = await asyncio.to_thread(played, url, batch.path.read_bytes())
    assert [one["jobName"] for one in listed] == ["night"]
    assert {json.loads(line)["recordId"] for line in told.splitlines()} == {"a", "b"}
    assert code == "ConflictException"
