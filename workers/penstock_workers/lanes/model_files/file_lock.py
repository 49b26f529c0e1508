"""A lock of a file, between processes of one machine.

The kernel takes it back from a process that is killed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self


class FileLock:
    """An open lock file: shared by those that use what it stands for, or held by the one that
    changes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def share(self) -> bool:
        """False while another process changes it, or has removed the file meanwhile: open it anew
        then."""
        return self._take(fcntl.LOCK_SH)

    def hold(self) -> bool:
        """Alone. False while another one uses or changes it, or has removed the file meanwhile."""
        return self._take(fcntl.LOCK_EX)

    def wait(self) -> None:
        """Until it is held alone. For locks that are held for moments."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def let_go(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def write(self, text: str) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text.encode(), 0)

    def touch(self) -> None:
        """It is used now."""
        os.utime(self._file)

    def close(self) -> None:
        """And let go of it. Again changes nothing."""
        opened, self._file = self._file, -1
        if opened >= 0:
            os.close(opened)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, kind: int) -> bool:
        try:
            fcntl.flock(self._file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            return os.path.samestat(os.fstat(self._file), self.path.stat())
        except FileNotFoundError:
            return False
