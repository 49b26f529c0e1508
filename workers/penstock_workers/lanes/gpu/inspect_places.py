"""What `penstock doctor --lane gpu` sees of places that files come from: the bucket of the model,
and where adapters lie."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock_workers.errors import BadEngineSettings, FilesUnusable
from penstock_workers.lanes.gpu.adapter_watch import by_name
from penstock_workers.lanes.gpu.bucket_model import choose
from penstock_workers.lanes.gpu.host_files import can_stream
from penstock_workers.lanes.gpu.settings import GIB, GpuSettings
from penstock_workers.lanes.model_files.stores import open_store
from penstock_workers.lanes.row import LaneFinding

NAMES_SHOWN: Final = 10


def find_bucket_model(gpu: GpuSettings, endpoint_url: str | None) -> tuple[int, list[LaneFinding]]:
    """Bytes of its weights, 0 where none could be seen, and the findings."""
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
    """Which there are in `gpu.lora_from`."""
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
