"""Liveness, readiness and startup probes: files that a process touches, read by `penstock-probe`.

A process with the setting ``probe_dir`` keeps three files there: ``started`` from the end of its
start-up (the model is loaded) on, ``ready`` while it takes work, and ``alive``, touched by the loop
that does the work;
and ``note`` while it waits for something that an operator may want to know. ``penstock-probe
alive`` looks at the age of ``alive``, and prints the note. No server is asked, so no server's
outage ends a worker that waits for it as it should.

A worker touches ``alive`` by rules of its own (liveness.py); any other loop does it at each turn::

    probes = ProbeFiles(settings.probe_dir)  # None: nothing is written
    probes.started()
    probes.ready()
    while …:
        probes.alive()
    probes.unready()  # first thing at the end

The program runs every few seconds beside each worker, so this imports next to nothing: argparse and
pathlib alone would double what a probe costs. It is the one module besides settings.py that reads
the environment.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["ALIVE", "READY", "STARTED", "ProbeFiles", "check", "note_of"]

ALIVE, READY, STARTED = "alive", "ready", "started"
NOTE = "note"  # what the process waits for, in words; `penstock-probe` prints it
NOTE_CHARS = 500
STATES = (ALIVE, READY, STARTED)
# of ``alive``, which is touched every few seconds: a loop that is busy for so long is stuck
MAX_AGE_S = 60.0
DIR_VARIABLE = "PENSTOCK_PROBE_DIR"
USAGE = "penstock-probe alive|ready|started [--dir D] [--max-age S]"


class ProbeFiles:
    """The probe files of one process, written by it.

    Raises OSError where the folder cannot be written.

    Each file names the process that wrote it: those of an earlier one, in a folder that outlived
    it, do not count.
    """

    def __init__(self, folder: Path | None) -> None:
        self._paths = (
            {}
            if folder is None
            else {state: os.path.join(folder, state) for state in (*STATES, NOTE)}
        )
        self._noted = ""
        self._owner = _owner(os.getpid())
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
        for state in self._paths:
            self._remove(state)

    def started(self) -> None:
        """Note that start-up is over: from now on ``alive`` is what counts."""
        self._touch(STARTED)
        self._touch(ALIVE)

    def alive(self) -> None:
        self._touch(ALIVE)

    def ready(self) -> None:
        self._touch(READY)

    def unready(self) -> None:
        self._remove(READY)

    def note(self, words: str | None) -> None:
        """Write what the process waits for; None removes the note."""
        words = (words or "")[:NOTE_CHARS]
        if not self._paths or words == self._noted:
            return
        self._noted = words
        if words:
            self._write(self._paths[NOTE], words)
        else:
            self._remove(NOTE)

    def _touch(self, state: str) -> None:
        """Ignore a disk that is full or gone: the file's age shows it."""
        if not self._paths:
            return
        try:
            os.utime(self._paths[state])
        except OSError:
            self._write(self._paths[state])

    def _write(self, path: str, words: str = "") -> None:
        try:
            with open(path, "w", encoding="utf-8", errors="replace") as file:
                file.write(f"{self._owner}\n{words}" if words else self._owner)
        except OSError:
            pass

    def _remove(self, state: str) -> None:
        if self._paths:
            try:  # noqa: SIM105 - to import contextlib costs more than the rest of a probe
                os.unlink(self._paths[state])
            except OSError:
                pass


def check(folder: str, state: str, max_age_s: float = MAX_AGE_S) -> str | None:
    """Return why the probe fails; None when it passes."""
    path = os.path.join(folder, state)
    try:
        with open(path, encoding="utf-8") as file:
            writer, touched = file.read(), os.fstat(file.fileno()).st_mtime
    except OSError as error:
        return f"not {state}: {path}: {error.strerror}"
    if not _lives(writer):
        return f"not {state}: {path} was written by a process that has ended"
    age_s = time.time() - touched
    if state == ALIVE and age_s > max_age_s:
        return (
            f"not {state}: {path} was touched {age_s:.0f} s ago, more than {max_age_s:g}: the loop "
            "does no work"
        )
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: yes; 1: no; 2: the question is wrong. One line says why."""
    try:
        state, folder, max_age_s = _read(sys.argv[1:] if arguments is None else list(arguments))
    except ValueError as error:
        sys.stderr.write(f"{error}\n{USAGE}\n")
        return 2
    no = check(folder, state, max_age_s)
    note = note_of(folder)
    sys.stdout.write(f"{no or state}{'; ' + note if note else ''}\n")
    return 0 if no is None else 1


def note_of(folder: str) -> str:
    """Return the note of the living process, on one line; "" when it has none."""
    try:
        with open(os.path.join(folder, NOTE), encoding="utf-8", errors="replace") as file:
            writer, _, words = file.read(2 * NOTE_CHARS).partition("\n")
        return " ".join(words.split()) if _lives(writer) else ""
    except (OSError, ValueError):
        return ""


def _read(arguments: list[str]) -> tuple[str, str, float]:
    """Read state, folder and age in seconds.

    Raises ValueError."""
    options = {"--dir": os.environ.get(DIR_VARIABLE, ""), "--max-age": f"{MAX_AGE_S:g}"}
    states = []
    rest = iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in options:
            options[name] = value if equals else next(rest, "")
        else:
            states.append(word)
    if len(states) != 1 or states[0] not in STATES:
        raise ValueError(f"ask for one of {', '.join(STATES)}, not {' '.join(states) or 'nothing'}")
    if not options["--dir"]:
        raise ValueError(f"give --dir or set {DIR_VARIABLE}: the worker's probe_dir")
    try:
        return states[0], options["--dir"], float(options["--max-age"])
    except ValueError:
        raise ValueError(f"--max-age is {options['--max-age']!r}; give seconds") from None


def _owner(pid: int) -> str:
    """Return pid and start time: pids are reused, above all in containers."""
    return f"{pid} {_start_of(pid) or ''}"


def _start_of(pid: int) -> str | None:
    """Return when a process started, in ticks since the machine's boot.

    None where there is no /proc, or no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _lives(owner: str) -> bool:
    pid, _, start = owner.partition(" ")
    return not start or _start_of(int(pid)) == start


if __name__ == "__main__":
    sys.exit(main())
