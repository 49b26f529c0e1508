"""The step that asks for a choice now and then, and moves the job where it is another lane."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from penstock_ledger import BY_HAND, LaneMove
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import By
from penstock_producer.job.lanes import AUTO
from penstock_producer.job.spec import JobSpec
from penstock_workers.control.lanes import troubles
from penstock_workers.control.lanes.choice import Choice, choose
from penstock_workers.control.lanes.seen import TIER_BEFORE, JobNow, LaneNow, name_of
from penstock_workers.lane_changes import LaneChangeSettings

__all__ = ["Door", "Facts", "LaneChoices", "Moves"]

log = logging.getLogger(__name__)

Figures = Mapping[str, float | str | None]

AT_ONCE: Final = ("deadline", "paused")
"""Reasons that do not wait until a job was in its lane for a while."""


class Facts(Protocol):
    """The facts of a job and its lanes."""

    def note(self, live: Sequence[Job]) -> None: ...

    def of(
        self, job: Job, moves: Sequence[LaneMove], outstanding: int
    ) -> tuple[JobNow, list[LaneNow]]: ...

    def moved(self, job: Job) -> None: ...

    def older_worker(self) -> str | None: ...

    def keep_only(self, live: Collection[str]) -> None: ...


class Door(Protocol):
    """The ledger's moves."""

    def move(
        self,
        job_id: str,
        before: str | None,
        lane: str,
        reason: str,
        why: str,
        figures: Figures,
        *,
        now: float,
        paused_for: str | None = None,
        tier: str | None = None,
    ) -> LaneMove | None: ...

    def change_tier(
        self,
        job_id: str,
        lane: str,
        tier: str | None,
        reason: str,
        why: str,
        figures: Figures,
        *,
        now: float,
    ) -> LaneMove | None: ...


class Moves(Protocol):
    """Those that jobs have made."""

    def of(self, job: Job) -> Sequence[LaneMove]: ...


