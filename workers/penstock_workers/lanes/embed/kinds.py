"""What a folder holds, by its files: a model that embeds, or one that scores and classifies."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock_workers.lanes.machine import read_json

OWN_NOTE: Final = "config_sentence_transformers.json"
CLASSIFIER: Final = "ForSequenceClassification"
"""How the names of transformers' classes for this end."""


def is_classifier(folder: Path) -> bool:
    """sentence-transformers' note of what it saved counts; else the class that transformers would
    load."""
    noted = (read_json(folder / OWN_NOTE) or {}).get("model_type")
    if isinstance(noted, str):
        return noted == "CrossEncoder"
    if (folder / "modules.json").is_file():
        return False  # its earlier releases saved nothing else in this form
    named = (read_json(folder / "config.json") or {}).get("architectures")
    return isinstance(named, list) and any(str(name).endswith(CLASSIFIER) for name in named)
