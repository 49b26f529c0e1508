"""A model in a bucket: which of its files are wanted, by which way they come, and what is
refused."""

from __future__ import annotations

import importlib.machinery
from pathlib import Path
from typing import Any

import pytest

from penstock_producer.errors import SettingsError
from penstock_workers.errors import BadEngineSettings
from penstock_workers.lanes.gpu import host_files
from penstock_workers.lanes.gpu.host_files import HostFiles, can_stream, choose
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.loading import LoadWatch
from penstock_workers.lanes.model_stores import StoredFile
from penstock_workers.lanes.registry import served_by
from penstock_workers.settings import WorkerSettings

PLACE = "s3://models/llama-8b"


def listed(*paths: str) -> list[StoredFile]:
    return [StoredFile(path, 1, "1", 0.0) for path in paths]


def chosen(*paths: str, pickles: bool = False) -> tuple[set[str], set[str]]:
    found = choose(PLACE, listed(*paths), pickles=pickles)
    return {file.path for file in found.weights}, {file.path for file in found.besides}


def test_weights_configuration_and_tokenizer_are_wanted_and_nothing_else() -> None:
    """No program, no picture, no copy of the weights in another form, nothing hidden, and nothing
    from far below."""
    weights, besides = chosen(
        "config.json",
        "tokenizer.json",
        "tokenizer.model",
        "chat_template.jinja",
        "merges.txt",
        "1_Pooling/config.json",
        "model-1-of-2.safetensors",
        "model-2-of-2.safetensors",
        "consolidated.safetensors",
        "model.bin",
        "modeling_llama.py",
        "logo.png",
        ".gitattributes.json",
        "a/b/c.json",
        "../up.json",
        "a//b.json",
        "x\n.json",
        "/a.json",
    )
    assert weights == {"model-1-of-2.safetensors", "model-2-of-2.safetensors"}
    assert besides == {
        "config.json",
        "tokenizer.json",
        "tokenizer.model",
        "chat_template.jinja",
        "merges.txt",
        "1_Pooling/config.json",
    }


def test_pickled_weights_are_refused_unless_they_are_trusted() -> None:
    """The error names the file and the setting; beside safetensors they are never read."""
    with pytest.raises(BadEngineSettings, match=r"weights in model.bin, .* set gpu.pickles = true"):
        chosen("config.json", "model.bin")
    assert chosen("config.json", "model.bin", pickles=True) == ({"model.bin"}, {"config.json"})
    assert chosen("config.json", "model.bin", "m.safetensors", pickles=True)[0] == {"m.safetensors"}


@pytest.mark.parametrize(
    ("paths", "why"), [((), "no config.json"), (("config.json",), "has no weights")]
)
def test_what_is_no_model_is_refused_by_name(paths: tuple[str, ...], why: str) -> None:
    """An empty prefix, and one without weights."""
    with pytest.raises(BadEngineSettings, match=f"{PLACE!r}.* {why}"):
        chosen(*paths)


def test_a_model_is_called_by_its_address_and_the_last_part_of_it() -> None:
    """As one in a folder is; a slash at its end changes nothing, and --model takes the place of the
    settings' model."""
    served = served_by(
        WorkerSettings.load(lane="gpu", gpu={"model": f"{PLACE}/", "names": ["mine"]})
    )
    assert served is not None
    assert served.names == (PLACE, "llama-8b", "mine")
    hosting = GpuSettings(model="/models/other").hosting(f"{PLACE}/")
    assert (hosting.model, hosting.names) == (PLACE, (f"{PLACE}/",))


@pytest.mark.parametrize("field", ["model", "lora_from"])
@pytest.mark.parametrize(
    "place", ["s3://", "s3:///prefix", "s3://bucket/prefix?versionId=1", "s3://bucket/prefix#x"]
)
def test_a_place_that_names_no_bucket_is_refused(field: str, place: str) -> None:
    """With the field, what was given, and what to give."""
    with pytest.raises(SettingsError, match="give s3://bucket/prefix"):
        WorkerSettings.load(lane="gpu", gpu={field: place})
    assert getattr(GpuSettings.model_validate({field: ""}), field) is None


def test_a_server_beside_the_worker_has_its_own_adapters() -> None:
    """`gpu.lora_from` would change nothing there."""
    with pytest.raises(SettingsError, match="leave out lora_from"):
        WorkerSettings.load(
            lane="gpu", gpu={"upstream_url": "http://127.0.0.1:1/v1", "lora_from": "/adapters"}
        )


def test_weights_are_streamed_where_that_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where another format is asked for; and one that asks for the streamer in vain hears what
    to install."""
    plain, asking = (
        GpuSettings(model=PLACE),
        GpuSettings(model=PLACE, engine={"load_format": "runai_streamer"}),
    )
    other = GpuSettings(model=PLACE, engine={"load_format": "safetensors"})
    monkeypatch.setattr(host_files, "find_spec", lambda _: None)
    assert not can_stream(plain)
    with pytest.raises(BadEngineSettings, match=r"pip install 'runai-model-streamer\[s3\]'"):
        can_stream(asking)
    spec = importlib.machinery.ModuleSpec("runai_model_streamer", None)
    monkeypatch.setattr(host_files, "find_spec", lambda _: spec)
    monkeypatch.setattr(host_files, "_arguments", lambda: {"model", "model_weights"})
    assert can_stream(plain)
    assert can_stream(asking)
    assert not can_stream(other)


@pytest.mark.parametrize("value", [True, "true", "yes"])
async def test_no_code_comes_from_a_bucket(tmp_path: Path, value: Any) -> None:
    """trust_remote_code and a bucket are refused together, before anything is asked of it."""
    settings = GpuSettings(
        model=PLACE, engine={"trust_remote_code": value}, cache_dir=str(tmp_path)
    )
    with pytest.raises(BadEngineSettings, match="no code is read from a bucket"):
        await HostFiles(settings, None).hosted(LoadWatch("gpu.model", settings.model or ""))


def test_the_cache_lies_where_caches_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In XDG_CACHE_HOME where that is set, else in the home folder; the setting wins."""
    monkeypatch.setenv("HOME", "/home/one")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert GpuSettings().cache_folder == Path("/home/one/.cache/penstock/models")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert GpuSettings().cache_folder == tmp_path / "penstock" / "models"
    assert GpuSettings(cache_dir="~/big").cache_folder == Path("/home/one/big")
