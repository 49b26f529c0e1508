"""The `embed` lane: an encoder hosted by the worker, for `/v1/embeddings`. Nothing here imports torch before it starts."""

from __future__ import annotations

from penstock_workers.lanes.embed.lane import EmbedLane

__all__ = ["EmbedLane"]
