"""The doctor looks at the machine for lanes that host a model.

It looks at GPUs and their driver, shared memory and files. Each sentence says what was seen here,
and what could not be: a doctor often runs on another machine than the workers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from penstock_workers.lanes.row import LaneFinding

ASK: Final = (
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,memory.free,driver_version",
    "--format=csv,noheader,nounits",
)
ASK_TIMEOUT_S: Final = 20.0
"""A driver that is being reset answers late; one that hangs would hold up the doctor for ever."""
SHM: Final = Path("/dev/shm")  # noqa: S108 - only its size is looked at
SHM_MIN_BYTES: Final = 1024**3
"""What engines that talk to one another through shared memory need beyond a container's usual 64
MiB."""
WEIGHTS: Final = ("*.safetensors", "*.bin", "*.gguf", "*.pt")
TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
INDEX: Final = "model.safetensors.index.json"
JSON_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of an index of weights: the largest models have some megabytes."""
GIB: Final = 1024**3
MIB: Final = 1024**2


def installed(package: str) -> str | None:
    """Return the name and version of an engine's package that is installed here, if any.

    A build for CPUs alone has a name of its own, and the same modules."""
    for name in (package.replace("_", "-"), f"{package}-cpu"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return None


def engine_in_words(package: str | None, server: str | None) -> str:
    """Return the engine's version, or where its server is, for a lane that hosts a model."""
    if package is None:
        return ""
    return f"{package} at {server}" if server is not None else installed(package) or package


class Gpu(NamedTuple):
    """One GPU, as its driver sees it."""

    number: str
    name: str
    total: int  # bytes
    free: int
    driver: str


def cards() -> list[Gpu] | str:
    """Return the GPUs of this machine, or why they could not be seen."""
    if shutil.which(ASK[0]) is None:
        return "no nvidia-smi is here, so neither driver nor cards could be seen"
    try:
        said = subprocess.run(ASK, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)  # noqa: S603 - it is a constant
    except subprocess.TimeoutExpired:
        return f"nvidia-smi has not answered within {ASK_TIMEOUT_S:g} s: its driver hangs"
    except OSError as error:
        return f"nvidia-smi cannot be started: {error}"
    if said.returncode != 0:
        return f"nvidia-smi fails: {(said.stderr or said.stdout).strip()[:200]}"
    return [card for line in said.stdout.splitlines() if (card := _card(line)) is not None]


def find_gpus(found: list[Gpu] | str) -> Iterator[LaneFinding]:
    """Yield one line per GPU."""
    if isinstance(found, str):
        fix = "run the doctor where the workers run; an engine that computes on a CPU needs no card"
        yield LaneFinding(False, found, fix)
    elif not found:
        yield LaneFinding(
            False,
            "nvidia-smi lists no card",
            "give this container one (--gpus all, nvidia.com/gpu: 1)",
        )
    else:
        for card in found:
            seen = (
                f"card {card.number}: {card.name}, {_gib(card.free)} of {_gib(card.total)} free, "
                f"driver {card.driver}"
            )
            yield LaneFinding(True, seen)


def find_shared_memory(*, processes: int, folder: Path = SHM) -> Iterator[LaneFinding]:
    """Check the shared memory that the engine's ``processes`` use where there are several."""
    if not folder.is_dir():
        yield LaneFinding(
            False, f"there is no {folder} here", "engines of several processes need it"
        )
        return
    usage = shutil.disk_usage(folder)
    seen = f"{folder} has {_gib(usage.free)} of {_gib(usage.total)} free"
    if processes > 1 and usage.free < SHM_MIN_BYTES:
        yield LaneFinding(
            False,
            f"{seen}, and {processes} engine processes share it",
            "docker --shm-size 8g; gpu.shmSize",
        )
    else:
        yield LaneFinding(True, seen)


def find_model(setting: str, folder: Path) -> Iterator[LaneFinding]:
    """Return whether the files of a model are all there: configuration, tokenizer, weights."""
    wrong = [name for name in ("config.json",) if not (folder / name).is_file()]
    if wrong:
        yield LaneFinding(
            False,
            f"{setting}: {folder} has no {wrong[0]}",
            "give a model's own folder, with all its files",
        )
        return
    missing = _missing_weights(folder)
    if missing:
        fix = "copy the model again: weights that its index names are not there"
        yield LaneFinding(
            False,
            f"{setting}: {folder} lacks {len(missing)} files of its weights, such as {missing[0]}",
            fix,
        )
    size = weight_bytes(folder)
    if not size:
        yield LaneFinding(
            False,
            f"{setting}: {folder} has no weights ({', '.join(WEIGHTS)})",
            "copy the model again",
        )
    elif not missing:
        yield LaneFinding(True, f"{setting}: {folder} has {_gib(size)} of weights")
    if any((folder / name).is_file() for name in TOKENIZERS):
        yield LaneFinding(True, f"{setting}: {folder} has a tokenizer")
    else:
        fix = "copy it from the model's makers, or name one where the engine has a setting for it"
        yield LaneFinding(
            False, f"{setting}: {folder} has no tokenizer ({', '.join(TOKENIZERS)})", fix
        )


def find_room(
    size: int, found: list[Gpu] | str, *, cards_used: int, replicas: int = 1, share: float = 0.0
) -> Iterator[LaneFinding]:
    """Check whether weights of ``size`` bytes fit, and whether the memory is free.

    They must fit into the ``cards_used`` GPUs of one replica, and ``share`` of each GPU must be
    free.
    """
    if isinstance(found, str) or not found or not size:
        return
    needed = cards_used * replicas
    if needed > len(found):
        seen = f"the engine is to use {needed} cards, and {len(found)} are here"
        fix = (
            "lower tensor_parallel_size, pipeline_parallel_size or data_parallel_size, or use a "
            "larger machine"
        )
        yield LaneFinding(False, seen, fix)
        return
    memory = sum(sorted((card.total for card in found), reverse=True)[:cards_used])
    if size > memory:
        seen = (
            f"{_gib(size)} of weights do not fit into {_gib(memory)} of {cards_used} "
            f"card{'s' if cards_used > 1 else ''}"
        )
        yield LaneFinding(
            False, seen, "use more cards (tensor_parallel_size), a larger one, or quantized weights"
        )
    free = sum(card.free >= share * card.total for card in found)
    if free < needed:
        seen = (
            f"an engine takes {share:.0%} of a card's memory at its start, and {free} of "
            f"{len(found)} cards have that free"
        )
        fix = (
            "see by nvidia-smi what uses them (a worker may, if one runs here), or lower "
            "gpu_memory_utilization"
        )
        yield LaneFinding(False, f"{seen}; {needed} are to be used", fix)


def weight_bytes(folder: Path) -> int:
    return max(
        (sum(file.stat().st_size for file in folder.glob(pattern)) for pattern in WEIGHTS),
        default=0,
    )


def read_json(file: Path) -> dict[str, object] | None:
    """Read a JSON object; None for a file that is not there, is enormous, or holds none."""
    try:
        if file.stat().st_size > JSON_BYTES_MAX:
            return None
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _missing_weights(folder: Path) -> list[str]:
    index = read_json(folder / INDEX) or {}
    named = index.get("weight_map")
    files = {str(name) for name in named.values()} if isinstance(named, dict) else set[str]()
    return sorted(name for name in files if not (folder / Path(name).name).is_file())


def _card(line: str) -> Gpu | None:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != len(Gpu._fields) or not (parts[2].isdecimal() and parts[3].isdecimal()):
        return None
    return Gpu(parts[0], parts[1], int(parts[2]) * MIB, int(parts[3]) * MIB, parts[4])


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f} GiB"
