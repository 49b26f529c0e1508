"""Moves of jobs between lanes: of two processes that decide at once, one wins.

A move is one transaction: the job's lane, and the row that says why. All that follows from it is
done again and again by each process that works on the job, until nothing is left where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Connection, Row, bindparam, insert, select, update

from penstock_ledger.model import JobState
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import jobs, lane_moves
from penstock_ledger.stored_values import json_text
from penstock_ledger.stores.jobs import job_of

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
    "too_few",
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


MOVES_MAX: Final = 10_000  # of one job: one each ten minutes for two months

_OF_JOB: Final = (
    select(lane_moves).where(lane_moves.c.job_id == bindparam("job")).order_by(lane_moves.c.number)
)
_LOCKED: Final = select(jobs).where(jobs.c.job_id == bindparam("job")).with_for_update()

_RUNS: Final = {"state": str(JobState.RUNNING), "reason": None, "pause": None, "resume_at": None}


class LaneMoves:
    """Of all jobs."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def move(
        self,
        job_id: str,
        before: str | None,
        lane: str,
        reason: str,
        why: str,
        figures: Mapping[str, float | str | None],
        *,
        now: float,
        paused_for: str | None = None,
        tier: str | None = None,
    ) -> LaneMove | None:
        """Change the lane of a running job from ``before`` to ``lane``.

        It is None where another process was first, or the job does not run. ``before`` is None for
        the first choice, which notes why the job is where it is. ``tier`` is the service tier in
        which it asks there; None: as its spec says. With ``paused_for`` the job is one that is
        paused with this reason, and runs from then on."""
        if reason not in MOVE_REASONS:
            raise ValueError(f"a move's reason is one of {', '.join(MOVE_REASONS)}, not {reason!r}")

        def write(connection: Connection) -> LaneMove | None:
            row = connection.execute(_LOCKED, {"job": job_id}).one_or_none()
            if row is None or not _may_move(row, paused_for) or row.moves >= MOVES_MAX:
                return None
            if (row.moves if before is None else job_of(row).lane != before) or before == lane:
                return None
            moved = LaneMove(job_id, row.moves + 1, now, before, lane, reason, why, dict(figures))
            runs = {} if paused_for is None else _RUNS
            connection.execute(
                update(jobs)
                .where(jobs.c.job_id == job_id)
                .values(lane=lane, tier=tier, moves=moved.number, **runs)
            )
            connection.execute(insert(lane_moves).values(_values(moved)))
            return moved

        return self._db.write(write)

    def change_tier(
        self,
        job_id: str,
        lane: str,
        tier: str | None,
        reason: str,
        why: str,
        figures: Mapping[str, float | str | None],
        *,
        now: float,
    ) -> LaneMove | None:
        """Change the service tier in which a running job asks in its ``lane``.

        It is None where another process was first, or the job does not run there. No document
        leaves the lane for it, so that its row has no lane before."""

        def write(connection: Connection) -> LaneMove | None:
            row = connection.execute(_LOCKED, {"job": job_id}).one_or_none()
            if row is None or not _may_move(row, None) or row.moves >= MOVES_MAX:
                return None
            if job_of(row).lane != lane or row.tier == tier:
                return None
            moved = LaneMove(job_id, row.moves + 1, now, None, lane, reason, why, dict(figures))
            connection.execute(
                update(jobs).where(jobs.c.job_id == job_id).values(tier=tier, moves=moved.number)
            )
            connection.execute(insert(lane_moves).values(_values(moved)))
            return moved

        return self._db.write(write)

    def note_left(self, move: LaneMove, now: float) -> None:
        """Note that nothing of the job waits in the lane before any more.

        What is in flight there may still end there."""
        this = (
            lane_moves.c.job_id == move.job_id,
            lane_moves.c.number == move.number,
            lane_moves.c.left_at.is_(None),
        )
        self._db.write(
            lambda connection: connection.execute(
                update(lane_moves).where(*this).values(left_at=now)
            )
        )

    def of(self, job_id: str) -> list[LaneMove]:
        """Return the moves of a job, the first one first."""
        return self._db.read(
            lambda connection: [
                _move_of(row) for row in connection.execute(_OF_JOB, {"job": job_id})
            ]
        )


def _may_move(row: Row[Any], paused_for: str | None) -> bool:
    if paused_for is None:
        return bool(row.state == JobState.RUNNING)
    return bool(row.state == JobState.PAUSED and row.reason == paused_for)


def _values(move: LaneMove) -> dict[str, Any]:
    return {**move._asdict(), "figures": json_text(dict(move.figures))}


def _move_of(row: Row[Any]) -> LaneMove:
    return LaneMove(
        row.job_id,
        row.number,
        row.at,
        row.before,
        row.lane,
        row.reason,
        row.why,
        orjson.loads(row.figures),
        row.left_at,
    )
