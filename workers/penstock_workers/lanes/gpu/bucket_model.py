"""Which files of a model in a bucket are wanted.

No programs: neither code beside the weights, nor weights that may hold it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from penstock_workers.errors import BadEngineSettings
from penstock_workers.lanes.model_files.stores import StoredFile

CONFIG: Final = "config.json"
SAFE_WEIGHTS: Final = ".safetensors"
PICKLES: Final = (".bin", ".pt", ".pth")
BESIDES: Final = (
    ".json",
    ".model",
    ".txt",
    ".jinja",
    ".tiktoken",
)  # configuration, tokenizer, chat template
DEPTH_MAX: Final = 2  # as `1_Pooling/config.json`
SEGMENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,254}", re.ASCII)
TWICE: Final = "consolidated"  # the same weights once more, for the makers' own programs


class ModelFiles(NamedTuple):
    """Of one model."""

    weights: tuple[StoredFile, ...]
    besides: tuple[StoredFile, ...]


def choose(place: str, listed: Sequence[StoredFile], *, pickles: bool) -> ModelFiles:
    """Raises BadEngineSettings for what is no model, or none that is read."""
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
