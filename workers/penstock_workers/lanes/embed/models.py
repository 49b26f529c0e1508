"""Where a model is: a folder, or an installed package that carries one.

Nothing is ever downloaded."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from penstock_workers.errors import ModelMissing

# either makes a folder a model: sentence-transformers', transformers'
MODEL_FILES = ("modules.json", "config.json")
_PACKAGE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def find_model(name: str) -> Path | None:
    """Return the folder of the model that ``name`` names; None when it names none.

    Imports nothing."""
    folder = Path(name).expanduser()
    if _is_model(folder):
        return folder.resolve()
    for root in _package_folders(name):
        for place in (root, *sorted(path for path in root.iterdir() if path.is_dir())):
            if _is_model(place):
                return place
    return None


def model_folder(name: str | None) -> Path:
    """Return the folder of the model that the settings name.

    Raises ModelMissing, which says what to give."""
    folder = None if name is None else find_model(name)
    if folder is None:
        raise ModelMissing("embed.model", name)
    return folder


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MODEL_FILES)


def _package_folders(name: str) -> list[Path]:
    if _PACKAGE_NAME.fullmatch(name) is None:
        return []
    spec = importlib.util.find_spec(re.sub(r"[-.]", "_", name))
    return (
        [Path(place) for place in (spec.submodule_search_locations or [])]
        if spec is not None
        else []
    )
