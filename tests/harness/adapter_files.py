"""Files of LoRA adapters for tests, with nothing in them that an engine could use."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"


def weights(values: int = 8, tensors: Mapping[str, Any] | None = None) -> bytes:
    """A safetensors file of so many numbers, with one tensor; ``tensors`` are names and shapes of
    others in their place."""
    named = tensors or {"a.lora_A.weight": [values]}
    header = json.dumps(
        {
            name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * values]}
            for name, shape in named.items()
        }
    )
    return struct.pack("<Q", len(header)) + header.encode() + b"\0" * 4 * values


def config(rank: Any = 8, **fields: Any) -> bytes:
    return json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": ["o_proj"], **fields}
    ).encode()


def write_adapter(
    folder: Path,
    rank: Any = 8,
    *,
    age_s: float | None = 3600.0,
    values: int = 8,
    tensors: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Path:
    """As if it were copied there ``age_s`` seconds ago; None = now."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_bytes(config(rank, **fields))
    (folder / WEIGHTS).write_bytes(weights(values, tensors))
    if age_s is not None:
        then = (folder / WEIGHTS).stat().st_mtime - age_s
        for name in (CONFIG, WEIGHTS):
            os.utime(folder / name, (then, then))
    return folder
