"""What `penstock doctor` looks at in the settings of the `embed` lane."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_ledger.redaction import redact
from penstock_workers.errors import ModelMissing, PackageMissing
from penstock_workers.lanes.embed.models import model_folder
from penstock_workers.lanes.gpu.check import status_of
from penstock_workers.lanes.row import LaneFinding
from penstock_workers.settings import WorkerSettings


def check(settings: WorkerSettings, *, knock: bool) -> Iterator[LaneFinding]:
    """The server that has the model, or whether it is on this machine and what loads it; nothing
    where neither is set."""
    if settings.embed.upstream_url is not None and knock:
        yield _server(settings.embed.upstream_url)
    if settings.embed.model is None:
        return
    from penstock_workers.lanes.embed.encoding.encoder import check_packages

    try:
        folder = model_folder(settings.embed.model)
        check_packages()
    except (ModelMissing, PackageMissing) as error:
        yield LaneFinding(False, str(error), "this holds for the machines that its workers run on")
    else:
        yield LaneFinding(True, f"embed.model is {settings.embed.model}, in {folder}")


def _server(url: str) -> LaneFinding:
    """vLLM lists its model; text-embeddings-inference has a page about itself."""
    shown = redact(url)
    status = status_of(f"{url}/models")
    if status == 404:
        status = status_of(url.removesuffix("/v1") + "/info")
    if isinstance(status, str):
        return LaneFinding(
            False,
            f"embed.upstream_url: {shown} does not answer ({status})",
            "start it, or correct it",
        )
    if status != 200:
        fix = "give the …/v1 of vLLM or text-embeddings-inference"
        return LaneFinding(False, f"embed.upstream_url: {shown} answers {status} to GET", fix)
    return LaneFinding(True, f"embed.upstream_url: {shown} answers and names its model")
