"""Adding schedules, and looking at them: `Producer.schedules`."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from penstock_ledger import (
    CatchUp,
    Firing,
    NewSchedule,
    NoticedStore,
    Schedule,
    ScheduleNotFound,
    ScheduleStore,
)
from penstock_ledger.texts import SetOption, Text
from penstock_producer.accepting.new_jobs import MAX_JOB_KEY_CHARS
from penstock_producer.errors import ScheduleError, seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import DOOR, REMOTE
from penstock_producer.schedules.drift import drift_rule
from penstock_producer.schedules.events import NoticeOutcome, Place, is_queue_url, keep
from penstock_producer.schedules.timetable import (
    EVENTS,
    NEW_FILES,
    OUTCOMES_OF,
    SOURCE,
    WEBHOOK,
    OutcomesOf,
    Timetable,
)
from penstock_producer.source_formats import is_database
from penstock_producer.sources.databases.address import whole
from penstock_producer.sources.listings.chosen import folder_and_pattern
from penstock_producer.sources.outcomes import Where

__all__ = ["Schedules"]


_NAME: Final = re.compile(r"(?!job_)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ID_BYTES: Final = 10
_TIME_CHARS: Final = len("@2026-11-23T00:00Z")  # behind the name, in the key of each job
FIRINGS_SHOWN: Final = 5


class Schedules:
    """Schedules: add, list, pause and remove them, and what they started.

    ``accepted`` checks a spec as a submit does, and ``probe`` whether its results can be written.
    """

    def __init__(
        self,
        store: ScheduleStore,
        noticed: NoticedStore,
        accepted: Callable[[JobSpec | Mapping[str, Any]], JobSpec],
        probe: Callable[[JobSpec], None],
        admit: Callable[[str], None] | None = None,
    ) -> None:
        """Open the schedules of a ledger.

        ``admit`` is given for remote clients: it refuses sources that callers may not name, now and
        when their jobs start.
        """
        self._store = store
        self._noticed = noticed
        self._accepted = accepted
        self._probe = probe
        self._admit = admit

    def add(
        self,
        name: str,
        cron: str,
        source: str | Path | OutcomesOf,
        spec: JobSpec | Mapping[str, Any],
        *,
        timezone: str = "UTC",
        catch_up: CatchUp | str = CatchUp.ONCE,
        overlap: bool = False,
        new_files: bool = False,
        events: str | None = None,
        drift: str | None = None,
        drift_field: str | None = None,
        owned_by: str = "",
    ) -> Schedule:
        """Submit ``source`` with ``spec`` at the times of ``cron``, from now on.

        The source need not be there yet.

        With ``new_files`` it is a folder, a prefix or a pattern, and each job has those of its
        files that no earlier job of this schedule has; with ``events``, the URL of a queue or
        `webhook`, those that notifications of the bucket have named, and once a day all.
        ``OutcomesOf`` in the place of a source names another job, or a schedule, whose outcomes are
        read. ``drift`` compares each run with the one before (docs/schedules.md): `report` says
        what has moved, `pause` also pauses the schedule; ``drift_field`` is a field of JSON answers
        whose values are compared, too. ``owned_by`` stands before the name in all that is kept,
        so that the names of two tenants never meet. Raises ScheduleError, SpecError,
        ScheduleExists, TooManySchedules, and SinkError where results could not be written now.
        """
        if _NAME.fullmatch(name) is None:
            raise ScheduleError(
                f"the name {seen(name)} is refused: write up to 64 letters, digits, dots, dashes "
                "and underlines, not beginning with job_"
            )
        name = owned_by + name
        if len(name) + _TIME_CHARS > MAX_JOB_KEY_CHARS:
            raise ScheduleError(
                f"the name {seen(name)} is too long for the keys of its jobs; write a shorter one"
            )
        timetable = Timetable(cron, timezone)
        accepted = self._accepted(spec)
        new = NewSchedule(
            schedule_id=f"sched_{secrets.token_hex(_ID_BYTES)}",
            name=name,
            cron=timetable.cron,
            timezone=timezone,
            spec=accepted.to_json(),
            source=self._source(name, source, accepted, new_files=new_files, events=events),
            catch_up=_policy(catch_up),
            overlap=overlap,
            next_at=timetable.after(self._store.now()),
            drift=drift_rule(drift, drift_field),
        )
        self._probe(accepted)
        return self._store.add(new)

    def notify(self, name: str, body: bytes | str) -> Mapping[NoticeOutcome, int]:
        """Keep new objects of a bucket's notification for the schedule's next job.

        ``body`` is a notification as a webhook or a queue gets it.

        Returns how many of its records came to what. `no_room` is to be sent again later,
        `unreadable` never; a body that comes twice changes nothing. Its caller must know who sent
        it. Raises ScheduleNotFound and ScheduleError.
        """
        schedule = self._store.get(name)
        if EVENTS not in schedule.source:
            raise ScheduleError(
                Text(
                    f"schedule {name} lists its files; add it with ",
                    SetOption("events", "webhook"),
                    " to take notifications",
                )
            )
        return keep(self._noticed, schedule, body)

    def _source(
        self,
        name: str,
        source: str | Path | OutcomesOf,
        spec: JobSpec,
        *,
        new_files: bool,
        events: str | None,
    ) -> dict[str, Any]:
        """Return the source as the schedule keeps it.

        Raises ScheduleError and SpecError for what no job could be made of.
        """
        if events is not None and not new_files:
            raise ScheduleError(
                Text(
                    "events name new files; give ",
                    SetOption("new_files"),
                    " and a prefix of a bucket",
                )
            )
        if self._admit is not None and (new_files or isinstance(source, OutcomesOf)):
            raise ScheduleError(
                "schedules of remote doors submit one file or object each time; name it as their "
                "source"
            )
        if isinstance(source, OutcomesOf):
            if new_files:
                raise ScheduleError(
                    "new files come to a folder or prefix; leave new_files out where outcomes are "
                    "read"
                )
            self._check_outcomes(name, source)
            return {OUTCOMES_OF: source.to_json()}
        if self._admit is not None:
            self._admit(str(source))
            return {SOURCE: str(source), DOOR: REMOTE}
        whole_source = _whole(source)
        if new_files:
            _check_watched(whole_source)
        if events is not None:
            self._check_events(whole_source, events)
            return {NEW_FILES: whole_source, EVENTS: events}
        return {NEW_FILES if new_files else SOURCE: whole_source}

    def _check_events(self, source: str, events: str) -> None:
        if Place.of(source) is None:
            raise ScheduleError(
                f"{seen(source)}: notifications are understood for s3:// only; leave events out to "
                "list it"
            )
        if events == WEBHOOK:
            return
        if not is_queue_url(events):
            raise ScheduleError(
                f"{seen(events)} is not where notifications come from; write webhook, or the URL "
                "of a queue without a password: "
                "https://sqs.eu-central-1.amazonaws.com/123456789012/incoming"
            )
        other = next(
            (one.name for one in self._store.list() if one.source.get(EVENTS) == events), None
        )
        if other is not None:
            raise ScheduleError(
                f"schedule {other} empties the queue {seen(events)}; give each schedule a queue of "
                "its own"
            )

    def _check_outcomes(self, name: str, over: OutcomesOf) -> None:
        """Check what a schedule over outcomes names. A named job need not be there yet.

        A schedule must, so that a circle of them is noticed when it is closed.
        """
        Where(over.where)
        if over.job is not None:
            if self._has(over.job):
                raise ScheduleError(
                    Text(
                        f"{seen(over.job)} is the name of a schedule: name it as one (",
                        SetOption("from_schedule", over.job),
                        ") to read its newest job each time, or give the id of the job that you "
                        "mean",
                    )
                )
            return
        behind, passed = over.schedule, set[str]()
        while behind is not None and behind not in passed:
            if behind == name:
                raise ScheduleError(
                    f"schedule {seen(name)} would read what comes of its own outcomes; name "
                    "another schedule"
                )
            if not passed:
                self._store.get(behind)
            passed.add(behind)
            behind = self._read_by(behind)

    def _read_by(self, name: str) -> str | None:
        """Return the schedule whose outcomes a schedule reads.

        None for one with a source, and for one that is gone.
        """
        if not self._has(name):
            return None
        kept = self._store.get(name).source.get(OUTCOMES_OF)
        return None if kept is None else OutcomesOf.of(kept).schedule

    def _has(self, name: str) -> bool:
        try:
            self._store.get(name)
        except ScheduleNotFound:
            return False
        return True

    def get(self, name: str) -> Schedule:
        """Return a schedule. Raises ScheduleNotFound."""
        return self._store.get(name)

    def firings(self, name: str, limit: int = FIRINGS_SHOWN) -> list[Firing]:
        """Return what came of the latest planned times, newest first. Raises ScheduleNotFound."""
        return self._store.firings(self._store.get(name).schedule_id, limit)

    def pause(self, name: str) -> bool:
        """Start no more jobs until ``resume``; False when it is paused already.

        Raises ScheduleNotFound."""
        return self._store.pause(name)

    def resume(self, name: str) -> bool:
        """Go on with the next time from now: what passed meanwhile was not missed.

        False when it is not paused.

        Raises ScheduleNotFound.
        """
        found = self._store.get(name)
        return self._store.resume(
            name, Timetable(found.cron, found.timezone).after(self._store.now())
        )

    def remove(self, name: str) -> None:
        """Remove a schedule; its jobs stay. Raises ScheduleNotFound."""
        self._store.remove(name)

    def list(self) -> list[Schedule]:
        """Return the schedules by name."""
        return self._store.list()


def _whole(source: str | Path) -> str:
    """Return a path that means the same in every process: they work in other folders."""
    text = str(source)
    if is_database(text):
        return whole(text)
    if "://" in text:
        return text
    path = str(Path(text).absolute())
    plain = os.path.normpath(path)
    # else a `..` comes after a link, which leads elsewhere
    if os.path.realpath(plain) == os.path.realpath(path):
        path = plain
    # the slash says that it is a folder
    return f"{path}/" if text.endswith("/") and path != "/" else path


def _check_watched(source: str) -> None:
    if is_database(source) or folder_and_pattern(source) is None:
        raise ScheduleError(
            f"{seen(source)} is no folder that new files can come to; end it with a / or write a "
            "pattern such as in/*.jsonl"
        )


def _policy(given: CatchUp | str) -> CatchUp:
    try:
        return CatchUp(given)
    except ValueError:
        raise ScheduleError(
            f"the catch-up policy {seen(given)} is not one: write {', '.join(CatchUp)}"
        ) from None
