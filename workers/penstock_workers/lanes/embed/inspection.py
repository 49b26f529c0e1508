"""`penstock doctor --lane embed`: what a worker that hosts an encoder needs of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Final

from penstock_workers.errors import ModelMissing, PackageMissing
from penstock_workers.lanes import machine
from penstock_workers.lanes.embed.models import model_folder
from penstock_workers.lanes.row import LaneFinding
from penstock_workers.settings import WorkerSettings

PACKAGES: Final = ("sentence-transformers", "torch")
TRIES: Final = (("/v1/embeddings", b'{"input":"doctor"}'), ("/classify", b'{"input":"doctor"}'))


def inspect(settings: WorkerSettings) -> Iterator[LaneFinding]:
    """In the order in which a start needs it; of a server upstream `check` says all there is."""
    if settings.embed.upstream_url is not None:
        return
    for name in PACKAGES:
        yield _package(name)
    wants_card = (settings.embed.device or "").startswith("cuda")
    found = machine.cards()
    if wants_card or not isinstance(found, str):
        yield from machine.find_cards(found)
    else:
        yield LaneFinding(True, f"{found}; the encoder would compute on the processor")
    try:
        folder = model_folder(settings.embed.model)
    except (ModelMissing, PackageMissing) as error:
        yield LaneFinding(False, str(error), "this holds for the machines that its workers run on")
        return
    weights = folder if (folder / "config.json").is_file() else folder / "0_Transformer"
    if weights.is_dir():
        yield from machine.find_model("embed.model", weights)
    else:
        yield LaneFinding(
            True, f"embed.model is in {folder}, in a form whose files were not looked at"
        )


def _package(name: str) -> LaneFinding:
    try:
        return LaneFinding(True, f"{name} {metadata.version(name)} is installed")
    except metadata.PackageNotFoundError:
        fix = "pip install 'penstock[embed]', or use the image penstock-embed"
        return LaneFinding(False, f"{name} is not installed here", fix)
