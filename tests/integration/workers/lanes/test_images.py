"""Images that answers hold: they become objects, and a result names them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace
from servers import S3Server

from penstock_ledger import JobNotFound, JobState, JobStore, NewJob, open_database
from penstock_producer.errors import SinkError
from penstock_producer.job.endpoints import IMAGE_EDITS, IMAGES
from penstock_producer.operations import JobOperations
from penstock_producer.public_hosts import NotFetched, fetch
from penstock_producer.settings import ProducerSettings
from penstock_producer.storage import bucket_at, open_sink
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.web import running
from penstock_workers.item.answer import Answer
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.lane import Request
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.lanes.api.images import ImageStore
from penstock_workers.settings import ProviderSettings

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def request_of(endpoint: str = IMAGES, **fields: Any) -> Request:
    body = {"model": "gpt-image-1", "prompt": "a red fox", **fields}
    return Request("job_1:doc~g1", "default", endpoint, json.dumps(body).encode(), 20.0)


async def asked(
    request: Request, place: Path | None, provider: str | None = None
) -> tuple[Failure | Reply, dict[str, Any]]:
    """Ask the simulator, and return what came of it with the provider's accounts."""
    async with running(SimulatorConfig(latency_ms=0)) as url:
        providers = {"default": ProviderSettings(base_url=f"{provider or url}/v1")}
        lane = ApiLane(providers)
        lane.images = ImageStore(None if place is None else str(place), providers, first_wait_s=0)
        await lane.start()
        try:
            prepared = await lane.prepare(request)
            tried = prepared.refused or await lane.infer(prepared)
        finally:
            await lane.close()
        async with aiohttp.ClientSession() as session, session.get(f"{url}/stats") as answer:
            return name_failure(tried, time.time()), await answer.json()


def content_of(row: dict[str, Any]) -> bytes:
    return Path(row["object"]).read_bytes()


def kept_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize("response_format", ["b64_json", "url"])
async def test_images_are_files_that_the_result_names(tmp_path: Path, response_format: str) -> None:
    """With digest, size and type, whether they came in the answer or at an address; no image stays
    in the result."""
    reply, _ = await asked(request_of(n=2, response_format=response_format), tmp_path / "images")
    assert isinstance(reply, Reply), reply
    rows = json.loads(reply.body)["data"]
    assert [set(row) for row in rows] == [{"object", "sha256", "bytes", "type"}] * 2
    for row in rows:
        content = content_of(row)
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (row["sha256"], row["bytes"])
        assert (row["type"], content[:4]) == ("image/png", b"\x89PNG")
        assert Path(row["object"]).parent == tmp_path / "images" / "job_1"
    assert (reply.prompt_tokens, reply.completion_tokens) == (3, 2 * 272)


async def test_the_same_answer_again_is_the_same_object(tmp_path: Path) -> None:
    """A worker that died behind the call leaves no second copy."""
    for _ in range(2):
        await asked(request_of(), tmp_path)
    assert len(kept_in(tmp_path / "job_1")) == 1


async def test_an_edit_sends_its_image_as_a_file(tmp_path: Path) -> None:
    """One as `image`, several as `image[]`; another gets another answer."""
    url, other = (
        "data:image/png;base64," + base64.b64encode(PNG + end).decode() for end in (b"", b"x")
    )
    made = set()
    for image in (url, other, [url, other]):
        reply, _ = await asked(request_of(IMAGE_EDITS, image=image), tmp_path)
        assert isinstance(reply, Reply), reply
        made.add(json.loads(reply.body)["data"][0]["sha256"])
    assert len(made) == 3


async def test_without_a_place_nothing_is_asked() -> None:
    """An image that could not be kept is not paid for."""
    failure, accounts = await asked(request_of(), None)
    assert isinstance(failure, Failure)
    assert failure.name == "bad_request"
    assert "images_url" in failure.detail
    assert accounts["requests"] == 0


async def test_images_that_cannot_be_kept_fail_with_their_cost(tmp_path: Path) -> None:
    """The call was paid, and the books have it."""
    (tmp_path / "file").write_bytes(b"")
    failure, _ = await asked(request_of(), tmp_path / "file")
    assert isinstance(failure, Failure)
    assert failure.name == "unexpected_error"
    assert "cannot be kept" in failure.detail
    assert (failure.prompt_tokens, failure.completion_tokens) == (3, 272)


@pytest.mark.parametrize(
    "row",
    [
        {"url": "http://localhost:1/x.png"},
        {"url": "http://169.254.169.254/latest/meta-data"},
        {"url": "https://169.254.169.254/latest/meta-data"},
        {"url": "file:///etc/passwd"},
        {"url": "https://user:key@example.com/x.png"},
        {"url": 5},
        {"b64_json": "***"},
        {},
    ],
)
async def test_what_an_answer_names_is_fetched_from_public_hosts_only(
    row: dict[str, Any], tmp_path: Path
) -> None:
    """An answer makes this machine ask neither itself nor its network."""
    providers = {"default": ProviderSettings(base_url="https://api.example.com/v1")}
    store = ImageStore(str(tmp_path), providers, first_wait_s=0)
    body = json.dumps({"data": [row], "usage": {"input_tokens": 1, "output_tokens": 2}}).encode()
    tried = await store.kept(request_of(), Answer(200, {}, body, 1))
    failure = name_failure(tried, time.time())
    assert isinstance(failure, Failure)
    assert (failure.name, failure.completion_tokens) == ("unexpected_error", 2)
    assert kept_in(tmp_path) == []


