"""Output files go to a folder, or a prefix of a bucket. A file appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from penstock_producer.bucket.place import PROBE_NAME, STORES, Place
from penstock_producer.bucket.s3 import Bucket, s3_client
from penstock_producer.bucket.stores import open_place, writer_of
from penstock_producer.errors import SinkError, seen

__all__ = [
    "IMAGE_FILE",
    "Writer",
    "bucket_at",
    "check_destination",
    "discarded_on_error",
    "free_bytes",
    "open_sink",
    "probe_parts",
    "read_object",
    "remove_files",
]

FOLDER_BUFFER_BYTES = 1024 * 1024
IMAGE_FILE: Final = re.compile(r"[0-9a-f]{64}\.[a-z0-9]+")
"""The name of an image that an answer had: its digest and its kind, in the folder of its job."""


class Writer(Protocol):
    """One file being written.

    ``finish`` makes it durable, ``publish`` makes it visible, ``discard`` leaves no trace.

    ``publish`` returns the place of the file, which is there also when nothing was written.
    """

    def write(self, data: bytes) -> None: ...

    def finish(self) -> None: ...

    def publish(self) -> str: ...

    def discard(self) -> None: ...


class Discardable(Protocol):
    def discard(self) -> None: ...


D = TypeVar("D", bound=Discardable)


@contextlib.contextmanager
def discarded_on_error(writing: D) -> Iterator[D]:
    """Leave no trace of what was written where the block ends with an error."""
    try:
        yield writing
    except BaseException:
        writing.discard()
        raise


def free_bytes(path: Path) -> int | None:
    """Return what this user may still write there; None where the system does not say."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


class Sink(Protocol):
    """A place for files with fixed names: nothing from a document ever becomes part of a name."""

    def create(self, name: str) -> Writer: ...

    def probe(self) -> None:
        """Find out whether files can be written, leaving none. Raises SinkError."""
        ...


def check_destination(text: str) -> str:
    """Check a place for outputs by its looks alone; nothing is opened.

    Raises ValueError saying what to write instead.
    """
    if "://" not in text:
        return text
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.path.startswith("/") and parts.netloc in ("", "localhost"):
        raise ValueError(
            f"{seen(text)} is not a place for outputs; write the folder alone: "
            f"{unquote(parts.path)}"
        )
    if parts.scheme not in ("s3", *STORES) or not parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            f"{seen(text)} is not a place for outputs; give a folder or s3://bucket/prefix, or one "
            "of gs:// or az://"
        )
    return text


def open_sink(destination: str | Path, *, s3_endpoint_url: str | None = None) -> Sink:
    """Return the sink for a folder or a prefix of a bucket. Raises SinkError for anything else."""
    text = str(destination)
    try:
        check_destination(text)
    except ValueError as error:
        raise SinkError(str(error)) from None
    if "://" not in text:
        return FolderSink(Path(text))
    return BucketSink(bucket_at(text, s3_endpoint_url=s3_endpoint_url))


def bucket_at(destination: str, *, s3_endpoint_url: str | None = None) -> Place:
    """Return the place that `s3://bucket/prefix` names, or one of gs:// or az://.

    Raises SinkError where its package is missing.
    """
    parts = urlsplit(destination)
    prefix = unquote(parts.path).strip("/")
    if parts.scheme in STORES:
        return open_place(parts.scheme, parts.netloc, prefix)
    return Bucket(s3_client(s3_endpoint_url), parts.netloc, prefix)


def probe_parts(destination: str, *, s3_endpoint_url: str | None = None) -> bool:
    """Try what parts of results need beyond writing: to read, list and delete.

    Returns whether writes are conditional. Raises SinkError.
    """
    place = bucket_at(destination, s3_endpoint_url=s3_endpoint_url)
    place.head(PROBE_NAME)
    next(place.names(f"{PROBE_NAME}/"), None)
    return place.takes_conditions()


class FolderSink:
    """Files in a folder, which is made when it is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self, name: str) -> Writer:
        with _explained_os(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            return FileWriter(self._folder / name)

    def probe(self) -> None:
        with _explained_os(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=f".{PROBE_NAME}-") as probe:
                probe.write(b"x")
                probe.flush()


class FileWriter:
    """Writes `<name>.part` and renames it at the end; what was there stays readable until then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._file = self._part.open("wb", buffering=FOLDER_BUFFER_BYTES)

    def write(self, data: bytes) -> None:
        # and no context manager, which costs more than the write: this is called for every document
        try:
            self._file.write(data)
        except OSError as error:
            raise _os_problem(self._path, error) from error

    def finish(self) -> None:
        with _explained_os(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def publish(self) -> str:
        with _explained_os(self._path):
            self._part.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # the rename itself
            finally:
                os.close(folder)
        return str(self._path)

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._part.unlink(missing_ok=True)


class BucketSink:
    """Objects under a prefix."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def create(self, name: str) -> Writer:
        return writer_of(self._place, name)

    def probe(self) -> None:
        writer_of(self._place, PROBE_NAME).probe()


def read_object(uri: str, limit: int, *, s3_endpoint_url: str | None = None) -> bytes | None:
    """Read at most ``limit`` bytes of a small object.

    None when there is none, or when only writing is allowed.
    """
    parts = urlsplit(uri)
    if parts.scheme in STORES:
        return _read_small(uri, limit)
    import botocore.exceptions

    client = s3_client(s3_endpoint_url)
    try:
        answer = client.get_object(
            Bucket=parts.netloc, Key=unquote(parts.path.lstrip("/")), Range=f"bytes=0-{limit - 1}"
        )
        return bytes(answer["Body"].read(limit))
    except botocore.exceptions.ClientError:
        return None


def _read_small(uri: str, limit: int) -> bytes | None:
    folder, _, name = uri.rpartition("/")
    with contextlib.suppress(SinkError):
        found = bucket_at(folder).read(unquote(name))
        return None if found is None else found[0][:limit]
    return None


def remove_files(
    destination: str, named: re.Pattern[str], *, s3_endpoint_url: str | None = None
) -> int:
    """Remove the files of a folder, or below a prefix, whose whole names are such.

    Returns how many; 0 where there is no such place. What else lies there stays. Raises SinkError.
    """
    if "://" in destination:
        place = bucket_at(destination, s3_endpoint_url=s3_endpoint_url)
        found = [name for name in place.names("/") if named.fullmatch(name)]
        for name in found:
            place.delete(name)
        return len(found)
    folder = Path(destination)
    with _explained_os(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = [name for name in os.listdir(folder) if named.fullmatch(name)]
        for name in found:
            (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()  # unless it holds more
        return len(found)
    return 0


@contextlib.contextmanager
def _explained_os(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _os_problem(path, error) from error


def _os_problem(path: Path, error: OSError) -> SinkError:
    return SinkError(
        f"cannot write {path}: {error.strerror or error}; choose a folder that can be written and "
        "has room"
    )
