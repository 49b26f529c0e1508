"""What a hosted engine gets from elsewhere: its model where that lies in a bucket, and adapters
that come and go."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from penstock_workers.errors import BadEngineSettings
from penstock_workers.lanes.engine_life.loading import LoadWatch
from penstock_workers.lanes.gpu.adapter_watch import AdapterWatch
from penstock_workers.lanes.gpu.bucket_model import SAFE_WEIGHTS, choose
from penstock_workers.lanes.gpu.engine.adapters import Adapter, Adapters
from penstock_workers.lanes.gpu.engine.upstream import upstream
from penstock_workers.lanes.gpu.settings import BUCKET, GpuSettings
from penstock_workers.lanes.model_files.cache import Entry, FileCache, Wanted
from penstock_workers.lanes.model_files.in_thread import in_thread
from penstock_workers.lanes.model_files.stores import open_store

log = logging.getLogger(__name__)

STREAMER: Final = "runai_streamer"  # vLLM's `load_format`
STREAMER_PACKAGE: Final = "runai_model_streamer"
# Its names for `s3_endpoint_url`: of what reads, and of what lists.
STREAMER_ENDPOINTS: Final = ("RUNAI_STREAMER_S3_ENDPOINT", "AWS_ENDPOINT_URL")
STREAMER_ADDRESSING: Final = (
    "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"  # buckets as names of hosts: Amazon's own way
)


class HostFiles:
    """Of one worker. What it took from the cache stays there as long as the worker lives."""

    def __init__(self, settings: GpuSettings, endpoint_url: str | None) -> None:
        self._settings, self._endpoint_url = settings, endpoint_url
        self._cache = FileCache(settings.cache_folder, settings.cache_bytes)
        self._entry: Entry | None = None

    async def hosted(self, loading: LoadWatch) -> GpuSettings:
        """The settings with the model as the engine finds it on this machine.

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
        """vLLM's arguments for weights that go from the bucket to the card; its streamer has an
        environment of its own."""
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
    """Unless another `load_format` is asked for, where the streamer is here.

    Raises BadEngineSettings where it is asked for."""
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
    """Older vLLM has none for weights that lie apart from their configuration."""
    return {field.name for field in dataclasses.fields(upstream("vllm", "AsyncEngineArgs"))}
