"""Gets a hosted engine what it needs from elsewhere.

That is its model where it lies in a bucket, and adapters that come and go. No programs: neither
code beside the weights, nor weights that may hold it.

Also what `penstock doctor --lane gpu` sees of these places.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import logging
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from penstock_workers.errors import BadEngineSettings, FilesUnusable
from penstock_workers.lanes.gpu.adapter_watch import AdapterWatch, by_name
from penstock_workers.lanes.gpu.engine.adapters import Adapter, Adapters
from penstock_workers.lanes.gpu.engine.engines import upstream
from penstock_workers.lanes.gpu.settings import BUCKET, GIB, GpuSettings
from penstock_workers.lanes.loading import LoadWatch
from penstock_workers.lanes.model_cache import Entry, FileCache, Wanted
from penstock_workers.lanes.model_stores import StoredFile, in_thread, open_store
from penstock_workers.lanes.row import LaneFinding

CONFIG: Final = "config.json"
SAFE_WEIGHTS: Final = ".safetensors"
PICKLES: Final = (".bin", ".pt", ".pth")
# configuration, tokenizer, chat template
BESIDES: Final = (".json", ".model", ".txt", ".jinja", ".tiktoken")
DEPTH_MAX: Final = 2  # as `1_Pooling/config.json`
SEGMENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,254}", re.ASCII)
BESIDE_MAX: Final = 1000  # names among which the nearest of a misspelt folder is looked for
TWICE: Final = "consolidated"  # the same weights once more, for the makers' own programs


def check_model_place(model: str) -> None:
    """Refuse a whole path at which nothing is, with the nearest name beside it.

    What is no path is left for vLLM to resolve. Raises BadEngineSettings."""
    place = Path(model)
    if not place.is_absolute() or place.exists():
        return
    beside: list[str] = []
    with contextlib.suppress(OSError):  # no folder, or none that may be read
        beside = [one.name for one in islice(place.parent.iterdir(), BESIDE_MAX)]
    close = difflib.get_close_matches(place.name, beside, n=1)
    fix = f"did you mean {str(place.parent / close[0])!r}?" if close else "mount it, or correct it"
    raise BadEngineSettings(
        f"gpu.model = {model!r}: there is no such folder on this machine; {fix}"
    )


class ModelFiles(NamedTuple):
    """The files of one model."""

    weights: tuple[StoredFile, ...]
    besides: tuple[StoredFile, ...]


def choose(place: str, listed: Sequence[StoredFile], *, pickles: bool) -> ModelFiles:
    """Choose which files of a model are wanted.

    Raises BadEngineSettings for what is no model, or none that is read."""
    files = [file for file in listed if _is_safe(file.path)]
    if not any(file.path == CONFIG for file in files):
        raise BadEngineSettings(
            f"gpu.model = {place!r}: there is no {CONFIG}; give the prefix of a model's own files, "
            "with all of them"
        )
    besides = tuple(file for file in files if file.path.endswith(BESIDES))
    weights = _without_twins([file for file in files if file.path.endswith(SAFE_WEIGHTS)])
    if weights:
        return ModelFiles(tuple(weights), besides)
    unsafe = tuple(file for file in files if file.path.endswith(PICKLES))
    if not unsafe:
        raise BadEngineSettings(
            f"gpu.model = {place!r} has no weights (*{SAFE_WEIGHTS}); copy the model again"
        )
    if not pickles:
        raise BadEngineSettings(
            f"gpu.model = {place!r} has its weights in {unsafe[0].path}, a format that can hold "
            "programs: convert it to safetensors, or trust who made it and set gpu.pickles = true"
        )
    return ModelFiles(unsafe, besides)


def _is_safe(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return (
        "/".join(parts) == path
        and len(parts) <= DEPTH_MAX
        and all(SEGMENT.fullmatch(part) for part in parts)
    )


def _without_twins(weights: list[StoredFile]) -> list[StoredFile]:
    return [file for file in weights if not file.path.startswith(TWICE)] or weights


log = logging.getLogger(__name__)

STREAMER: Final = "runai_streamer"  # vLLM's `load_format`
STREAMER_PACKAGE: Final = "runai_model_streamer"
# Its names for `s3_endpoint_url`: of what reads, and of what lists.
STREAMER_ENDPOINTS: Final = ("RUNAI_STREAMER_S3_ENDPOINT", "AWS_ENDPOINT_URL")
# buckets as names of hosts: Amazon's own way
STREAMER_ADDRESSING: Final = "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"


class HostFiles:
    """The files of one worker's engine.

    What it took from the cache stays there as long as the worker lives."""

    def __init__(self, settings: GpuSettings, endpoint_url: str | None) -> None:
        self._settings, self._endpoint_url = settings, endpoint_url
        self._cache = FileCache(settings.cache_folder, settings.cache_bytes)
        self._entry: Entry | None = None

    async def hosted(self, loading: LoadWatch) -> GpuSettings:
        """Return the settings with the model as the engine finds it on this machine.

        Raises BadEngineSettings, FilesUnusable."""
        settings = self._settings
        if settings.model is None or not settings.model.startswith(BUCKET):
            return settings
        if str(settings.engine.get("trust_remote_code", False)).lower() not in (
            "false",
            "0",
            "no",
            "off",
        ):
            raise BadEngineSettings(
                "gpu.engine.trust_remote_code: no code is read from a bucket; leave it out, or "
                "copy the model to a folder"
            )
        store = open_store(settings.model, self._endpoint_url)
        found = choose(store.place, await in_thread(store.files), pickles=settings.pickles)
        streams = found.weights[0].path.endswith(SAFE_WEIGHTS) and can_stream(settings)
        wanted = Wanted(
            store, store.place, found.besides if streams else (*found.besides, *found.weights)
        )
        with loading.fetching(wanted.size) as note:
            self._entry = await in_thread(partial(self._cache.take, wanted, note))
        loading.lies_in(str(self._entry.folder))
        arguments = self._streaming() if streams else {}
        return settings.model_copy(
            update={"model": str(self._entry.folder), "engine": arguments | settings.engine}
        )

    def adapter_watch(
        self, adapters: Adapters, load: Callable[[Adapter], Awaitable[bool]]
    ) -> AdapterWatch | None:
        settings = self._settings
        if settings.lora_from is None:
            return None
        own = () if settings.model is None else (settings.model, Path(settings.model).name)
        return AdapterWatch(
            open_store(settings.lora_from, self._endpoint_url),
            self._cache,
            adapters,
            load,
            taken={*own, *settings.names},
            every_s=settings.lora_every_s,
            most_bytes=settings.lora_max_bytes,
        )

    def _streaming(self) -> dict[str, Any]:
        """Return vLLM's arguments for weights that go from the bucket straight to the GPU.

        Its streamer has an environment of its own, which is set here."""
        if self._endpoint_url is not None:
            for name, value in (
                *((name, self._endpoint_url) for name in STREAMER_ENDPOINTS),
                (STREAMER_ADDRESSING, "0"),
            ):
                os.environ.setdefault(name, value)
        log.info(
            "the weights of %s are streamed into the engine, without a copy on this machine",
            self._settings.model,
        )
        return {"model_weights": self._settings.model, "load_format": STREAMER}


def can_stream(settings: GpuSettings) -> bool:
    """Return whether weights are streamed: the streamer is here, and no other format is asked for.

    Raises BadEngineSettings where the streamer is asked for in `load_format` and not here."""
    asked = str(settings.engine.get("load_format", STREAMER))
    if not asked.startswith(STREAMER):
        return False
    if find_spec(STREAMER_PACKAGE) is not None and "model_weights" in _arguments():
        return True
    if "load_format" in settings.engine:
        raise BadEngineSettings(
            f"gpu.engine.load_format = {asked!r}: the streamer is not installed here: pip install "
            "'runai-model-streamer[s3]'"
        )
    return False


def _arguments() -> set[str]:
    """Return the engine arguments that this vLLM has.

    Older vLLM has none for weights that lie apart from their configuration."""
    return {field.name for field in dataclasses.fields(upstream("vllm", "AsyncEngineArgs"))}


NAMES_SHOWN: Final = 10


def find_bucket_model(gpu: GpuSettings, endpoint_url: str | None) -> tuple[int, list[LaneFinding]]:
    """Return the bytes of a model's weights, 0 where none could be seen, and the findings."""
    try:
        store = open_store(gpu.model or "", endpoint_url)
        found = choose(store.place, store.files(), pickles=gpu.pickles)
        streams = can_stream(gpu)
    except (FilesUnusable, BadEngineSettings) as error:
        return 0, [
            LaneFinding(
                False, f"gpu.model: {error}", "see above; workers need what this machine lacks"
            )
        ]
    size = sum(file.size for file in found.weights)
    seen = (
        f"gpu.model: {store.place} has {size / GIB:,.1f} GiB of weights in {len(found.weights)} "
        "files"
    )
    if streams:
        return size, [LaneFinding(True, f"{seen}, which are streamed into the engine")]
    return size, [
        LaneFinding(True, f"{seen}, which are fetched into {gpu.cache_folder}"),
        *_room(gpu, size),
    ]


