"""`penstock doctor --lane gpu`: what a worker that hosts vLLM needs of this machine.

What `penstock doctor` looks at in the settings of the `gpu` lane.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from penstock_ledger.redaction import redact
from penstock_workers.errors import WorkerError
from penstock_workers.lanes import machine
from penstock_workers.lanes.gpu.settings import BUCKET, GpuSettings
from penstock_workers.lanes.row import LaneFinding
from penstock_workers.settings import WorkerSettings

ASK_TIMEOUT_S = 5.0


def check(settings: WorkerSettings, *, knock: bool) -> Iterator[LaneFinding]:
    """Check the server that has the model, or the model, its adapters and vLLM on this machine.

    Yields nothing where neither is set."""
    gpu = settings.gpu
    if gpu.upstream_url is not None:
        if knock:
            yield _server(gpu.upstream_url)
    elif gpu.model is not None:
        yield from _version()
        yield from _folders(gpu)


def _server(url: str) -> LaneFinding:
    shown = redact(url)
    status = status_of(f"{url}/models")
    if isinstance(status, str):
        return LaneFinding(
            False,
            f"gpu.upstream_url: {shown} does not answer ({status})",
            "start vLLM, or correct it",
        )
    if status != 200:
        return LaneFinding(
            False, f"gpu.upstream_url: {shown}/models answers {status}", "give a vLLM server's …/v1"
        )
    return LaneFinding(True, f"gpu.upstream_url: {shown} answers and lists its models")


def status_of(url: str) -> int | str:
    """Return the status of a GET, or in words why there is none."""
    parts = urlsplit(url)
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = make(parts.hostname or "", parts.port, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()


def _folders(gpu: GpuSettings) -> Iterator[LaneFinding]:
    model = gpu.model or ""
    if Path(model).is_absolute() and not Path(model).is_dir():
        yield LaneFinding(
            False, f"gpu.model: there is no folder {model} here", "mount it, or correct gpu.model"
        )
    else:
        yield LaneFinding(True, f"gpu.model is {model}")
    if gpu.media_folder is not None and not Path(gpu.media_folder).is_dir():
        yield LaneFinding(
            False,
            f"gpu.media_folder: there is no folder {gpu.media_folder} here",
            "mount it, or correct it",
        )
    for name, folder in gpu.lora.items():
        if not Path(folder).is_dir():
            yield LaneFinding(
                False,
                f"gpu.lora.{name}: there is no folder {folder} here",
                "mount it, or correct it",
            )
    place = gpu.lora_from
    if place is not None and not place.startswith(BUCKET) and not Path(place).is_dir():
        yield LaneFinding(
            False, f"gpu.lora_from: there is no folder {place} here", "mount it, or correct it"
        )


ENGINE: Final = "vllm"
OLDEST: Final = (0, 26)
NEWEST: Final = (0, 33)
"""The versions of vLLM that the lane is for; it is tested with one of them."""
# of each card: vLLM takes this or a little more where `gpu_memory_utilization` is not given
MEMORY_SHARE: Final = 0.9
TRIES: Final = (
    ("/v1/completions", b'{"prompt":"doctor","max_tokens":1}'),
    ("/v1/embeddings", b'{"input":"doctor"}'),
    ("/classify", b'{"input":"doctor"}'),
)


def inspect(settings: WorkerSettings) -> Iterator[LaneFinding]:
    """Inspect what a start needs, in its order."""
    gpu = settings.gpu
    if gpu.upstream_url is not None:
        yield from check(settings, knock=True)
        seen = (
            "the server beside the worker has the model: its cards, files and memory cannot be "
            "seen from here"
        )
        yield LaneFinding(True, seen)
    elif gpu.model is None:
        fix = "set gpu.model, or gpu.upstream_url for a server beside the worker"
        yield LaneFinding(False, "no model is configured, so none was looked at", fix)
    else:
        yield from _version()
        yield from _hosted(gpu, settings.s3_endpoint_url)


def _hosted(gpu: GpuSettings, endpoint_url: str | None) -> Iterator[LaneFinding]:
    # Not above: workers that host nothing read this module too.
    from penstock_workers.lanes.gpu.host_files import find_adapters, find_bucket_model

    found, cards_used = machine.cards(), gpu.cards_per_replica
    yield from machine.find_gpus(found)
    yield from machine.find_shared_memory(processes=gpu.cards_per_replica * gpu.data_parallel)
    model = gpu.model or ""
    folder = Path(model)
    if model.startswith(BUCKET):
        size, findings = find_bucket_model(gpu, endpoint_url)
        yield from findings
        yield from machine.find_room(size, found, cards_used=cards_used)
    elif folder.is_dir():
        yield from machine.find_model("gpu.model", folder)
        size, share = (
            machine.weight_bytes(folder),
            _memory_share(gpu.engine.get("gpu_memory_utilization")),
        )
        yield from machine.find_room(
            size, found, cards_used=cards_used, replicas=gpu.data_parallel, share=share
        )
    elif folder.is_absolute():
        yield LaneFinding(
            False, f"gpu.model: there is no folder {folder} here", "mount it, or correct gpu.model"
        )
    else:
        seen = (
            f"gpu.model is {gpu.model}, no folder: vLLM resolves it when it starts, so its files "
            "could not be seen"
        )
        yield LaneFinding(True, seen)
    if gpu.media_folder is not None and not Path(gpu.media_folder).is_dir():
        yield LaneFinding(
            False,
            f"gpu.media_folder: there is no folder {gpu.media_folder} here",
            "mount it, or correct it",
        )
    yield from _parsers(gpu)
    for name, adapter in gpu.lora.items():
        yield _adapter(name, Path(adapter), _rank(gpu.engine.get("max_lora_rank")))
    yield from find_adapters(gpu, endpoint_url)


def _parsers(gpu: GpuSettings) -> Iterator[LaneFinding]:
    """Check the names of the parsers by the vLLM that is installed."""
    given = [name for name in (gpu.reasoning_parser, gpu.tool_parser) if name is not None]
    if not given:
        return
    from penstock_workers.lanes.gpu.children.parsers import check_parsers

    try:
        check_parsers(gpu)
    except WorkerError as error:
        yield LaneFinding(
            False, str(error), "correct it, or use a server beside the worker (gpu.upstream_url)"
        )
    else:
        yield LaneFinding(True, f"vLLM has the parsers {', '.join(given)}")


def _version() -> Iterator[LaneFinding]:
    installed = machine.installed(ENGINE)
    if installed is None:
        yield LaneFinding(
            False,
            "vLLM is not installed here",
            "where its workers run: pip install 'penstock[gpu]', or use the image penstock-gpu",
        )
        return
    version = installed.rpartition(" ")[2]
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    wanted = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
    if OLDEST <= parts <= NEWEST:
        yield LaneFinding(True, f"{installed} is installed; the lane works with {wanted}")
    else:
        yield LaneFinding(
            False,
            f"{installed} is installed, and the lane works with {wanted}",
            "install one of these",
        )


def _adapter(name: str, folder: Path, most: int) -> LaneFinding:
    """Check an adapter.

    ``most`` is the rank that the settings allow, 0 if the worker follows it."""
    setting = f"gpu.lora.{name}"
    if not folder.is_dir():
        return LaneFinding(
            False, f"{setting}: there is no folder {folder} here", "mount it, or correct it"
        )
    read = machine.read_json(folder / "adapter_config.json")
    if read is None:
        return LaneFinding(
            False,
            f"{setting}: {folder} has no adapter_config.json that can be read",
            "copy it again",
        )
    if not machine.weight_bytes(folder):
        return LaneFinding(False, f"{setting}: {folder} has no weights", "copy the adapter again")
    rank = read.get("r")
    if not isinstance(rank, int):
        return LaneFinding(
            False, f"{setting}: its adapter_config.json names no rank `r`", "copy the adapter again"
        )
    if most and rank > most:
        fix = (
            f"set gpu.engine.max_lora_rank = {rank}, or leave it out: it follows from the adapters"
        )
        return LaneFinding(False, f"{setting} has rank {rank}, above max_lora_rank = {most}", fix)
    return LaneFinding(True, f"{setting} has rank {rank}, in {folder}")


def _memory_share(value: Any) -> float:
    """Read a share of memory as it was written.

    It is vLLM's own where none is given, or nothing that vLLM takes."""
    try:
        share = float(value)
    except (TypeError, ValueError):
        return MEMORY_SHARE
    return share if 0 < share <= 1 else MEMORY_SHARE


def _rank(value: Any) -> int:
    """Read a rank as it was written; 0 for what is not a number, which vLLM refuses."""
    text = str(value)
    return int(text) if text.isdecimal() and 0 < len(text) < 10 else 0
