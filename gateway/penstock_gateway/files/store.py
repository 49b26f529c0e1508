"""The bytes of files and their rows, written whole or not at all, to a folder or a bucket.

All of it blocks; routes call it through ``backend.run``. Other rooms write the outputs of their
jobs with ``create_from``, and give ``place`` to ``Producer.submit``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from penstock_gateway.files.form import OUTPUT
from penstock_gateway.middleware import is_id, new_id
from penstock_gateway.refused import Refused
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import Database, DoorFile, DoorFiles, FileDetails, PenstockError, Whose
from penstock_producer import SinkError
from penstock_producer.storage import Writer, bucket_at, open_sink

__all__ = ["FileReader", "FileStore", "FileWriting"]

log = logging.getLogger("penstock.gateway")

# that stay free on the disk: the ledger of a small installation is there too
FREE_BYTES_MIN: Final = 128 * 1024 * 1024
CHECKED_EVERY: Final = 64 * 1024 * 1024  # bytes of one file after which the disk is looked at again
LINES_TOGETHER: Final = 1024 * 1024  # bytes of lines that are written at once
DEFAULT_ENDING: Final = ".jsonl"
# Endings by which sources are read as what they are; any other name is one of lines of JSON.
_ENDINGS: Final = (
    ".jsonl",
    ".ndjson",
    ".csv",
    ".tsv",
    ".parquet",
    ".arrow",
    ".jsonl.gz",
    ".jsonl.zst",
    ".csv.gz",
    ".csv.zst",
)


class FileStore:
    """Files below `gateway.files`."""

    def __init__(self, settings: GatewaySettings, database: Database) -> None:
        self._settings = settings
        self.rows = DoorFiles(database)

    def begin(self, tenant: str | None, filename: str = "") -> FileWriting:
        """Return a file that is being written. Raises Refused (507, 503)."""
        file_id = new_id("file")
        place = file_id + _ending(filename)
        self.check_room(0)
        self.rows.begin(file_id, tenant, place)
        return FileWriting(self, file_id, place)

    def create_from(
        self,
        lines: Iterable[bytes],
        *,
        tenant: str | None,
        filename: str,
        purpose: str = OUTPUT,
        lives_s: float | None = None,
        job_id: str | None = None,
    ) -> DoorFile | None:
        """Return a file of ``lines``, each with its line end, in flat memory.

        None where there is none: then there is no file either."""
        writing: FileWriting | None = None
        number, held = 0, bytearray()
        try:
            for line in lines:
                writing = writing or self.begin(tenant)
                held += line
                number += 1
                if len(held) >= LINES_TOGETHER:
                    writing.write(bytes(held))
                    held.clear()
            if writing is None:
                return None
            writing.write(bytes(held))
            return writing.finish(filename, purpose, lives_s, job_id=job_id, lines=number)
        except BaseException:
            if writing is not None:
                writing.discard()
            raise

    def get(self, file_id: str, whose: Whose) -> DoorFile | None:
        """Return a file; None for what is not there for them, and for what is no id at all."""
        return self.rows.get(file_id, whose) if is_id("file", file_id) else None

    def place(self, file: DoorFile) -> str:
        """Return the file's path or its URI, as a source of ``Producer.submit``."""
        folder = self._settings.files_folder
        if folder is not None:
            return str(folder / file.place)
        return f"{self._settings.gateway.files.rstrip('/')}/{quote(file.place)}"

    def reader(self, file: DoorFile) -> FileReader:
        """Open the bytes for reading.

        Raises Refused (503) for a bucket that does not answer, and for bytes that are gone.
        """
        return FileReader(self.place(file), file.bytes, self._settings.s3_endpoint_url)

    def delete(self, file: DoorFile, whose: Whose) -> bool:
        """Delete it; False when it was gone, or a batch or job that has not ended reads it."""
        if not self.rows.delete(file.file_id, whose):
            return False
        with contextlib.suppress(SinkError, OSError):  # what does not go now goes with the row
            self.remove_bytes(file.place)
        return True  # the row stays a while, so that lists can go on behind it

    def remove_bytes(self, place: str) -> None:
        """Remove bytes, there or not, finished or not. Raises SinkError."""
        folder = self._settings.files_folder
        if folder is not None:
            for name in (place, f"{place}.part"):
                (folder / name).unlink(missing_ok=True)
            return
        bucket = bucket_at(
            self._settings.gateway.files, s3_endpoint_url=self._settings.s3_endpoint_url
        )
        bucket.abort_uploads(place)
        bucket.delete(place)

    def check_room(self, more: int) -> None:
        """Return whether ``more`` bytes fit on the disk. Raises Refused (507)."""
        folder = self._settings.files_folder
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(folder).free
        except OSError as error:
            raise _unwritable(error) from error
        if free < more + FREE_BYTES_MIN:
            raise _no_room()

    def room_of(self, tenant: str | None) -> int | None:
        """Return how many bytes files of this tenant may still take.

        It is None for the operator's, which are bounded by the disk alone.
        """
        if tenant is None:
            return None
        return self._settings.gateway.tenant_file_bytes - self.rows.bytes_of(tenant)

    def writer(self, place: str) -> Writer:
        """Return a writer for the bytes alone. Raises SinkError."""
        return open_sink(
            self._settings.gateway.files, s3_endpoint_url=self._settings.s3_endpoint_url
        ).create(place)


