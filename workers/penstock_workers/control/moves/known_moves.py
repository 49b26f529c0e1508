"""The moves of live jobs, read once per change."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock_ledger import LaneMove, LaneMoves
from penstock_ledger.model import Job


class KnownMoves:
    """Belongs to the control thread."""

    def __init__(self, moves: LaneMoves) -> None:
        self._moves = moves
        self._known: dict[str, list[LaneMove]] = {}

    def of(self, job: Job) -> Sequence[LaneMove]:
        """Return the moves of a job; nothing is read for one that has never moved."""
        if not job.moves:
            return ()
        known = self._known.get(job.job_id)
        if known is None or len(known) != job.moves:
            known = self._known[job.job_id] = self._moves.of(job.job_id)
        return known

    def note_left(self, move: LaneMove, now: float) -> None:
        """Note that nothing waits in the lane before any more."""
        self._moves.note_left(move, now)
        self._known.pop(move.job_id, None)

    def keep_only(self, live: Collection[str]) -> None:
        self._known = {job_id: moves for job_id, moves in self._known.items() if job_id in live}
