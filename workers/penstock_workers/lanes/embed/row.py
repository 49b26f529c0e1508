"""The row of the `embed` lane, its admission, and what `penstock doctor` checks for it.

The doctor looks at the lane's settings, and at what an encoder needs of this machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Final

from penstock_ledger.redaction import redact
from penstock_workers.errors import ModelMissing, PackageMissing
from penstock_workers.failpoints import Failpoints
from penstock_workers.lanes import machine
from penstock_workers.lanes.embed.settings import EmbedSettings, model_folder
from penstock_workers.lanes.gpu.inspection import status_of
from penstock_workers.lanes.row import (
    ENGINE_GAUGES,
    FreeTurn,
    Gauge,
    LaneFinding,
    LaneRow,
    Unpaced,
)
from penstock_workers.metrics import catalogue
from penstock_workers.settings import WorkerSettings

if TYPE_CHECKING:
    from penstock_workers.item.attempt import Attempt
    from penstock_workers.item.lane import Admission, Prepared, Turn
    from penstock_workers.lanes.embed.embed_lane import EmbedLane
    from penstock_workers.lanes.embed.server_lane import EmbedServerLane


def check(settings: WorkerSettings, *, knock: bool) -> Iterator[LaneFinding]:
    """Check the server that has the model, or whether the model is here and with what it is loaded.

    Yields nothing where neither is set."""
    if settings.embed.upstream_url is not None and knock:
        yield _server(settings.embed.upstream_url)
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


def _server(url: str) -> LaneFinding:
    """Ask the server for its model.

    vLLM lists it; text-embeddings-inference has a page about itself."""
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


PACKAGES: Final = ("sentence-transformers", "torch")
TRIES: Final = (("/v1/embeddings", b'{"input":"doctor"}'), ("/classify", b'{"input":"doctor"}'))


def inspect(settings: WorkerSettings) -> Iterator[LaneFinding]:
    """Inspect what a start needs, in its order; `check` says all there is of a server upstream."""
    if settings.embed.upstream_url is not None:
        return
    for name in PACKAGES:
        yield _package(name)
    wants_card = (settings.embed.device or "").startswith("cuda")
    found = machine.cards()
    if wants_card or not isinstance(found, str):
        yield from machine.find_gpus(found)
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


class WhileUp(Unpaced):
    """Lets items start while the server upstream is there.

    Until then they wait here, and no start of theirs is counted."""

    def __init__(self, is_up: Callable[[], bool], up: Callable[[], Awaitable[None]]) -> None:
        self._is_up, self._up = is_up, up

    def at_once(self, attempt: Attempt) -> Turn | None:
        return FreeTurn() if self._is_up() else None

    async def turn(self, attempt: Attempt, prepared: Prepared) -> Turn:
        await self._up()
        return FreeTurn()


def _make(settings: WorkerSettings) -> EmbedLane | EmbedServerLane:
    if settings.embed.upstream_url is not None:
        from penstock_workers.celery_app.ending import end_this_worker
        from penstock_workers.lanes.embed.server_lane import EmbedServerLane

        return EmbedServerLane(settings, end_this_worker)
    from penstock_workers.lanes.embed.embed_lane import EmbedLane

    return EmbedLane(settings.embed, failpoints=Failpoints.parse(settings.failpoints))


def _admission(_settings: WorkerSettings, lane: EmbedLane | EmbedServerLane) -> Admission:
    """Return what lets items start.

    The batcher's own queue is the limit; a server upstream has to be there."""
    from penstock_workers.lanes.embed.server_lane import EmbedServerLane

    return WhileUp(lane.is_up, lane.up) if isinstance(lane, EmbedServerLane) else Unpaced()


EMBED: LaneRow[EmbedLane | EmbedServerLane] = LaneRow(
    name="embed",
    make=_make,
    admission=_admission,
    suspect_children=1,  # it loads the model once more
    serves=lambda settings: settings.embed.served(),
    announces=lambda lane: lane.served,
    settings=EmbedSettings,
    modules=("penstock_workers.lanes.embed.embed_lane", "penstock_workers.lanes.embed.server_lane"),
    gauges={
        **ENGINE_GAUGES,
        "tokens_per_s": Gauge(catalogue.EMBED_RATE),
        "batch_items": Gauge(catalogue.EMBED_BATCH),
        "padding_efficiency": Gauge(catalogue.EMBED_PADDING),
        "token_budget": Gauge(catalogue.EMBED_BUDGET),
    },
    engine="sentence_transformers",
    engine_url=lambda settings: settings.embed.upstream_url,
    inspect=inspect,
    tries=TRIES,
    check=check,
)
