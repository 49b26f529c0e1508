"""The files of the private Redis when the server cannot read them: set aside under a name, a
bounded number of times.

Nothing that is needed is lost with them: what is finished stands in SQL, and the queue is fed again
from the source.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

KEPT_COPIES = (
    3  # of files that were set aside: enough to look into what happened, too few to fill a disk
)
_DATA = (
    "appendonlydir",
    "appendonly.aof",
    "dump.rdb",
)  # of Redis 7 and newer, of 6.2, and of a snapshot
_PREFIX = "damaged-"


def set_aside(folder: Path, now: float | None = None) -> Path | None:
    """Move what the server would load into a folder of its own beside it; returns that, None when
    there was nothing.

    Older ones beyond ``KEPT_COPIES`` are deleted. Raises OSError.
    """
    found = [folder / name for name in _DATA if (folder / name).exists()]
    if not found:
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    aside = next(path for path in _names(folder, stamp) if not path.exists())
    aside.mkdir(mode=0o700)
    for path in found:
        path.rename(aside / path.name)
    for old in _copies(folder)[:-KEPT_COPIES]:
        shutil.rmtree(old, ignore_errors=True)
    return aside


def put_back(folder: Path, aside: Path) -> None:
    """Undo ``set_aside``: a server that does not start without these files either has another
    trouble."""
    for name in _DATA:
        empty = folder / name
        if empty.is_dir():
            shutil.rmtree(empty, ignore_errors=True)
        else:
            empty.unlink(missing_ok=True)
        if (aside / name).exists():
            (aside / name).rename(empty)
    aside.rmdir()


def _names(folder: Path, stamp: str) -> Iterable[Path]:
    yield folder / f"{_PREFIX}{stamp}"
    for number in range(2, 1000):
        yield folder / f"{_PREFIX}{stamp}-{number}"


def _copies(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob(f"{_PREFIX}*"), key=lambda path: path.stat().st_mtime_ns)