class LaneChoices:
    """The part of a control process that looks at jobs and moves them to better lanes.

    Belongs to the control thread. Where two processes decide at once, the ledger lets one of them
    move the job.
    """

    def __init__(
        self,
        facts: Facts,
        door: Door,
        moves: Moves,
        rules: LaneChangeSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._facts, self._door, self._moves = facts, door, moves
        self._rules, self._clock = rules, clock
        self._next: dict[str, float] = {}  # by job: when it is looked at again
        self._next_leave: dict[str, float] = {}  # by job that its lane has paused: the same
        self._next_note = 0.0
        self._is_older_told = False

    def note(self, live: Sequence[Job], specs: Callable[[Job], JobSpec]) -> None:
        """Measure what runs, before the steps of a round and while a job has a choice."""
        now = self._clock()
        if now < self._next_note or not any(_has_choice(specs(job)) for job in live):
            return
        self._next_note = now + self._rules.look_s
        self._facts.note(live)

    def look(self, job: Job, spec: JobSpec, outstanding: int) -> bool:
        """Return whether the job was moved, or is not to be worked on before its lane is chosen.

        ``job`` runs."""
        if not _has_choice(spec) or _is_over(job, spec, now := self._clock()):
            return False
        undecided = spec.lane == AUTO and not job.moves
        if not undecided and now < self._next.get(job.job_id, 0.0):
            return False
        self._next[job.job_id] = now + self._rules.look_s
        moves = self._moves.of(job)
        if moves and moves[-1].reason == BY_HAND:
            return False
        seen, lanes = self._facts.of(job, moves, outstanding)
        choice = choose(seen, lanes, now, self._rules)
        if undecided:
            self._go(job, None, choice, now)
            return True
        if self._is_too_soon(choice, moves, now):
            return False
        if choice.lane == job.lane:
            return self._change_tier(job, choice, moves, now)
        return self._go(job, job.lane, choice, now)

    def leave(self, job: Job, spec: JobSpec, outstanding: int) -> bool:
        """Move a job that its lane has paused to a better one that it permits, where it runs on.

        Return whether it was moved. Where no lane is better, the job waits for a person, and is
        looked at again: another lane may have workers later.
        """
        now = self._clock()
        if job.pause is None or job.pause.by is not By.LANE:
            return False
        if not _has_choice(spec) or _is_over(job, spec, now):
            return False
        if now < self._next_leave.get(job.job_id, 0.0):
            return False
        self._next_leave[job.job_id] = now + self._rules.look_s
        moves = self._moves.of(job)
        if moves and moves[-1].reason == BY_HAND:
            return False
        seen, lanes = self._facts.of(job, moves, outstanding)
        fault = troubles.of_pause(job.pause)
        choice = choose(
            seen,
            [
                one._replace(trouble=fault) if job.lane in (one.lane, one.queue) else one
                for one in lanes
            ],
            now,
            self._rules,
        )
        return choice.lane != job.lane and self._go(job, job.lane, choice, now)

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended. A round begins with it."""
        self._next = {job_id: at for job_id, at in self._next.items() if job_id in live}
        self._next_leave = {job_id: at for job_id, at in self._next_leave.items() if job_id in live}
        self._facts.keep_only(live)

    def _go(self, job: Job, before: str | None, choice: Choice, now: float) -> bool:
        if before is not None and self._waits_for_upgrade():
            return False
        paused_for = job.reason if job.state is JobState.PAUSED else None
        moved = self._door.move(
            job.job_id,
            before,
            choice.lane,
            choice.reason,
            choice.why,
            _figures(job, choice),
            now=now,
            paused_for=paused_for,
            tier=choice.tier,
        )
        if moved is None:
            return False  # another process was first, or the job is no more where it was
        if before is None:
            log.info("job %s goes to %s: %s", job.job_id, choice.name, choice.why)
        else:
            log.info(
                "job %s moves from lane %s to %s (%s): %s",
                job.job_id,
                before,
                choice.name,
                choice.reason,
                choice.why,
            )
        self._facts.moved(job)
        return True

    def _change_tier(self, job: Job, choice: Choice, moves: Sequence[LaneMove], now: float) -> bool:
        """Let a job be asked for in another service tier of its lane; nothing of it moves.

        Not while documents are still on their way out of the lane before."""
        if choice.tier == job.tier_now or any(
            move.before is not None and move.left_at is None for move in moves
        ):
            return False
        changed = self._door.change_tier(
            job.job_id,
            job.lane,
            choice.tier,
            choice.reason,
            choice.why,
            _figures(job, choice),
            now=now,
        )
        if changed is None:
            return False
        log.info("job %s is asked for in %s: %s", job.job_id, choice.name, choice.why)
        self._facts.moved(job)
        return False

    def _waits_for_upgrade(self) -> bool:
        """Return whether moves have to wait until workers of an older release are gone.

        These do not look at a job's lane: they would go on with what has left theirs."""
        older = self._facts.older_worker()
        if older is not None and not self._is_older_told:
            log.warning(
                "no job changes its lane by itself while workers of an older release run, such as "
                "%s: they do not look at a job's lane, and would send the same documents again",
                older,
            )
        self._is_older_told = older is not None
        return older is not None

    def _is_too_soon(self, choice: Choice, moves: Sequence[LaneMove], now: float) -> bool:
        """Return whether a job has moved so lately that it stays, so that it does not swing.

        The first choice is no move."""
        if choice.reason in AT_ONCE or not moves or moves[-1].number == 1:
            return False
        return now - moves[-1].at < self._rules.move_each_s


def _has_choice(spec: JobSpec) -> bool:
    """Return whether a job may go to several lanes, or be asked for in another service tier."""
    return len(spec.permitted_lanes) > 1 or spec.lets_choose_flex


def _figures(job: Job, choice: Choice) -> Figures:
    """Return the figures of a choice, with the service tiers that it leaves and begins."""
    before = {} if not job.moves or job.tier_now is None else {TIER_BEFORE: name_of(job)}
    return {**choice.figures, **before} | ({} if choice.tier is None else {"tier": choice.tier})


def _is_over(job: Job, spec: JobSpec, now: float) -> bool:
    """Return whether a job is past its deadline, and so about to be cancelled."""
    return spec.deadline_s is not None and now > job.created_at + spec.deadline_s