def find_adapters(gpu: GpuSettings, endpoint_url: str | None) -> Iterator[LaneFinding]:
    """Say which adapters there are in `gpu.lora_from`."""
    if gpu.lora_from is None:
        return
    try:
        whole, lacking = by_name(open_store(gpu.lora_from, endpoint_url).files())
    except FilesUnusable as error:
        yield LaneFinding(
            False, f"gpu.lora_from: {error}", "correct it; workers start without its adapters"
        )
        return
    shown = ", ".join(sorted(whole)[:NAMES_SHOWN]) + (", ..." if len(whole) > NAMES_SHOWN else "")
    yield LaneFinding(
        True,
        f"gpu.lora_from: {gpu.lora_from} has {len(whole)} adapters{': ' if whole else ''}{shown}",
    )
    for name in sorted(lacking)[:NAMES_SHOWN]:
        seen = (
            f"gpu.lora_from: {name!r:.130} has an adapter_config.json and no "
            "adapter_model.safetensors"
        )
        yield LaneFinding(False, seen, "copy its weights there as safetensors")


def _room(gpu: GpuSettings, size: int) -> Iterator[LaneFinding]:
    folder = gpu.cache_folder
    place = next(parent for parent in (folder, *folder.parents, Path("/")) if parent.is_dir())
    free = shutil.disk_usage(place).free
    if size > gpu.cache_bytes:
        seen = (
            f"gpu.cache_bytes allows {gpu.cache_bytes / GIB:,.1f} GiB, and the model has "
            f"{size / GIB:,.1f}"
        )
        yield LaneFinding(False, seen, "raise gpu.cache_bytes, or install runai-model-streamer[s3]")
    elif size > free:
        seen = (
            f"the disk of {folder} has {free / GIB:,.1f} GiB free, and the model has "
            f"{size / GIB:,.1f}"
        )
        yield LaneFinding(
            False, seen, "set gpu.cache_dir to a larger disk, or install runai-model-streamer[s3]"
        )
