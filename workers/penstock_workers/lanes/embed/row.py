"""The row of the `embed` lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_producer.feed.served import Served
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
    from penstock_workers.lanes.embed.server_lane import EmbedServerLane


def _make(settings: WorkerSettings) -> EmbedLane | EmbedServerLane:
    if settings.embed.upstream_url is not None:
        from penstock_workers.celery_app.ending import end_this_worker
        from penstock_workers.lanes.embed.server_lane import EmbedServerLane

        return EmbedServerLane(settings, end_this_worker)
    from penstock_workers.lanes.embed.embed_lane import EmbedLane

    return EmbedLane(settings.embed, failpoints=Failpoints.parse(settings.failpoints))


def _admission(_settings: WorkerSettings, lane: EmbedLane | EmbedServerLane) -> Admission:
    """The batcher's own queue is the limit; a server upstream has to be there."""
    from penstock_workers.lanes.embed.admission import Unpaced, WhileUp
    from penstock_workers.lanes.embed.server_lane import EmbedServerLane

    return WhileUp(lane.is_up, lane.up) if isinstance(lane, EmbedServerLane) else Unpaced()


def _engine_url(settings: WorkerSettings) -> str | None:
    return settings.embed.upstream_url


def _serves(settings: WorkerSettings) -> Served:
    return settings.embed.served()


def _announces(lane: EmbedLane | EmbedServerLane) -> Served:
    return lane.served


EMBED: LaneRow[EmbedLane | EmbedServerLane] = LaneRow(
    name="embed",
    make=_make,
    admission=_admission,
    suspect_children=1,  # it loads the model once more
    serves=_serves,
    announces=_announces,
    settings=EmbedSettings,
    modules=("penstock_workers.lanes.embed.embed_lane", "penstock_workers.lanes.embed.server_lane"),
    gauges={
        "load_bytes": Gauge(catalogue.LOAD_READ),
        "load_total_bytes": Gauge(catalogue.LOAD_TOTAL),
        "deaths": Gauge(catalogue.ENGINE_DEATHS),
        "running": Gauge(catalogue.ENGINE_RUNNING),
        "waiting": Gauge(catalogue.ENGINE_WAITING),
        "queue_wait_ms": Gauge(catalogue.QUEUE_WAIT, 0.001),
        "tokens_per_s": Gauge(catalogue.EMBED_RATE),
        "batch_items": Gauge(catalogue.EMBED_BATCH),
        "padding_efficiency": Gauge(catalogue.EMBED_PADDING),
        "token_budget": Gauge(catalogue.EMBED_BUDGET),
    },
    engine="sentence_transformers",
    engine_url=_engine_url,
    inspect=inspect,
    tries=TRIES,
    check=check,
)
