"""Where output files go: a folder, or a prefix of an S3 bucket. A file appears whole or not at all.

boto3 is imported when the first bucket is used: it is an extra (`pip install penstock[s3]`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from penstock_producer.errors import SinkError, seen

__all__ = ["open_sink", "read_object"]

FOLDER_BUFFER_BYTES = 1024 * 1024
# S3 takes parts of 5 MiB to 5 GiB and at most 10,000 of them; a writer holds one in memory.
PART_BYTES = 8 * 1024 * 1024
# From then on parts are larger, so that 10,000 of them make 430 GiB and not 78. A constant size until there suits
# servers that want all parts equal.
PARTS_PER_SIZE = 1_000
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60
TRIES = 5  # per request, boto3's own, with backoff
PROBE_NAME = "penstock-probe"


class Writer(Protocol):
    """One file being written. ``finish`` makes it durable, ``publish`` makes it visible, ``discard`` leaves no trace.

    ``publish`` returns the place of the file, which is there also when nothing was written.
    """

    def write(self, data: bytes) -> None: ...

    def finish(self) -> None: ...

    def publish(self) -> str: ...

    def discard(self) -> None: ...


class Sink(Protocol):
    """A place for files with fixed names: nothing from a document ever becomes part of a name."""

    def create(self, name: str) -> Writer: ...

    def probe(self) -> None:
        """Find out whether files can be written, leaving none. Raises SinkError."""
        ...


def check_destination(text: str) -> str:
    """A place for outputs by its looks alone: nothing is opened. Raises ValueError saying what to write instead."""
    if "://" not in text:
        return text
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.path.startswith("/") and parts.netloc in ("", "localhost"):
        raise ValueError(f"{seen(text)} is not a place for outputs; write the folder alone: {unquote(parts.path)}")
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"{seen(text)} is not a place for outputs; give a folder or s3://bucket/prefix")
    return text


def open_sink(destination: str | Path, *, s3_endpoint_url: str | None = None) -> Sink:
    """The sink for a folder or `s3://bucket/prefix`. Raises SinkError for anything else."""
    text = str(destination)
    try:
        check_destination(text)
    except ValueError as error:
        raise SinkError(str(error)) from None
    if "://" not in text:
        return FolderSink(Path(text))
    parts = urlsplit(text)
    return S3Sink(parts.netloc, unquote(parts.path).strip("/"), s3_client(s3_endpoint_url))


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
        try:  # and no context manager, which costs more than the write: this is called for every document
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


class S3Sink:
    """Objects under a prefix."""

    def __init__(self, bucket: str, prefix: str, client: Any) -> None:
        self._bucket, self._prefix, self._client = bucket, prefix, client

    def create(self, name: str) -> Writer:
        return ObjectWriter(self._client, self._bucket, f"{self._prefix}/{name}" if self._prefix else name)

    def probe(self) -> None:
        """Start an upload and abort it: needs the same right as writing, and makes no object."""
        writer = ObjectWriter(self._client, self._bucket, f"{self._prefix}/{PROBE_NAME}".lstrip("/"))
        writer.begin()
        writer.discard()


class ObjectWriter:
    """A multipart upload, begun with the first full part; small and empty objects are one PUT.

    S3 shows nothing of an upload before ``publish``, and keeps the object that was there until then.
    """

    def __init__(self, client: Any, bucket: str, key: str) -> None:
        self._client = client
        self._at = {"Bucket": bucket, "Key": key}
        self._uri = f"s3://{bucket}/{key}"
        self._buffer = bytearray()
        self._upload: str | None = None
        self._parts: list[dict[str, Any]] = []  # S3 allows 10,000

    def begin(self) -> str:
        if self._upload is None:
            self._upload = str(self._ask(self._client.create_multipart_upload)["UploadId"])
        return self._upload

    def write(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= self._part_bytes():
            self._send_part()

    def finish(self) -> None:
        if self._upload is not None and self._buffer:
            self._send_part()

    def publish(self) -> str:
        if self._upload is not None:
            parts = {"Parts": self._parts}
            self._ask(self._client.complete_multipart_upload, UploadId=self._upload, MultipartUpload=parts)
            self._upload = None
        else:
            self._ask(self._client.put_object, Body=bytes(self._buffer))
        return self._uri

    def discard(self) -> None:
        """Best effort: what cannot be aborted is an unfinished upload, which no reader sees."""
        if self._upload is not None:
            with contextlib.suppress(SinkError):
                self._ask(self._client.abort_multipart_upload, UploadId=self._upload)
            self._upload = None

    def _send_part(self) -> None:
        number = len(self._parts) + 1
        upload, body = self.begin(), bytes(self._buffer)
        answer = self._ask(self._client.upload_part, UploadId=upload, PartNumber=number, Body=body)
        self._parts.append({"ETag": answer["ETag"], "PartNumber": number})
        self._buffer.clear()

    def _part_bytes(self) -> int:
        return PART_BYTES * (1 + len(self._parts) // PARTS_PER_SIZE)

    def _ask(self, request: Callable[..., Any], **more: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return request(**self._at, **more)
        except ClientError as error:
            raise SinkError(_explain(self._uri, self._at["Bucket"], error)) from error
        except (BotoCoreError, OSError) as error:
            message = f"cannot write {self._uri}: {error}; check the endpoint, the region and the credentials"
            raise SinkError(message) from error


def s3_client(endpoint_url: str | None = None) -> Any:
    """A boto3 client with bounded patience. Credentials and region are boto3's own affair."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise SinkError("writing to s3:// needs boto3; `pip install penstock[s3]`") from error
    retries = {"mode": "standard", "total_max_attempts": TRIES}
    config = Config(connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries=retries)
    return boto3.client("s3", endpoint_url=endpoint_url, config=config)


def read_object(uri: str, limit: int, *, s3_endpoint_url: str | None = None) -> bytes | None:
    """At most ``limit`` bytes of a small object; None when there is none, or when only writing is allowed."""
    import botocore.exceptions

    parts = urlsplit(uri)
    client = s3_client(s3_endpoint_url)
    try:
        answer = client.get_object(
            Bucket=parts.netloc, Key=unquote(parts.path.lstrip("/")), Range=f"bytes=0-{limit - 1}"
        )
        return bytes(answer["Body"].read(limit))
    except botocore.exceptions.ClientError:
        return None


def _explain(uri: str, bucket: str, error: Any) -> str:
    """What S3's answer means for the person who chose the destination. ``error`` is botocore's ClientError."""
    code = str(error.response.get("Error", {}).get("Code"))
    match code:
        case "NoSuchBucket":
            return f"cannot write {uri}: there is no bucket {bucket!r}; create it, or name another"
        case "AccessDenied" | "403" | "AllAccessDisabled":
            return f"cannot write {uri}: the credentials may not; grant s3:PutObject on it"
        case "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken":
            return f"cannot write {uri}: the credentials are refused ({code}); renew or replace them"
        case "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException":
            return f"cannot write {uri}: the bucket is in another region ({code}); set AWS_REGION to its region"
        case _:
            return f"cannot write {uri}: {error}"


@contextlib.contextmanager
def _explained_os(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _os_problem(path, error) from error


def _os_problem(path: Path, error: OSError) -> SinkError:
    return SinkError(
        f"cannot write {path}: {error.strerror or error}; choose a folder that can be written and has room"
    )
