"""The state folder of one-machine mode: where everything lies, and the lock between runs.

STATE/lock             held (flock) by the `penstock run` or `serve` that works here; holds its pid
STATE/penstock.db      the SQL ledger: jobs, results, dead letters
STATE/redis/           the private Redis: configuration, AOF, socket, log
STATE/logs/            one log per worker process
STATE/files/           uploads and results of the HTTP doors (`penstock serve`)
STATE/figures/         per job: the figures that only Redis and the clock know, kept for reports

Folders are of mode 0700 and files of 0600, whatever the umask is: documents and answers lie here,
and digests of keys.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock_cli.errors import StateBusy, UsageProblem

__all__ = ["StateFolder", "private_opener", "write_private"]

PRIVATE_MODE = 0o700
PRIVATE_FILE_MODE = 0o600
FOR_OTHERS = 0o077  # permissions
LOCK_POLL_S = 0.1  # between two tries to take the lock of a folder
NEARBY_MAX = 3  # state folders named in a hint


def is_remote(place: str) -> bool:
    """Return whether results or documents there are on no disk of this machine."""
    return "://" in place


def private_opener(path: str, flags: int) -> int:
    """Open a file for its owner only, where it is made: the ``opener`` of ``open``."""
    return os.open(path, flags, PRIVATE_FILE_MODE)


def write_private(path: Path, text: str) -> None:
    """Write a file of a state folder."""
    with open(path, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(text)


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Paths inside one state folder. ``root`` is absolute."""

    root: Path

    @classmethod
    def create(cls, path: Path) -> StateFolder:
        """Make the folder, readable by its owner only.

        Raises UsageProblem when it cannot be made or written."""
        root = path.expanduser().absolute()
        try:
            root.mkdir(parents=True, exist_ok=True, mode=PRIVATE_MODE)
            _close_to_others(root)
        except OSError as error:
            raise UsageProblem(
                f"--state {path}: cannot make this folder ({error.strerror}). "
                "Choose a folder you may write with --state."
            ) from error
        folder = cls(root)
        for part in (folder.redis, folder.logs, folder.figures):
            part.mkdir(exist_ok=True, mode=PRIVATE_MODE)
        return folder

    @classmethod
    def existing(cls, path: Path) -> StateFolder:
        """Return the state of an earlier `penstock run`. Raises UsageProblem when there is none."""
        folder = cls(path.expanduser().absolute())
        if folder.database.is_file():
            return folder
        nested = folder.root / ".penstock"
        hint = f" Did you mean --state {nested}?" if (nested / "penstock.db").is_file() else ""
        raise UsageProblem(
            f"--state {path}: no state of a local run there (no penstock.db).{hint} "
            "`penstock run` keeps its state in <out>/.penstock unless --state says otherwise, "
            "`penstock serve` in its --state."
        )

    @classmethod
    def nearby(cls) -> str:
        """Return a sentence that names the state folders in and below the working folder, or ""."""
        found = [
            str(database.parent)
            for pattern in (".penstock", "*/.penstock", "*/*/.penstock")
            for database in sorted(Path().glob(f"{pattern}/penstock.db"))
        ]
        if not found:
            return ""
        more = f" (and {len(found) - NEARBY_MAX} more)" if len(found) > NEARBY_MAX else ""
        named = " or ".join(f"--state {shlex.quote(folder)}" for folder in found[:NEARBY_MAX])
        return f" For a job of `penstock run` add {named}{more}."

    @property
    def database(self) -> Path:
        return self.root / "penstock.db"

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.database}"

    def has_completed(self, job_key: str) -> bool:
        """Return whether a job has completed here: a look that imports no database library.

        Whatever hinders it is left to those who open the ledger."""
        if not self.database.is_file():
            return False
        address = f"{self.database.as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(address, uri=True)) as ledger:
                found = ledger.execute("SELECT state FROM jobs WHERE job_key = ?", (job_key,))
                return bool(found.fetchone() == ("completed",))
        except sqlite3.Error:
            return False

    @property
    def redis(self) -> Path:
        return self.root / "redis"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def files(self) -> Path:
        return self.root / "files"

    @property
    def images(self) -> Path:
        """Return where images of answers go that `penstock serve` gets, unless settings say."""
        return self.root / "images"

    @property
    def figures(self) -> Path:
        return self.root / "figures"

    @contextlib.contextmanager
    def locked(self, wait: Callable[[str, str], None] | None = None) -> Iterator[None]:
        """Hold the folder for one run.

        Raises StateBusy, naming the holder, when another run has it. With ``wait`` that run is
        waited for, and ``wait`` is called with words about it.

        The lock belongs to the open file, so the kernel frees it however this process ends.
        """
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not _is_taken(descriptor):
                holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
                if wait is None:
                    raise StateBusy(
                        f"another `penstock run` or `serve` (pid {holder}) is working in "
                        f"{self.root}. Wait for it (`penstock run --wait` does), stop it with "
                        "Ctrl-C, or give this one a --state of its own."
                    )
                wait(f"another run (pid {holder}) is working in {self.root}; waiting for it", "")
                time.sleep(LOCK_POLL_S)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close_to_others(root: Path) -> None:
    """Take all rights of others from a folder and what is below it.

    It may have been there before, or be of an earlier release. Raises OSError where that cannot be
    done to the folder itself, which then keeps others out no more."""
    root.chmod(PRIVATE_MODE)
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            # of another user, or gone meanwhile: the root is closed
            with contextlib.suppress(OSError):
                path = Path(folder, name)
                found = path.lstat()
                if not stat.S_ISLNK(found.st_mode) and found.st_mode & FOR_OTHERS:
                    path.chmod(stat.S_IMODE(found.st_mode) & ~FOR_OTHERS)
