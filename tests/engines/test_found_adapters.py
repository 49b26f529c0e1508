"""Adapters that are found while the engine runs, and a model in a bucket: vLLM's real engine,
adapters of rank 64."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from engines.gpu_worker import WORK_S, gpu_worker
from engines.test_gpu_lane import body_of, chat, named, request, settings
from engines.tiny_model import Shape, make_adapter
from fleet import Fleet, Process, until
from servers import S3Server

from penstock_ledger.model import Job, JobState
from penstock_workers.item.failures import Failure
from penstock_workers.lanes.gpu.adapter_watch import AdapterWatch
from penstock_workers.lanes.gpu.gpu_lane import GpuLane
from penstock_workers.lanes.gpu.host_files import STREAMER, STREAMER_ADDRESSING, STREAMER_ENDPOINTS

SHARED = (
    "This beginning is as long as several blocks of the cache, so that its keys and values would "
    "be found again. "
) * 3
TWO_KEPT = {"max_loras": 2, "max_cpu_loras": 2}


class Place:
    """A folder with adapters, and a worker's lane that looks at it when it is asked to."""

    def __init__(self, folder: Path, lane: GpuLane) -> None:
        self.folder, self.lane = folder, lane

    def put(self, name: str, *, rank: int = 64, seed: int = 1, shape: Shape | None = None) -> None:
        """Whole, and as old as what rests."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        made = make_adapter(self.folder / name, shape, rank=rank, seed=seed)
        then = time.time() - 3600 - seed
        for file in made.iterdir():
            os.utime(file, (then, then))

    async def look(self) -> tuple[str, ...]:
        """What is served after it."""
        watch = self.lane._host._adapter_watch
        assert isinstance(watch, AdapterWatch)
        await watch.look()
        return self.lane.served.adapters

    async def says(self, model: str | None = None) -> str:
        fields = {} if model is None else {"model": model}
        body = await body_of(self.lane, request(chat(1, SHARED, max_tokens=16, **fields)))
        return str(body["choices"][0]["message"]["content"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    folder, cache = tmp_path_factory.mktemp("adapters"), tmp_path_factory.mktemp("cache")
    gpu = {
        "lora_from": str(folder),
        "lora_every_s": 3600,
        "cache_dir": str(cache),
        "engine": TWO_KEPT,
    }
    lane = GpuLane(settings(tiny_llama, **gpu), give_up=pytest.fail)
    await lane.start()
    yield Place(folder, lane)
    await lane.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_an_adapter_is_served_without_a_restart(place: Place) -> None:
    """Not found before it is there, answered and announced after the next look; the model itself
    speaks as before."""
    plain = await place.says()
    missing = await named(place.lane, request(chat(1, model="legal")))
    assert isinstance(missing, Failure)
    assert missing.name == "not_found"
    place.put("legal")
    assert "legal" in await place.look()
    assert await place.says("legal") != plain
    assert await place.says() == plain


@pytest.mark.asyncio(loop_scope="module")
async def test_a_replaced_adapter_answers_with_its_new_weights(place: Place) -> None:
    """As one of another name with the same weights does: nothing that the old version computed is
    used for the new one."""
    place.put("moving", seed=2)
    await place.look()
    before = await place.says("moving")
    place.put("moving", seed=3)
    place.put("settled", seed=3)
    await place.look()
    after = await place.says("moving")
    assert before != after == await place.says("settled")


@pytest.mark.asyncio(loop_scope="module")
async def test_an_adapter_of_another_model_is_refused_and_no_engine_dies(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole files whose layers do not fit, a rank above what the engine has room for: the reason is
    in the log, once."""
    engine = place.lane._host.engine
    place.put("narrow", shape=Shape(hidden=128, heads=2))
    place.put("high", rank=128)
    served = await place.look()
    await place.look()
    assert not {"narrow", "high"} & set(served)
    assert caplog.text.count("narrow': ") == caplog.text.count("high': ") == 1
    assert "rank 128 is greater than max_lora_rank" in caplog.text
    assert "it is for a model of width 128, and this one has 256" in caplog.text
    assert await place.says()
    assert place.lane._host.engine is engine


@pytest.mark.asyncio(loop_scope="module")
async def test_more_adapters_than_memory_holds_are_served_from_the_cache(place: Place) -> None:
    """Six, of which two stay loaded: vLLM reads the others again, from files that nothing removes
    while they are served."""
    names = [f"many-{number}" for number in range(6)]
    for number, name in enumerate(names):
        place.put(name, seed=10 + number)
    await place.look()
    first = await asyncio.gather(*(place.says(name) for name in names))
    assert len(set(first)) == 6
    for name in names:
        shutil.rmtree(place.folder / name)
    assert await asyncio.gather(*(place.says(name) for name in names)) == first


