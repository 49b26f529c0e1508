"""A trial, before a job is accepted, of whether its results can be written where they shall go.

Buckets are tried from every machine, folders and files of SQLite only where the ledger is SQLite as
well: then the control processes run on this machine. A database behind a variable that is not set
here is the control processes' alone to try. Nothing stays where it was tried: the job may still be
refused for something else.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from penstock_producer.errors import SinkError
from penstock_producer.job.sinks import into_url
from penstock_producer.job.spec import JobSpec
from penstock_producer.outputs import probe_sink
from penstock_producer.settings import ProducerSettings
from penstock_producer.source_formats import BY_VARIABLE, SQLITE, variable_in
from penstock_producer.storage import probe_parts

__all__ = ["ResultsProbe", "place_for_trial"]

GOOD_S: Final = 60.0  # what was just tried well is not tried again for every job
AT_ONCE: Final = 4  # threads: a store that hangs holds one until its own patience ends

log = logging.getLogger(__name__)


class ResultsProbe:
    """Thread-safe."""

    def __init__(self, settings: ProducerSettings, *, one_machine: bool, remote: bool) -> None:
        """``remote``: who submits hears nothing of the place that its operator chose."""
        self._settings = settings
        self._one_machine = one_machine
        self._remote = remote
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._good_until = 0.0  # monotonic: of results_url

    def check(self, spec: JobSpec) -> None:
        """Raise SinkError, which names the place, what is wrong there and what to do.

        It is SinkUnfit where only a change helps.
        """
        if not self._settings.results_probe_s:
            return
        place = self._settings.results_url
        if (
            place is not None
            and ("://" in place or self._one_machine)
            and time.monotonic() >= self._good_until
        ):
            self._try("the setting results_url", lambda: self._place(place))
            self._good_until = time.monotonic() + GOOD_S
        if spec.into is not None:
            self._try(
                f"the table {spec.into_table} of the job's option into", lambda: self._table(spec)
            )

    def _place(self, place: str) -> None:
        endpoint = self._settings.s3_endpoint_url
        probe_sink(place, s3_endpoint_url=endpoint)
        if self._settings.writes_parts:
            probe_parts(place, s3_endpoint_url=endpoint)

    def _table(self, spec: JobSpec) -> None:
        into = str(spec.into)
        if into.startswith(BY_VARIABLE) and not os.environ.get(variable_in(into) or ""):
            return
        url = into_url(into, os.environ)
        if _is_sqlite(url) and not (self._one_machine and _is_whole(url)):
            return
        from penstock_producer.tables.columns import Table
        from penstock_producer.tables.database import TableSink

        with place_for_trial(url) as tried:
            sink = TableSink(
                tried, spec.into_table or "", Table(spec.to_json()), id_column=spec.into_id
            )
            try:
                sink.try_out()
            finally:
                sink.close()

    def _try(self, what: str, work: Callable[[], None]) -> None:
        try:
            self._within(what, work)
        except SinkError as error:
            if not self._remote:
                raise type(error)(f"{what}, tried before the job is accepted: {error}") from error
            log.warning("a job from a remote door was refused: %s: %s", what, error)
            raise type(error)(
                f"{what} cannot be written from here: the log of this process says why; try again "
                "later"
            ) from None

    def _within(self, what: str, work: Callable[[], None]) -> None:
        """Do what a driver or a client may wait in, for no longer than the setting says."""
        limit_s = self._settings.results_probe_s
        if not self._room.acquire(timeout=limit_s):
            raise SinkError(
                f"{AT_ONCE} earlier tries of such places still hang; look at the store or the "
                "network"
            )
        done: Future[None] = Future()
        threading.Thread(
            target=self._run, args=(work, done), name="results-probe", daemon=True
        ).start()
        try:
            done.result(limit_s)
        except TimeoutError:
            raise SinkError(
                f"no answer within {limit_s:g} s: look at the store or the network, or raise the "
                "setting results_probe_s (PENSTOCK_RESULTS_PROBE_S; 0 tries nothing)"
            ) from None

    def _run(self, work: Callable[[], None], done: Future[Any]) -> None:
        try:
            work()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(
                error
                if isinstance(error, SinkError)
                else SinkError(f"{type(error).__name__}: {error}")
            )
        finally:
            self._room.release()


def _is_sqlite(url: str) -> bool:
    return url.startswith(tuple(f"{scheme}:" for scheme in SQLITE))


def _is_whole(url: str) -> bool:
    """Return whether a URL of SQLite means the same file in every process.

    They work in other folders.
    """
    return _file_of(url).is_absolute()


def _file_of(url: str) -> Path:
    return Path(url.partition("///")[2].partition("?")[0])


@contextmanager
def place_for_trial(url: str) -> Iterator[str]:
    """Yield the URL of a database that can be tried.

    For a file of SQLite that is not there yet it is another one in the same folder, which is
    removed again: SQLite makes the file when it is first looked at.
    """
    file = _file_of(url)
    if not _is_sqlite(url) or file.exists():
        yield url
        return
    try:
        with TemporaryDirectory(prefix=".penstock-probe-", dir=file.parent) as folder:
            yield url.replace(str(file), str(Path(folder) / file.name), 1)
    except OSError as error:
        raise SinkError(
            f"a database cannot be made in {file.parent}: {error.strerror}; create the folder, and "
            "let this process write there"
        ) from error