class FileWriting:
    """One file on its way.

    ``finish`` makes it appear, ``discard`` leaves no trace. What they raise is Refused (507,
    503)."""

    def __init__(self, store: FileStore, file_id: str, place: str) -> None:
        self._store, self._file_id, self._place = store, file_id, place
        self._sha256 = hashlib.sha256()
        self._look_at = CHECKED_EVERY
        # whether its row may be shown by now, also where the answer of the database was lost
        self._offered = False
        # a caller that has gone is no reason to remove what a thread is just finishing
        self._ending = threading.Lock()
        self.bytes = 0
        with _explained():
            self._writer = store.writer(place)

    def write(self, data: bytes) -> None:
        """Write the next bytes, best about a MiB at a time."""
        self._sha256.update(data)
        self.bytes += len(data)
        if self.bytes >= self._look_at:
            self._store.check_room(0)
            self._look_at += CHECKED_EVERY
        with _explained():
            self._writer.write(data)

    def finish(
        self,
        filename: str,
        purpose: str,
        lives_s: float | None,
        *,
        job_id: str | None = None,
        lines: int | None = None,
    ) -> DoorFile:
        """Make the file durable first, then show it to readers."""
        sha256 = self._sha256.hexdigest()
        details = FileDetails(
            filename, purpose, self.bytes, sha256, lives_s=lives_s, job_id=job_id, lines=lines
        )
        with self._ending:
            with _explained():
                self._writer.finish()
                self._writer.publish()
            self._offered = True
            shown = self._store.rows.finish(self._file_id, details)
            self._offered = shown is not None
        if shown is None:
            raise Refused(
                408,
                "the upload took so long that it was removed before its end; send it again",
                code="timeout",
            )
        return shown

    def discard(self) -> None:
        """Remove what was written, as far as that works now.

        The rest is removed by its row later, and so is what may be shown already, where it is not.
        """
        with self._ending, contextlib.suppress(PenstockError, OSError):
            if self._offered:
                return
            self._writer.discard()
            self._store.remove_bytes(self._place)
            self._store.rows.forget([self._file_id])


class FileReader:
    """The bytes of a finished file, any of them, with no handle open between two reads."""

    def __init__(self, place: str, size: int, s3_endpoint_url: str | None) -> None:
        self._place, self._bucket, self._etag = place, None, ""
        with _explained():
            if "://" in place:
                folder, _, self._name = place.rpartition("/")
                self._bucket = bucket_at(folder, s3_endpoint_url=s3_endpoint_url)
                found = self._bucket.head(self._name)
                there = found is not None
                self._etag = "" if found is None else found.etag
            else:
                there = Path(place).is_file() and Path(place).stat().st_size == size
        if not there:
            raise Refused(
                500,
                "the bytes of this file are gone from where the server keeps them",
                code="file_lost",
            )

    def read(self, first: int, length: int) -> bytes:
        """Return bytes of the file. Raises Refused where they are gone meanwhile."""
        with _explained():
            if self._bucket is not None:
                data = b"".join(self._bucket.chunks(self._name, self._etag, first, first + length))
            else:
                handle = os.open(self._place, os.O_RDONLY)
                try:
                    data = os.pread(handle, length, first)
                finally:
                    os.close(handle)
        if len(data) != length:
            raise Refused(500, "the file ends before its last byte", code="file_lost")
        return data


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn faults of the disk or the bucket into the server's errors, which mostly pass."""
    try:
        yield
    except (SinkError, OSError) as error:
        raise _unwritable(error) from error


def _unwritable(error: BaseException) -> Refused:
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return _no_room()
    log.warning("uploaded files cannot be written or read: %s", error)
    return Refused(
        503,
        "where the server keeps files does not answer; try again",
        code="service_unavailable",
        kind="server_error",
        headers={"retry-after": "5"},
    )


def _no_room() -> Refused:
    return Refused(
        507,
        "the server has no room for this file; remove files that are not needed any more, or tell "
        "its operator",
        code="insufficient_storage",
        kind="server_error",
    )


def _ending(filename: str) -> str:
    name = filename.lower()
    return next((ending for ending in _ENDINGS if name.endswith(ending)), DEFAULT_ENDING)
