"""Models and adapters in a bucket, over real HTTP: listed, fetched once per machine, and never
half."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from adapter_files import CONFIG, WEIGHTS, config, weights
from servers import S3Server

from penstock_producer.sources.blobs import s3 as s3_source
from penstock_workers.errors import FilesChanged, FilesUnusable, StoreAway
from penstock_workers.lanes import model_stores
from penstock_workers.lanes.gpu.adapter_watch import AdapterWatch
from penstock_workers.lanes.gpu.engine.adapters import Adapter, Adapters
from penstock_workers.lanes.gpu.host_files import HostFiles
from penstock_workers.lanes.gpu.inspection import inspect
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.loading import LoadWatch
from penstock_workers.lanes.model_cache import FileCache, Wanted
from penstock_workers.lanes.model_stores import PART_BYTES, BucketStore, StoredFile
from penstock_workers.settings import WorkerSettings

MIB = 1024**2
FETCH = """
import logging, sys, time
from pathlib import Path
from penstock_workers.lanes import model_stores
from penstock_workers.lanes.model_cache import FileCache, Wanted
from penstock_workers.lanes.model_stores import BucketStore

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
logging.getLogger("botocore").setLevel(logging.WARNING)
model_stores.PART_BYTES, model_stores.THREADS = 1024**2, 1
store = BucketStore(sys.argv[1], sys.argv[2])
read, stop_after = store.read, int(sys.argv[4])

def counted(file, offset, length):
    global stop_after
    if not stop_after:
        print("half", flush=True)
        time.sleep(600)
    stop_after -= 1
    return read(file, offset, length)

store.read = counted
entry = FileCache(Path(sys.argv[3]), 1024**3).take(Wanted(store, store.place, tuple(store.files())))
print(entry.folder, flush=True)
"""


class Bucket:
    def __init__(self, server: S3Server) -> None:
        self.server, self.client = server, server.client()
        self.name = f"models-{uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=self.name)

    def place(self, prefix: str) -> str:
        return f"s3://{self.name}/{prefix}"

    def store(self, prefix: str) -> BucketStore:
        return BucketStore(self.place(prefix), self.server.url)

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=content)

    def adapter(self, key: str, rank: int = 8, values: int = 8) -> None:
        self.put(f"{key}/{WEIGHTS}", weights(values))
        self.put(f"{key}/{CONFIG}", config(rank))

    def remove(self, *keys: str) -> None:
        for key in keys:
            self.client.delete_object(Bucket=self.name, Key=key)


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return Bucket(s3_server)


@pytest.fixture
def fetching() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def fetch(bucket: Bucket, cache: Path, stop_after: int = 10_000) -> subprocess.Popen[str]:
    arguments = [bucket.place("m"), bucket.server.url, str(cache), str(stop_after)]
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, *arguments], stdout=subprocess.PIPE, text=True
    )


def test_objects_are_listed_below_their_prefix_and_read_in_parts(bucket: Bucket) -> None:
    """Over several pages, whatever their names; what lies beside the prefix, and marks of folders,
    are left out."""
    large = bytes(range(256)) * (PART_BYTES // 128)
    bucket.put("m/a b/ü%2F.json", b"{}")
    bucket.put("m/large", large)
    bucket.put("m/folder/", b"")
    bucket.put("model-two", b"")
    store = bucket.store("m/")
    files = {file.path: file for file in store.files()}
    assert set(files) == {"a b/ü%2F.json", "large"}
    assert store.read(files["a b/ü%2F.json"], 0, 2) == b"{}"
    assert store.read(files["large"], PART_BYTES, 300) == large[PART_BYTES : PART_BYTES + 300]


def test_a_prefix_with_too_much_in_it_is_refused(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole data lake named by mistake is not held in memory."""
    for number in range(3):
        bucket.put(f"m/{number}", b"")
    monkeypatch.setattr(model_stores, "FILES_MAX", 2)
    with pytest.raises(FilesUnusable, match="more than 2 objects"):
        bucket.store("m").files()


