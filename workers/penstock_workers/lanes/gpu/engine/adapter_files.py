"""What the files of a LoRA adapter say of it, read before an engine has it: its rank, and whether its weights are whole."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
CONFIG_BYTES_MAX: Final = 1024**2
HEADER_BYTES_MAX: Final = 100_000_000  # the format's own limit


class UnusableAdapter(Exception):
    """Why, in words for an operator."""


class AdapterFacts(NamedTuple):
    """Of one adapter."""

    rank: int  # the highest of its layers
    base: str | None  # the model that it was made for, as its makers call it


def read_adapter(folder: Path) -> AdapterFacts:
    """Raises UnusableAdapter. Weights of another format are left for vLLM to judge."""
    facts = _read_config(folder / CONFIG)
    weights = folder / WEIGHTS
    if weights.exists():
        _check_weights(weights)
    return facts


def _read_config(file: Path) -> AdapterFacts:
    try:
        if file.stat().st_size > CONFIG_BYTES_MAX:
            raise UnusableAdapter(f"{file} has more than {CONFIG_BYTES_MAX:,} bytes: it is no adapter's")
        config = json.loads(file.read_bytes())
    except OSError as error:
        why = f"{file} cannot be read ({error.strerror}); give the folder that holds it"
        raise UnusableAdapter(why) from error
    except (ValueError, RecursionError) as error:
        raise UnusableAdapter(f"{file} is not JSON: {error}") from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise UnusableAdapter(f"{file}: peft_type is {kind!r:.40}; only LORA adapters are served")
    base = config.get("base_model_name_or_path")
    return AdapterFacts(_rank(file, config), base if isinstance(base, str) else None)


def _rank(file: Path, config: Mapping[str, Any]) -> int:
    others = config.get("rank_pattern") or {}
    if not isinstance(others, dict):
        raise UnusableAdapter(f"{file}: rank_pattern is {others!r:.40}; it is an object of layers and ranks")
    ranks = [config.get("r"), *others.values()]
    if not all(type(rank) is int and rank > 0 for rank in ranks):
        raise UnusableAdapter(f"{file}: r is {config.get('r')!r:.40}; a rank is a positive integer")
    return max(ranks)


def _check_weights(file: Path) -> None:
    """The header of a safetensors file says how long the file is: one that was cut has fewer bytes."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(length)) if length <= min(size, HEADER_BYTES_MAX) else None
    except OSError as error:
        raise UnusableAdapter(f"{file} cannot be read ({error.strerror})") from error
    except (struct.error, ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise UnusableAdapter(f"{file} is no safetensors file, or only the beginning of one; copy it again")
    end = 8 + length + max((_end(tensor) for tensor in header.values()), default=0)
    if end != size:
        raise UnusableAdapter(f"{file} has {size:,} bytes, and its header speaks of {end:,}; copy it again")


def _end(tensor: Any) -> int:
    """Where the bytes of a tensor end; 0 for what is none, as the notes of the file's makers."""
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    is_pair = isinstance(offsets, list) and len(offsets) == 2 and type(offsets[1]) is int
    return offsets[1] if is_pair else 0
