"""What `penstock doctor` looks at in the settings of the `gpu` lane."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from penstock_ledger.redaction import redact
from penstock_workers.lanes.gpu.settings import BUCKET, GpuSettings
from penstock_workers.lanes.row import LaneFinding
from penstock_workers.settings import WorkerSettings

ASK_TIMEOUT_S = 5.0


def check(settings: WorkerSettings, *, knock: bool) -> Iterator[LaneFinding]:
    """The server that has the model, or the model, its adapters and vLLM on this machine; nothing
    where neither is set."""
    gpu = settings.gpu
    if gpu.upstream_url is not None:
        if knock:
            yield _server(gpu.upstream_url)
    elif gpu.model is not None:
        yield _vllm()
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
    """Of GET; why there is none, in words."""
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


def _vllm() -> LaneFinding:
    try:
        return LaneFinding(True, f"vLLM {version('vllm')} is installed")
    except PackageNotFoundError:
        return LaneFinding(
            False,
            "gpu.model is set, and vLLM is not installed here",
            "where its workers run: pip install 'penstock[gpu]'",
        )


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