def test_a_bucket_that_is_not_there_or_away_says_so(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is an empty place: nothing that was found before is withdrawn for it."""
    monkeypatch.setattr(s3_source, "TRIES", 1)
    with pytest.raises(StoreAway, match="NoSuchBucket"):
        BucketStore("s3://no-such-bucket/m", bucket.server.url).files()
    with pytest.raises(StoreAway, match="check the endpoint"):
        BucketStore(bucket.place("m"), "http://127.0.0.1:9").files()
    assert bucket.store("m").files() == []


def test_an_object_that_is_replaced_meanwhile_is_not_mixed(bucket: Bucket, tmp_path: Path) -> None:
    """The bucket itself refuses parts of another version, and the cache keeps nothing of the
    first."""
    bucket.put("m/w", b"a" * MIB)
    store = bucket.store("m")
    wanted = Wanted(store, store.place, tuple(store.files()))
    bucket.put("m/w", b"b" * MIB)
    with pytest.raises(FilesChanged, match="replaced"):
        FileCache(tmp_path, 10 * MIB).take(wanted)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_download_that_is_killed_is_begun_anew(
    bucket: Bucket, tmp_path: Path, fetching: list[subprocess.Popen[str]]
) -> None:
    """SIGKILL in the middle: the next worker takes nothing of it for whole, waits for no lock, and
    has all of it."""
    bucket.put("m/w", b"a" * 4 * MIB)
    first = fetch(bucket, tmp_path, stop_after=2)
    fetching.append(first)
    assert first.stdout is not None
    assert first.stdout.readline() == "half\n"
    assert any(path.suffix == ".part" for path in tmp_path.iterdir())
    first.send_signal(signal.SIGKILL)
    first.wait()
    store = bucket.store("m")
    entry = FileCache(tmp_path, 10 * MIB).take(Wanted(store, store.place, tuple(store.files())))
    assert (entry.folder / "w").read_bytes() == b"a" * 4 * MIB
    assert not any(path.suffix == ".part" for path in tmp_path.iterdir())


def test_processes_of_one_machine_fetch_once(
    bucket: Bucket, tmp_path: Path, fetching: list[subprocess.Popen[str]]
) -> None:
    """The second waits while the first is at it, and takes over where that one is killed."""
    bucket.put("m/w", b"a" * 4 * MIB)
    first = fetch(bucket, tmp_path, stop_after=2)
    fetching.append(first)
    assert first.stdout is not None
    assert first.stdout.readline() == "half\n"
    second = fetch(bucket, tmp_path)
    fetching.append(second)
    assert second.stdout is not None
    assert second.stdout.readline().startswith("another worker of this machine brings s3://")
    first.kill()
    said, _ = second.communicate(timeout=30)
    assert (Path(said.splitlines()[-1]) / "w").stat().st_size == 4 * MIB


async def test_adapters_of_a_bucket_come_and_go(bucket: Bucket, tmp_path: Path) -> None:
    """A complete one is served at the second look, an incomplete one not, a replaced one anew; a
    removed one is withdrawn."""
    loaded: list[int] = []

    async def load(adapter: Adapter) -> bool:
        loaded.append(adapter.rank)
        return True

    adapters = Adapters({}, "llama", more=True)
    watch = AdapterWatch(
        bucket.store("loras"),
        FileCache(tmp_path, 10 * MIB),
        adapters,
        load,
        taken=(),
        every_s=30.0,
        most_bytes=MIB,
    )
    bucket.adapter("loras/legal", rank=64)
    bucket.put(f"loras/half/{WEIGHTS}", weights())
    bucket.put("loras/../up/adapter_config.json", config())
    await watch.look()
    assert adapters.announced() == ()
    await watch.look()
    assert (adapters.announced(), loaded) == (("legal",), [64])
    bucket.adapter("loras/legal", rank=16, values=9)
    await watch.look()
    await watch.look()
    assert (adapters.announced(), loaded) == (("legal",), [64, 16])
    bucket.remove(f"loras/legal/{CONFIG}", f"loras/legal/{WEIGHTS}")
    await watch.look()
    assert adapters.announced() == ()


async def test_a_model_of_a_bucket_is_fetched_into_the_cache(
    bucket: Bucket, tmp_path: Path
) -> None:
    """The engine gets a folder with its weights, configuration and tokenizer; programs beside them
    stay where they are."""
    for name in ("config.json", "tokenizer.json", "model.safetensors", "modeling.py", "model.bin"):
        bucket.put(f"llama/{name}", name.encode())
    settings = GpuSettings(
        model=bucket.place("llama"),
        cache_dir=str(tmp_path),
        engine={"load_format": "auto", "dtype": "float16"},
    )
    hosted = await HostFiles(settings, bucket.server.url).hosted(
        LoadWatch("gpu.model", settings.model or "")
    )
    assert hosted.engine == {"load_format": "auto", "dtype": "float16"}
    folder = Path(hosted.model or "")
    assert folder.parent == tmp_path
    found = {path.name: path.read_text() for path in folder.iterdir()}  # noqa: ASYNC240 - nothing else runs
    assert found == {name: name for name in ("config.json", "tokenizer.json", "model.safetensors")}


def test_the_doctor_looks_into_the_bucket(bucket: Bucket, tmp_path: Path) -> None:
    """How large the model is and where it goes, which adapters there are, and what is wrong with
    either."""
    bucket.put("llama/config.json", json.dumps({}).encode())
    bucket.put("llama/model.safetensors", b"w" * MIB)
    bucket.adapter("loras/legal")
    bucket.put(f"loras/tax/{CONFIG}", config())

    def said(**gpu: Any) -> dict[bool, str]:
        given = {"cache_dir": str(tmp_path), "engine": {"load_format": "auto"}, **gpu}
        findings = list(
            inspect(WorkerSettings.load(lane="gpu", s3_endpoint_url=bucket.server.url, gpu=given))
        )
        return {
            good: "\n".join(one.seen for one in findings if one.is_good is good)
            for good in (True, False)
        }

    fine = said(model=bucket.place("llama"), lora_from=bucket.place("loras"))
    assert f"0.0 GiB of weights in 1 files, which are fetched into {tmp_path}" in fine[True]
    assert "has 1 adapters: legal" in fine[True]
    assert "'tax' has an adapter_config.json and no adapter_model.safetensors" in fine[False]
    assert "gpu.cache_bytes allows" not in fine[False]
    odd = said(model=bucket.place("loras"), lora_from="s3://no-such-bucket/x")
    assert "there is no config.json" in odd[False]
    assert "NoSuchBucket" in odd[False]
    bucket.put("llama/model.safetensors", b"w" * (MIB + 1))
    assert "gpu.cache_bytes allows" in said(model=bucket.place("llama"), cache_bytes=MIB)[False]


def test_a_listed_file_is_what_a_bucket_lists(bucket: Bucket) -> None:
    """Its version is the ETag, which the bucket changes with the content."""
    bucket.put("m/w", b"1")
    (first,) = bucket.store("m").files()
    bucket.put("m/w", b"2")
    (second,) = bucket.store("m").files()
    assert isinstance(first, StoredFile)
    assert (first.path, first.size) == (second.path, second.size)
    assert first.version != second.version
