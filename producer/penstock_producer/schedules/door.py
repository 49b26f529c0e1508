"""Adding schedules, and looking at them: `Producer.schedules`."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from penstock_ledger import CatchUp, Firing, NewSchedule, Schedule, ScheduleStore
from penstock_producer.errors import ScheduleError, SourceError, seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.schedules.marks import NEW_FILES, SOURCE
from penstock_producer.schedules.timetable import Timetable
from penstock_producer.source_names import is_database
from penstock_producer.sources.databases.address import whole
from penstock_producer.sources.listings.chosen import folder_and_pattern
from penstock_producer.sources.new_files import refuse_texts

__all__ = ["Schedules"]

_NAME: Final = re.compile(r"(?!job_)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ID_BYTES: Final = 10
FIRINGS_SHOWN: Final = 5


class Schedules:
    """``accepted`` checks a spec as a submit does."""

    def __init__(self, store: ScheduleStore, accepted: Callable[[JobSpec | Mapping[str, Any]], JobSpec]) -> None:
        self._store = store
        self._accepted = accepted

    def add(
        self,
        name: str,
        cron: str,
        source: str | Path,
        spec: JobSpec | Mapping[str, Any],
        *,
        timezone: str = "UTC",
        catch_up: CatchUp | str = CatchUp.ONCE,
        overlap: bool = False,
        new_files: bool = False,
    ) -> Schedule:
        """Submit ``source`` with ``spec`` at the times of ``cron``, from now on. The source need not be there yet.

        With ``new_files`` it is a folder, a prefix or a pattern, and each job has those of its files that no earlier job of
        this schedule has.
        Raises ScheduleError, SpecError, ScheduleExists and TooManySchedules.
        """
        if _NAME.fullmatch(name) is None:
            raise ScheduleError(
                f"the name {seen(name)} is refused: write up to 64 letters, digits, dots, dashes and underlines, not "
                "beginning with job_"
            )
        timetable = Timetable(cron, timezone)
        accepted, whole_source = self._accepted(spec), _whole(source)
        if new_files:
            _check_watched(whole_source, accepted)
        new = NewSchedule(
            schedule_id=f"sched_{secrets.token_hex(_ID_BYTES)}",
            name=name,
            cron=timetable.cron,
            timezone=timezone,
            spec=accepted.to_json(),
            source={NEW_FILES if new_files else SOURCE: whole_source},
            catch_up=_policy(catch_up),
            overlap=overlap,
            next_at=timetable.after(self._store.now()),
        )
        return self._store.add(new)

    def get(self, name: str) -> Schedule:
        """Raises ScheduleNotFound."""
        return self._store.get(name)

    def firings(self, name: str, limit: int = FIRINGS_SHOWN) -> list[Firing]:
        """What came of the latest planned times, newest first. Raises ScheduleNotFound."""
        return self._store.firings(self._store.get(name).schedule_id, limit)

    def pause(self, name: str) -> bool:
        """Start no more jobs until ``resume``; False when it is paused already. Raises ScheduleNotFound."""
        return self._store.pause(name)

    def resume(self, name: str) -> bool:
        """Go on with the next time from now: what passed meanwhile was not missed. False when it is not paused.

        Raises ScheduleNotFound.
        """
        found = self._store.get(name)
        return self._store.resume(name, Timetable(found.cron, found.timezone).after(self._store.now()))

    def remove(self, name: str) -> None:
        """Its jobs stay. Raises ScheduleNotFound."""
        self._store.remove(name)

    def list(self) -> list[Schedule]:
        """By name."""
        return self._store.list()


def _whole(source: str | Path) -> str:
    """A path that means the same in every process: they work in other folders."""
    text = str(source)
    if is_database(text):
        return whole(text)
    if "://" in text:
        return text
    path = str(Path(text).absolute())
    plain = os.path.normpath(path)
    if os.path.realpath(plain) == os.path.realpath(path):  # else a `..` comes after a link, which leads elsewhere
        path = plain
    return f"{path}/" if text.endswith("/") and path != "/" else path  # the slash says that it is a folder


def _check_watched(source: str, spec: JobSpec) -> None:
    if is_database(source) or folder_and_pattern(source) is None:
        raise ScheduleError(
            f"{seen(source)} is no folder that new files can come to; end it with a / or write a pattern such as in/*.jsonl"
        )
    try:
        refuse_texts(source, spec.format)
    except SourceError as error:
        raise ScheduleError(str(error)) from None


def _policy(given: CatchUp | str) -> CatchUp:
    try:
        return CatchUp(given)
    except ValueError:
        raise ScheduleError(f"the catch-up policy {seen(given)} is not one: write {', '.join(CatchUp)}") from None
