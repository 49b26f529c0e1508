"""The state folder of one-machine mode: where everything lies, and the lock that keeps two runs apart.

STATE/lock             held (flock) by the `penstock run` or `serve` that works here; holds its pid
STATE/penstock.db      the SQL ledger: jobs, results, dead letters
STATE/redis/           the private Redis: configuration, AOF, socket, log
STATE/logs/            one log per worker process
STATE/files/           uploads and results of the HTTP doors (`penstock serve`)
STATE/figures/         per job: the figures that only Redis and the clock know, kept for reports
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock_cli.errors import StateBusy, UsageProblem

PRIVATE_MODE = 0o700
NEARBY_MAX = 3  # state folders named in a hint


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Paths inside one state folder. ``root`` is absolute."""

    root: Path

    @classmethod
    def create(cls, path: Path) -> StateFolder:
        """Make the folder, readable by its owner only. Raises UsageProblem when it cannot be made or written."""
        root = path.expanduser().absolute()
        try:
            root.mkdir(parents=True, exist_ok=True, mode=PRIVATE_MODE)
            root.chmod(PRIVATE_MODE)
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
        """The state of an earlier `penstock run`. Raises UsageProblem when there is none."""
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
        """A sentence that names the state folders of local runs in and below the working folder; "" without any."""
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
    def figures(self) -> Path:
        return self.root / "figures"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one run. Raises StateBusy, naming the holder, when another run has it.

        The lock belongs to the open file, so the kernel frees it however this process ends.
        """
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
                raise StateBusy(
                    f"another `penstock run` or `serve` (pid {holder}) is working in {self.root}. "
                    "Wait for it, stop it with Ctrl-C, or give this one a --state of its own."
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)
