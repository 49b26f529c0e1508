"""The row of the `embed` lane."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock_producer.served import Served
from penstock_workers.failpoints import Failpoints
from penstock_workers.lanes.embed.check import check
from penstock_workers.lanes.embed.inspection import TRIES, inspect
from penstock_workers.lanes.embed.settings import EmbedSettings
from penstock_workers.lanes.row import Gauge, LaneRow
from penstock_workers.metrics import catalogue
from penstock_workers.settings import WorkerSettings

if TYPE_CHECKING:
    from penstock_workers.item.admission import Admission
    from penstock_workers.lanes.embed.embed_lane import EmbedLane


def _make(settings: WorkerSettings) -> EmbedLane:
    from penstock_workers.lanes.embed.embed_lane import EmbedLane

    return EmbedLane(settings.embed, failpoints=Failpoints.parse(settings.failpoints))


def _admission(_settings: WorkerSettings, _lane: EmbedLane) -> Admission:
    """The batcher's own queue is the limit."""
    from penstock_workers.lanes.embed.admission import Unpaced

    return Unpaced()


def _serves(settings: WorkerSettings) -> Served:
    embed = settings.embed
    own = () if embed.model is None else (embed.model, Path(embed.model).name)
    return Served(tuple(dict.fromkeys((*own, *embed.names))), context=embed.max_tokens, dtype=embed.dtype)


EMBED: LaneRow[EmbedLane] = LaneRow(
    name="embed",
    make=_make,
    admission=_admission,
    suspect_children=1,  # it loads the model once more
    serves=_serves,
    settings=EmbedSettings,
    modules=("penstock_workers.lanes.embed.embed_lane",),
    gauges={
        "waiting": Gauge(catalogue.ENGINE_WAITING),
        "queue_wait_ms": Gauge(catalogue.QUEUE_WAIT, 0.001),
        "tokens_per_s": Gauge(catalogue.EMBED_RATE),
        "batch_items": Gauge(catalogue.EMBED_BATCH),
        "padding_efficiency": Gauge(catalogue.EMBED_PADDING),
        "token_budget": Gauge(catalogue.EMBED_BUDGET),
    },
    engine="sentence_transformers",
    inspect=inspect,
    tries=TRIES,
    check=check,
)
