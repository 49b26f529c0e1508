"""Files of a store, written into a folder: in parts, several at a time, each checked against what
was listed."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from penstock_workers.lanes.model_files.stores import Store, StoredFile

PART_BYTES: Final = 16 * 1024 * 1024
THREADS: Final = 8  # each holds one part: 128 MiB together

Noted = Callable[[int], None]
"""Called with all bytes so far, from several threads."""


def download(store: Store, files: Mapping[str, StoredFile], folder: Path, note: Noted) -> None:
    """All of them, by their names in ``folder``, durable when this returns.

    Raises what ``store.read`` raises, and OSError of this machine's disk.
    """
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
            os.posix_fallocate(
                opened, 0, file.size
            )  # a disk that is too small says so before anything travels
        self._parts.extend((opened, file, offset) for offset in range(0, file.size, PART_BYTES))

    def _close(self) -> None:
        while self._opened:
            os.close(self._opened.pop())


def _write(opened: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(opened, view, offset)
        view, offset = view[written:], offset + written
