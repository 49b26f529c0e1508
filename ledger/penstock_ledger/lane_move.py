"""A job's choice or change of lane, as the ledger holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["BY_HAND", "MOVE_REASONS", "LaneMove"]

BY_HAND: Final = "by_hand"
MOVE_REASONS: Final = (
    "chosen",
    "cheaper",
    "deadline",
    "paused",
    "no_workers",
    "no_quota",
    "stuck",
    BY_HAND,
)


class LaneMove(NamedTuple):
    """One of a job's moves, numbered from 1 on."""

    job_id: str
    number: int
    at: float  # Unix seconds
    before: str | None  # None: the first choice
    lane: str
    reason: str  # one of MOVE_REASONS
    why: str  # the sentence for people
    figures: Mapping[str, float | str | None]  # what was known when it was decided
    left_at: float | None = None  # since when the lane before holds nothing more that has to go on
