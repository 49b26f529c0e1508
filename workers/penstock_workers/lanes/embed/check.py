"""What `penstock doctor` looks at in the settings of the `embed` lane."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_workers.errors import ModelMissing, PackageMissing
from penstock_workers.lanes.embed.models import model_folder
from penstock_workers.lanes.row import LaneFinding
from penstock_workers.settings import WorkerSettings


def check(settings: WorkerSettings, *, knock: bool) -> Iterator[LaneFinding]:
    """Whether the model is on this machine, and what loads it; nothing where no model is set. No server is asked."""
    if settings.embed.model is None:
        return
    from penstock_workers.lanes.embed.encoder import check_packages

    try:
        folder = model_folder(settings.embed.model)
        check_packages()
    except (ModelMissing, PackageMissing) as error:
        yield LaneFinding(False, str(error), "this holds for the machines that its workers run on")
    else:
        yield LaneFinding(True, f"embed.model is {settings.embed.model}, in {folder}")
