"""Files of models and adapters lie in a folder, or a prefix of a bucket.

What is listed is read as it was listed.

Files of a store, written into a folder: in parts, several at a time, each checked against what
was listed.

Blocking calls beside the event loop, in threads that the end of the process does not wait
for.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Final, Protocol, TypeVar

from penstock_producer.errors import SourceChanged, SourceError
from penstock_producer.sources.blobs.s3 import Listed, S3Prefix
from penstock_workers.errors import FilesChanged, FilesUnusable, StoreAway

SCHEME: Final = "s3://"
FILES_MAX: Final = 20_000  # in one place; a model has some hundred, an adapter two


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file as it was listed. ``version`` changes whenever its content does."""

    path: str  # below the store's place, parts joined by /
    size: int
    version: str
    changed: float  # Unix time


class Store(Protocol):
    """A place that has files, used in threads."""

    place: str

    def files(self) -> list[StoredFile]:
        """List all files that lie here.

        Raises StoreAway, and FilesUnusable for more than ``FILES_MAX``."""
        ...

    def read(self, file: StoredFile, offset: int, length: int) -> bytes:
        """Read exactly so many bytes.

        Raises FilesChanged, StoreAway, FilesUnusable."""
        ...


class FolderStore:
    """Folders below one folder, each with its files.

    Hidden ones are left out: programs that copy write into such."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place = str(folder)

    def files(self) -> list[StoredFile]:
        try:
            return list(self._walk())
        except OSError as error:
            raise StoreAway(
                f"{error.filename or self.place} cannot be read ({error.strerror}); mount it"
            ) from error

    def read(self, file: StoredFile, offset: int, length: int) -> bytes:
        path = self._folder / file.path
        if not path.resolve().is_relative_to(self._folder.resolve()):
            raise FilesUnusable(
                f"{path} points outside of {self._folder}: copy the file itself to that place"
            )
        try:
            # A pipe would block for ever without O_NONBLOCK.
            opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise FilesChanged(f"{path} is gone") from error
        except OSError as error:
            raise StoreAway(f"{path} cannot be read ({error.strerror})") from error
        try:
            data = os.pread(opened, length, offset)
            if _listed(file.path, os.fstat(opened)) != file or len(data) != length:
                raise FilesChanged(f"{path} was changed while it was read")
            return data
        except OSError as error:
            raise StoreAway(f"{path} cannot be read ({error.strerror})") from error
        finally:
            os.close(opened)

    def _walk(self) -> Iterator[StoredFile]:
        count = 0
        for folder in _shown(self._folder):
            if not folder.is_dir():
                continue
            for entry in _shown(Path(folder.path)):
                count += 1
                if count > FILES_MAX:
                    raise FilesUnusable(
                        f"{self.place} has more than {FILES_MAX:,} files; name a folder with fewer"
                    )
                listed = _stat(f"{folder.name}/{entry.name}", entry)
                if listed is not None:
                    yield listed


class BucketStore:
    """Objects below a prefix."""

    def __init__(self, uri: str, endpoint_url: str | None) -> None:
        with _explained():
            self._prefix = S3Prefix(uri, endpoint_url=endpoint_url)
        self.place = self._prefix.uri

    def files(self) -> list[StoredFile]:
        with _explained():
            return [StoredFile(*listed) for listed in self._prefix.objects(FILES_MAX)]

    def read(self, file: StoredFile, offset: int, length: int) -> bytes:
        with _explained():
            return self._prefix.object(
                Listed(file.path, file.size, file.version, file.changed)
            ).read(offset, length)


def open_store(place: str, endpoint_url: str | None) -> Store:
    """Open a place, of which nothing is asked yet.

    Raises FilesUnusable where `s3://` cannot be read at all, as without boto3."""
    return (
        BucketStore(place, endpoint_url) if place.startswith(SCHEME) else FolderStore(Path(place))
    )


def _shown(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(
            (entry for entry in entries if not entry.name.startswith(".")),
            key=lambda entry: entry.name,
        )


def _stat(path: str, entry: os.DirEntry[str]) -> StoredFile | None:
    """Describe a file; None for what is no file, or is gone by now."""
    try:
        found = entry.stat()
    except FileNotFoundError:
        return None
    return _listed(path, found) if stat.S_ISREG(found.st_mode) else None


def _listed(path: str, found: os.stat_result) -> StoredFile:
    return StoredFile(path, found.st_size, f"{found.st_ino}-{found.st_mtime_ns}", found.st_mtime)


@contextmanager
def _explained() -> Iterator[None]:
    """Say a bucket's errors in the words of this module: those of a source speak of a job."""
    try:
        yield
    except SourceChanged as error:
        raise FilesChanged("an object of the bucket was replaced while it was read") from error
    except SourceError as error:
        away = error.code == "source_unavailable"
        raise (StoreAway if away else FilesUnusable)(error.public) from error


PART_BYTES: Final = 16 * 1024 * 1024
THREADS: Final = 8  # each holds one part: 128 MiB together

Noted = Callable[[int], None]
"""Called with all bytes so far, from several threads."""


def download(store: Store, files: Mapping[str, StoredFile], folder: Path, note: Noted) -> None:
    """Download all files, by their names in ``folder``, durable when this returns.

    Raises what ``store.read`` raises, and OSError of this machine's disk."""
    job = _Download(store, files, folder, note)
    threads = [
        threading.Thread(target=job.work, name=f"penstock-files-{number}", daemon=True)
        for number in range(min(THREADS, job.left))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    job.end()


class _Download:
    def __init__(
        self, store: Store, files: Mapping[str, StoredFile], folder: Path, note: Noted
    ) -> None:
        self._store, self._note = store, note
        self._parts: deque[tuple[int, StoredFile, int]] = deque()  # descriptor, file, offset
        self._lock = threading.Lock()
        self._done = 0
        self._error: Exception | None = None
        self._opened: list[int] = []
        try:
            for name, file in files.items():
                self._open(folder / name, file)
        except OSError:
            self._close()
            raise

    @property
    def left(self) -> int:
        return len(self._parts)

    def work(self) -> None:
        while self._error is None:
            try:
                opened, file, offset = self._parts.popleft()
            except IndexError:
                return
            try:
                data = self._store.read(file, offset, min(PART_BYTES, file.size - offset))
                _write(opened, data, offset)
            except Exception as error:
                self._error = error
                return
            with self._lock:
                self._done += len(data)
                self._note(self._done)

    def end(self) -> None:
        try:
            if self._error is not None:
                raise self._error
            for opened in self._opened:
                os.fsync(opened)
        finally:
            self._close()

    def _open(self, path: Path, file: StoredFile) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._opened.append(opened)
        if file.size:
            # a disk that is too small says so before anything travels
            os.posix_fallocate(opened, 0, file.size)
        self._parts.extend((opened, file, offset) for offset in range(0, file.size, PART_BYTES))

    def _close(self) -> None:
        while self._opened:
            os.close(self._opened.pop())


def _write(opened: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(opened, view, offset)
        view, offset = view[written:], offset + written


T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Run a call in a thread that is not waited for at exit.

    Those of ``asyncio.to_thread`` are, and a bucket may not answer for minutes."""
    future: Future[T] = Future()
    Thread(target=_work, args=(call, future), name="penstock-files", daemon=True).start()
    return await asyncio.wrap_future(future)


def _work(call: Callable[[], T], future: Future[T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        said = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(said)