@pytest.mark.asyncio(loop_scope="module")
async def test_a_withdrawn_adapter_is_found_by_what_is_on_its_way_and_not_after(
    place: Place,
) -> None:
    """Its name is announced no longer, and then requests that name it are not found, as for any
    other name."""
    place.put("leaving")
    assert "leaving" in await place.look()
    adapter = place.lane._host._factory.adapters.get("leaving")
    assert adapter is not None
    shutil.rmtree(place.folder / "leaving")
    assert "leaving" not in await place.look()
    assert await place.says("leaving")
    place.lane._host._factory.adapters.drop_retired(adapter)
    gone = await named(place.lane, request(chat(1, model="leaving")))
    assert isinstance(gone, Failure)
    assert gone.name == "not_found"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the bucket."""
    for name, value in (
        ("ACCESS_KEY_ID", "test"),
        ("SECRET_ACCESS_KEY", "test"),
        ("DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture
def fleet(tmp_path: Path, keys: None) -> Iterator[Fleet]:
    with Fleet(tmp_path) as running:
        yield running


class Bucket:
    def __init__(self, server: S3Server) -> None:
        self._client = server.client()
        self.name = f"models-{uuid4().hex[:12]}"
        self._client.create_bucket(Bucket=self.name)

    def put(self, prefix: str, folder: Path) -> None:
        for file in folder.iterdir():
            self._client.upload_file(str(file), self.name, f"{prefix}/{file.name}")

    def remove(self, prefix: str) -> None:
        for entry in self._client.list_objects_v2(Bucket=self.name, Prefix=f"{prefix}/")[
            "Contents"
        ]:
            self._client.delete_object(Bucket=self.name, Key=entry["Key"])


def submit(fleet: Fleet, model: str) -> Job:
    source = fleet.folder / f"{model}-{uuid4().hex[:6]}.jsonl"
    source.write_text(
        "".join(json.dumps({"id": f"doc-{n}", "text": f"review {n}"}) + "\n" for n in range(20))
    )
    params = {"max_tokens": 4, "temperature": 0}
    return fleet.producer.submit(
        source, {"lane": "gpu", "model": model, "prompt": "Name: {text}", "params": params}
    )


def announced(worker: Process) -> str:
    """The last line of its log that says what it serves."""
    lines = worker.log.read_text(errors="replace").splitlines()
    return next(line for line in reversed(lines) if "this worker serves" in line)


@pytest.mark.usefixtures("keys")
@pytest.mark.asyncio(loop_scope="module")
async def test_weights_are_streamed_from_a_bucket(
    place: Place,
    s3_server: S3Server,
    tiny_llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By vLLM's own loader, with no copy of them on this machine; the answers are those of the
    model in a folder."""
    for name in (*STREAMER_ENDPOINTS, STREAMER_ADDRESSING):
        monkeypatch.setenv(name, s3_server.url)
        monkeypatch.delenv(name)  # now the test takes back what the lane sets
    bucket = Bucket(s3_server)
    bucket.put("tiny-llama", tiny_llama)
    gpu = {"cache_dir": str(tmp_path / "cache"), "engine": {"load_format": STREAMER}}
    asked = settings(Path("x"), **gpu)
    asked = asked.model_copy(
        update={
            "s3_endpoint_url": s3_server.url,
            "gpu": asked.gpu.model_copy(update={"model": f"s3://{bucket.name}/tiny-llama"}),
        }
    )
    lane = GpuLane(asked, give_up=pytest.fail)
    await lane.start()
    try:
        assert lane.served.names == (f"s3://{bucket.name}/tiny-llama", "tiny-llama")
        assert await Place(tmp_path, lane).says("tiny-llama") == await place.says()
        assert {path.suffix for path in (tmp_path / "cache").glob("*/*")} == {".json", ".jinja"}
    finally:
        await lane.close()


def test_a_fleet_serves_a_bucket(
    fleet: Fleet, s3_server: S3Server, tiny_llama: Path, tmp_path: Path
) -> None:
    """The model comes from the bucket by the cache; an adapter that is uploaded later answers the
    items that waited for it, and its queue is left when it is removed: those that come then wait
    for a worker that has it."""
    bucket = Bucket(s3_server)
    bucket.put("tiny-llama", tiny_llama)
    bucket.put("loras/other", make_adapter(tmp_path / "other", rank=64))
    fleet.control()
    worker = gpu_worker(
        fleet,
        f"s3://{bucket.name}/tiny-llama",
        in_process=False,
        s3_endpoint_url=s3_server.url,
        engine={"load_format": "auto"},
        gpu__lora_from=f"s3://{bucket.name}/loras",
        gpu__lora_every_s=1,
        gpu__cache_dir=tmp_path / "cache",
    )
    plain, legal = submit(fleet, "tiny-llama"), submit(fleet, "legal")
    fleet.wait_for(plain, JobState.COMPLETED, WORK_S)
    assert len(list((tmp_path / "cache").glob("*/model.safetensors"))) == 1
    assert fleet.finished(legal) == 0
    bucket.put("loras/legal", make_adapter(tmp_path / "legal", rank=64))
    fleet.wait_for(legal, JobState.COMPLETED, WORK_S)
    assert fleet.account(legal, 20).dead == {}
    bucket.remove("loras/legal")
    until(lambda: "legal" not in announced(worker), 60, "the worker announces it no longer")
    late = submit(fleet, "legal")
    until(
        lambda: "no worker serves legal" in fleet.penstock("status", late.job_id),
        60,
        "status says what is missing",
    )
    assert fleet.finished(late) == 0
    assert worker.alive
