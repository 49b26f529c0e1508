"""A lock of a file, between processes of one machine.

The kernel takes it back from a process that is killed.

The cache of one machine: each set of files once, whole or not there, used by all workers beside
one another.

`KEY.lock` says how large an entry is and when it was last taken (its time of change). Who holds
that lock alone brings the entry or removes it; who uses the entry shares the lock, so that nothing
in use is removed. Files are written into `KEY.part`, which becomes the folder `KEY` by a rename:
what a killed process leaves is never taken for whole.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from penstock_workers.errors import CacheFull
from penstock_workers.lanes.model_stores import Noted, Store, StoredFile, download


class FileLock:
    """An open lock file.

    It is shared by those that use what it stands for, or held by the one that changes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def share(self) -> bool:
        """Share the lock.

        Return False while another process changes what it stands for, or when one has removed the
        file meanwhile: then open it anew.
        """
        return self._take(fcntl.LOCK_SH)

    def hold(self) -> bool:
        """Hold the lock alone.

        Return False while another one uses or changes it, or when one has removed the file
        meanwhile.
        """
        return self._take(fcntl.LOCK_EX)

    def wait(self) -> None:
        """Wait until it is held alone, for locks that are held for moments."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def let_go(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def write(self, text: str) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text.encode(), 0)

    def touch(self) -> None:
        """Note that it is used now."""
        os.utime(self._file)

    def close(self) -> None:
        """Close the file and let go of it; doing it again changes nothing."""
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


log = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 0.5  # while another worker brings the same files
KEY_CHARS: Final = 32
GIB: Final = 1024**3
_LOCK, _PART, _GONE = ".lock", ".part", ".gone"
_WHOLE: Final = "cache.lock"  # of the sum of all entries; held for moments


@dataclass(frozen=True, slots=True)
class Wanted:
    """A set of files, by their versions: other content is another set."""

    store: Store
    name: str  # for people: where it lies
    files: tuple[StoredFile, ...]
    inside: str = ""  # the part of their paths that is left out in the cache, as `legal/`

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def key(self) -> str:
        said = [self.name, sorted((file.path, file.size, file.version) for file in self.files)]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:KEY_CHARS]

    @property
    def here(self) -> dict[str, StoredFile]:
        """The files by their names in the cache."""
        return {file.path.removeprefix(self.inside): file for file in self.files}


class Entry:
    """Files in the cache, which stay there until ``release``."""

    def __init__(self, folder: Path, lock: FileLock) -> None:
        self.folder = folder
        self._lock = lock

    def release(self) -> None:
        self._lock.close()


class FileCache:
    """One folder, of at most ``most_bytes``. Its methods block: call them in a thread."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes

    def take(self, wanted: Wanted, note: Noted = lambda _: None) -> Entry:
        """Return the files, and bring those that are not here yet.

        Raises CacheFull, and what reading the store raises."""
        self._make_folder()
        waited = False
        while True:
            with self._explained(wanted):
                lock = FileLock(self._path(wanted.key, _LOCK))
            try:
                entry = self._taken(wanted, lock, note)
            except BaseException:
                lock.close()
                raise
            if entry is not None:
                return entry
            lock.close()
            if not waited:
                log.info(
                    "another worker of this machine brings %s, or removes it; waiting for that",
                    wanted.name,
                )
            waited = True
            time.sleep(ASK_AGAIN_S)

    def _taken(self, wanted: Wanted, lock: FileLock, note: Noted) -> Entry | None:
        """Take the entry, and bring it first if need be; None while another process is at it."""
        folder = self._path(wanted.key)
        if not (lock.share() and _is_whole(folder, wanted)):
            lock.let_go()
            if not lock.hold():
                return None
            if not _is_whole(folder, wanted):
                self._bring(wanted, lock, note)
            # between the two locks others may remove it
            if not (lock.share() and _is_whole(folder, wanted)):
                return None
        lock.touch()
        return Entry(folder, lock)

    def _bring(self, wanted: Wanted, lock: FileLock, note: Noted) -> None:
        self._clear(wanted.key)
        self._reserve(wanted, lock)
        part, began = self._path(wanted.key, _PART), time.monotonic()
        try:
            with self._explained(wanted):
                part.mkdir()
                download(wanted.store, wanted.here, part, note)
                part.rename(self._path(wanted.key))
                _sync(self._folder)
        except BaseException:
            self._clear(wanted.key)
            lock.write("")
            raise
        took = time.monotonic() - began
        log.info("%s is here: %.3f GiB in %.1f s", wanted.name, wanted.size / GIB, took)

    # -- room --------------------------------------------------------------------------------------

    def _reserve(self, wanted: Wanted, lock: FileLock) -> None:
        """Reserve room under this lock's name, at the cost of what was not used for longest.

        Raises CacheFull."""
        with FileLock(self._folder / _WHOLE) as whole:
            whole.wait()
            lock.write("")
            for key, path in self._oldest_first():
                if self._fits(wanted):
                    break
                if key != wanted.key:
                    self._remove_unused(key, path)
            if not self._fits(wanted):
                raise self._full(wanted)
            lock.write(json.dumps({"bytes": wanted.size, "of": wanted.name}))

    def _fits(self, wanted: Wanted) -> bool:
        free = shutil.disk_usage(self._folder).free
        return self._used() + wanted.size <= self._most_bytes and wanted.size <= free

    def _used(self) -> int:
        """Count the bytes of all entries, and of those that are on their way."""
        return sum(_reserved(path) for _, path in self._oldest_first())

    def _oldest_first(self) -> list[tuple[str, Path]]:
        """Return keys and locks; what was never completed comes first."""
        found: list[tuple[bool, float, str, Path]] = []
        for path in self._folder.glob(f"*{_LOCK}"):
            if path.name == _WHOLE:
                continue
            key = path.name.removesuffix(_LOCK)
            try:
                found.append((self._path(key).is_dir(), path.stat().st_mtime, key, path))
            except FileNotFoundError:  # removed meanwhile
                continue
        return [(key, path) for _, _, key, path in sorted(found)]

    def _remove_unused(self, key: str, path: Path) -> None:
        with FileLock(path) as lock:
            if lock.hold():
                log.info("removing %s from %s to make room", key, self._folder)
                self._clear(key)
                path.unlink()

    def _clear(self, key: str) -> None:
        """Remove an entry such that what is left of it is never taken for an entry."""
        gone = self._path(key, _GONE)
        shutil.rmtree(gone, ignore_errors=True)
        if self._path(key).exists():
            self._path(key).rename(gone)
        for folder in (gone, self._path(key, _PART)):
            shutil.rmtree(folder, ignore_errors=True)

    # -- what can go wrong -------------------------------------------------------------------------

    def _full(self, wanted: Wanted) -> CacheFull:
        size, most, free = (
            wanted.size / GIB,
            self._most_bytes / GIB,
            shutil.disk_usage(self._folder).free / GIB,
        )
        if wanted.size > self._most_bytes:
            return CacheFull(
                f"{wanted.name} has {size:.2f} GiB, and gpu.cache_bytes allows {most:.2f}: raise it"
            )
        return CacheFull(
            f"no room for {wanted.name} ({size:.2f} GiB) in {self._folder}: workers here use "
            f"{self._used() / GIB:.2f} of the {most:.2f} GiB of gpu.cache_bytes, and the disk has "
            f"{free:.2f} GiB free; raise it, free the disk, or set gpu.cache_dir to a larger one"
        )

    @contextmanager
    def _explained(self, wanted: Wanted) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise CacheFull(
                    f"the disk of {self._folder} is full: {wanted.name} needs "
                    f"{wanted.size / GIB:.2f} GiB; free it, or set gpu.cache_dir to a larger one"
                ) from error
            raise CacheFull(
                f"{self._folder} cannot be written ({error.strerror or error}); set gpu.cache_dir "
                "to a folder that can be"
            ) from error

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise CacheFull(
                f"gpu.cache_dir: {self._folder} cannot be made ({error.strerror}); set it to a "
                "folder that can be written"
            ) from error

    def _path(self, key: str, suffix: str = "") -> Path:
        return self._folder / f"{key}{suffix}"


def _is_whole(folder: Path, wanted: Wanted) -> bool:
    """Return whether all files are there; a person may have taken something out of the folder."""
    try:
        return all(
            (folder / name).stat().st_size == file.size for name, file in wanted.here.items()
        )
    except OSError:
        return False


def _reserved(path: Path) -> int:
    """Return how many bytes an entry has, as its lock says; 0 where it says nothing."""
    try:
        said = json.loads(path.read_text() or "{}")
    except (OSError, ValueError):
        return 0
    size = said.get("bytes") if isinstance(said, dict) else None
    return size if type(size) is int and size > 0 else 0


def _sync(folder: Path) -> None:
    """Sync the folder, so that a rename in it is durable."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
