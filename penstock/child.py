"""The process that does the work of a call: `penstock run` behind a pipe.

It has a session of its own, so that Ctrl-C and the end of a cell reach this process alone, which
then stops it in an orderly way. It stops by itself once this process is gone, however that ended.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.errors import RunFailed

COMMAND: Final = ("-m", "penstock_cli.run.child")
LOG_TAIL_BYTES: Final = 2_000
_NEEDED: Final = ("celery", "kombu", "rich", "typer")  # of the extra `worker`


def _is_there(name: str) -> bool:
    """Return whether a package can be imported. Modules that are may have no spec, as kombu has."""
    return name in sys.modules or importlib.util.find_spec(name) is not None


def check_installed() -> None:
    """Raise RunFailed where what a run needs is not installed."""
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing or not sys.executable:
        raise RunFailed(
            f"running a job on this machine needs {', '.join(missing) or 'a Python program'}; "
            "install it with: pip install 'penstock[worker]'"
        )


class Child:
    """One run. A thread of its own reads what it says; everyone else looks at the fields."""

    def __init__(self, request: Mapping[str, Any], log: Path) -> None:
        """Start it. Raises RunFailed where no such process can be started."""
        check_installed()
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, *COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._stops = 0
        # written by the reading thread, under the condition that waiters wait for
        self.changed = threading.Condition()
        self.figures: Mapping[str, Any] = {}
        self.note: str | None = None
        self.said: list[str] = []
        self.job: str | None = None  # of a sample, once it is drawn
        self.report: Mapping[str, Any] | None = None  # None: it did not come to its end
        self.error: Mapping[str, str] | None = None
        self.status: int | None = None  # None: it runs
        self._request = json.dumps({**request, "caller": os.getpid()}).encode() + b"\n"
        threading.Thread(target=self._read, name="penstock run", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Ask it to stop; a second time, to do so at once."""
        self._stops += 1
        if self.status is None:
            with contextlib.suppress(OSError):
                self._process.send_signal(signal.SIGINT)

    @property
    def stopped(self) -> bool:
        """Return whether it was asked to stop before it came to its end."""
        return self._stops > 0 and self.report is None

    def wait(self, timeout_s: float) -> bool:
        """Wait until something has changed or the time is over; return whether it has ended."""
        with self.changed:
            if self.status is None:
                self.changed.wait(timeout_s)
            return self.status is not None

    def failure(self) -> str:
        """Return what to say about an end that it said nothing about itself."""
        tail = ""
        with contextlib.suppress(OSError):
            tail = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        status = self.status or 0
        how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
        log = f" Its log, {self._log}, ends with:\n{tail}" if tail else ""
        return (
            f"the process of the run ended {how}. What is finished is kept, and the same call goes "
            f"on.{log}"
        )

    def _read(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            # here, since a request may be larger than a pipe
            self._process.stdin.write(self._request)
            self._process.stdin.flush()
        for line in self._process.stdout:
            with self.changed:
                self._take(json.loads(line))
                self.changed.notify_all()
        status = self._process.wait()
        self._process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with self.changed:
            self.status = status
            self.changed.notify_all()

    def _take(self, event: Mapping[str, Any]) -> None:
        match event:
            case {"figures": figures}:
                self.figures = figures
            case {"note": note}:
                self.note = note
            case {"job": key}:
                self.job = key
            case {"say": line}:
                self.said.append(line)
            case {"concluded": ended}:
                self.report = ended["report"]
                self.said += ended["said"]
            case {"error": error}:
                self.error = error
