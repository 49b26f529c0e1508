"""A stand-in for a bucket of S3, which can be made to fail.

It keeps objects in memory and speaks as much of S3 as Penstock asks for: whole objects, ranges,
lists, conditions and uploads in parts. It checks no signature, and shows what is written at once,
as S3 does.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as Xml

NAME = "chaos"
WRITTEN_AT = "Mon, 01 Jan 2024 00:00:00 GMT"  # nothing here asks how old an object is
# that clients find by themselves, as they do on a machine of S3's own cloud
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "chaos",
    "AWS_SECRET_ACCESS_KEY": "chaos",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class Failing(StrEnum):
    """The way in which it fails."""

    BUSY = "each request is refused with 503 SlowDown"
    DONE = "each write is done and answers 500 InternalError"


class Bucket:
    """Serves one bucket on a port of loopback, on threads of its own."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}  # with their metadata
        self.uploads: dict[str, tuple[str, dict[int, bytes], dict[str, str]]] = {}
        self.lock = threading.Lock()  # of both, for the threads of requests
        self.failing: Failing | None = None
        self.failed = 0  # requests that were answered so
        self.numbers = itertools.count(1)
        handler = type("Handler", (_Request,), {"bucket": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def made(self, failing: Failing) -> Iterator[None]:
        """Let it fail so for the time of the block."""
        self.failing = failing
        try:
            yield
        finally:
            self.failing = None

    @property
    def results(self) -> str:
        return f"s3://{NAME}/results"

    def put(self, key: str, body: bytes) -> str:
        """Write an object, and return its address."""
        with self.lock:
            self.objects[key] = (body, {})
        return f"s3://{NAME}/{key}"

    def documents(self, name: str) -> list[str]:
        """Return the documents of a file of results; none where it is not there."""
        with self.lock:
            body, _ = self.objects.get(f"results/{name}", (b"", {}))
        return [json.loads(line)["custom_id"] for line in body.splitlines()]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that were killed while they asked."""


class _Request(BaseHTTPRequestHandler):
    """One request: GET, HEAD, PUT, POST or DELETE."""

    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def _handle(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        key = unquote(url.path).lstrip("/").partition("/")[2]
        asked = {
            name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()
        }
        failing = self.bucket.failing
        if failing is Failing.BUSY:
            status, body, headers = 503, _error("SlowDown"), dict[str, str]()
        else:
            with self.bucket.lock:
                status, body, headers = self._answer(key, asked, sent)
            if failing is Failing.DONE and self.command not in ("GET", "HEAD"):
                status, body, headers = 500, _error("InternalError"), {}
        self.bucket.failed += status in (500, 503)
        self._say(status, body, headers)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _answer(
        self, key: str, asked: Mapping[str, str], sent: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        there, uploads = self.bucket.objects, self.bucket.uploads
        metadata = {
            name.lower(): value
            for name, value in self.headers.items()
            if name.lower().startswith("x-amz-meta-")
        }
        match self.command, "uploadId" in asked:
            case "PUT", True:
                uploads[asked["uploadId"]][1][int(asked["partNumber"])] = sent
                return 200, b"", {"ETag": _etag(sent)}
            case "POST", False:  # ?uploads
                name = f"upload-{next(self.bucket.numbers)}"
                uploads[name] = (key, {}, metadata)
                return 200, _xml("InitiateMultipartUploadResult", UploadId=name, Key=key), {}
            case "DELETE", True:
                uploads.pop(asked["uploadId"], None)
                return 204, b"", {}
            case "DELETE", False:
                there.pop(key, None)
                return 204, b"", {}
        if (refused := self._condition(key)) is not None:
            return refused
        match self.command:
            case "POST":
                if asked["uploadId"] not in uploads:
                    return 404, _error("NoSuchUpload"), {}
                _, parts, metadata = uploads.pop(asked["uploadId"])
                whole = b"".join(parts[number] for number in sorted(parts))
                there[key] = (whole, metadata)
                return 200, _xml("CompleteMultipartUploadResult", ETag=_etag(whole), Key=key), {}
            case "PUT":
                there[key] = (sent, metadata)
                return 200, b"", {"ETag": _etag(sent)}
        if not key:
            return 200, self._listed(asked), {}
        if key not in there:
            return 404, _error("NoSuchKey"), {}
        body, metadata = there[key]
        headers = {"ETag": _etag(body), "Last-Modified": WRITTEN_AT, **metadata}
        if (span := self.headers.get("Range")) is None:
            return 200, body, headers
        first, _, last = span.removeprefix("bytes=").partition("-")
        if int(first) >= len(body):
            return 416, _error("InvalidRange"), {}
        part = body[int(first) : int(last or len(body)) + 1]
        end = int(first) + len(part) - 1
        return 206, part, headers | {"Content-Range": f"bytes {first}-{end}/{len(body)}"}

    def _condition(self, key: str) -> tuple[int, bytes, dict[str, str]] | None:
        """Return the refusal of a request whose condition does not hold."""
        there = self.bucket.objects.get(key)
        wanted = self.headers.get("If-Match")
        if self.headers.get("If-None-Match") == "*" and there is not None:
            return 412, _error("PreconditionFailed"), {}
        if wanted is not None and (there is None or _etag(there[0]) != wanted):
            return 412, _error("PreconditionFailed"), {}
        return None

    def _listed(self, asked: Mapping[str, str]) -> bytes:
        """Return the objects below a prefix, or the uploads there, on one page."""
        below = asked.get("prefix", "")
        if "uploads" in asked:
            found = [
                {"Upload": {"Key": key, "UploadId": name}}
                for name, (key, _, _) in self.bucket.uploads.items()
                if key.startswith(below)
            ]
            return _xml("ListMultipartUploadsResult", *found, IsTruncated="false")
        after = asked.get("start-after", "")
        found = [
            {
                "Contents": {
                    "Key": key,
                    "Size": str(len(body)),
                    "ETag": _etag(body),
                    "LastModified": "2024-01-01T00:00:00.000Z",
                }
            }
            for key, (body, _) in sorted(self.bucket.objects.items())
            if key.startswith(below) and key > after
        ]
        return _xml("ListBucketResult", *found, IsTruncated="false", Name=NAME)

    def _say(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the screen for what chaos says."""


def _etag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _error(code: str) -> bytes:
    return _xml("Error", Code=code, Message=f"chaos says {code}")


def _xml(root: str, *children: Mapping[str, Mapping[str, str]], **texts: str) -> bytes:
    top = Xml.Element(root)
    for name, text in texts.items():
        Xml.SubElement(top, name).text = text
    for child in children:
        for name, inner in child.items():
            below = Xml.SubElement(top, name)
            for part, text in inner.items():
                Xml.SubElement(below, part).text = text
    return bytes(Xml.tostring(top, encoding="utf-8", xml_declaration=True))