@pytest.mark.parametrize(
    "row",
    [
        {"b64_json": base64.b64encode(PNG).decode(), "url": None},
        {"b64_json": None, "url": "data:image/png;base64," + base64.b64encode(PNG).decode()},
    ],
)
async def test_an_image_is_read_where_it_is(row: dict[str, Any], tmp_path: Path) -> None:
    """Servers write both fields, one of them null, and some an address that is the image."""
    store = ImageStore(str(tmp_path), {"default": ProviderSettings()}, first_wait_s=0)
    tried = await store.kept(request_of(), Answer(200, {}, json.dumps({"data": [row]}).encode(), 1))
    assert isinstance(tried, Answer)
    (kept,) = json.loads(tried.body)["data"]
    assert content_of(kept) == PNG
    assert kept.keys() == {"object", "sha256", "bytes", "type"}


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"data": null}', b'{"data": [1]}', b"<html>"])
async def test_other_answers_stay_as_they_came(body: bytes, tmp_path: Path) -> None:
    """What is no list of images is named like any other answer."""
    store = ImageStore(str(tmp_path), {"default": ProviderSettings()})
    answer = Answer(200, {}, body, 1)
    assert await store.kept(request_of(), answer) is answer


async def test_a_file_at_an_address_is_bounded() -> None:
    """A larger one is not read to its end, and one that is not there is no file."""
    async with running(SimulatorConfig(latency_ms=0)) as url:
        for address, most in ((f"{url}/metrics", 10), (f"{url}/images/{'0' * 64}.png", 10_000)):
            with pytest.raises(NotFetched):
                await asyncio.to_thread(fetch, address, most, ["127.0.0.1"])
        with pytest.raises(NotFetched):
            await asyncio.to_thread(fetch, f"{url}/metrics", 10_000)
        assert await asyncio.to_thread(fetch, f"{url}/metrics", 10_000, ["127.0.0.1"])


@pytest.fixture(params=["folder", "bucket"])
def images(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ProducerSettings:
    """The settings of a place for images, on a disk and in S3."""
    if request.param == "folder":
        return ProducerSettings(images_url=str(tmp_path / "images"))
    server: S3Server = request.getfixturevalue("s3_server")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server.client().create_bucket(Bucket="purged")
    return ProducerSettings(images_url="s3://purged/images/", s3_endpoint_url=server.url)


def names_at(settings: ProducerSettings) -> list[str]:
    place = str(settings.images_url)
    if place.startswith("s3://"):
        found = bucket_at(place, s3_endpoint_url=settings.s3_endpoint_url).names("/")
        return sorted(found)
    return sorted(str(one.relative_to(place)) for one in Path(place).rglob("*") if one.is_file())


async def test_the_images_of_a_job_are_removed_with_it(
    images: ProducerSettings, tmp_path: Path
) -> None:
    """Of its folder the images go and nothing else, and those of other jobs stay. While they cannot
    be removed the job is not forgotten, so that it can be purged again."""
    providers = {"default": ProviderSettings()}
    store = ImageStore(images.images_url, providers, images.s3_endpoint_url, first_wait_s=0)
    rows = {"data": [{"b64_json": base64.b64encode(PNG).decode()}]}
    for job in ("job_1", "job_2"):
        request = replace(request_of(), tag=f"{job}:doc~g1")
        await store.kept(request, Answer(200, {}, json.dumps(rows).encode(), 1))
        sink = open_sink(f"{images.images_url}/{job}", s3_endpoint_url=images.s3_endpoint_url)
        other = sink.create("output.jsonl")
        other.write(b"{}")
        other.finish()
        other.publish()
    digest = hashlib.sha256(PNG).hexdigest()
    database = open_database(f"sqlite:///{tmp_path}/ledger.db")
    database.migrate()
    jobs = JobStore(database)
    jobs.create(NewJob("job_1", "pictures", {"endpoint": IMAGES}, {"kind": "file"}, "digest", 10))
    jobs.set_state("job_1", JobState.COMPLETED, expect={JobState.RUNNING})
    if images.s3_endpoint_url is not None:
        away = images.model_copy(update={"images_url": "s3://no-such-bucket"})
        with pytest.raises(SinkError):
            JobOperations(database, away).purge(jobs.get("job_1"))
    JobOperations(database, images).purge(jobs.get("job_1"))
    with pytest.raises(JobNotFound):
        jobs.get("job_1")
    assert names_at(images) == [
        "job_1/output.jsonl",
        f"job_2/{digest}.png",
        "job_2/output.jsonl",
    ]
    database.close()
