"""Google's APIs share keys, pages, times and operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from aiohttp import web

from penstock_simulate.answers import refusals
from penstock_simulate.batches.batch import Batch, Refused
from penstock_simulate.batches.batch_service import BatchService
from penstock_simulate.batches.folder import TooLarge
from penstock_simulate.batches.sent import CHUNK_BYTES, download, json


def key_of(request: web.Request) -> str | None:
    """Return the key as an Authorization header would have it, which is taken in its place."""
    key = request.headers.get("x-goog-api-key") or request.query.get("key")
    return request.headers.get("Authorization") if key is None else f"Bearer {key}"


def timestamp(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")


def page(
    names: Sequence[str], request: web.Request, default: int, most: int
) -> tuple[Sequence[str], str | None]:
    """Return the page that the query asks for, and the token of the next.

    Raises Refused for a token that is none."""
    size, token = request.query.get("pageSize", str(default)), request.query.get("pageToken", "0")
    for name, given in (("pageSize", size), ("pageToken", token)):
        if not given.isascii() or not given.isdecimal():
            raise Refused(refusals.invalid(f"Invalid value at '{name}': {given!r}", name))
    start, length = int(token), min(int(size) or default, most)
    end = start + length
    return names[start:end], str(end) if end < len(names) else None


START = "/upload/v1beta/files"
MAX_FILE_BYTES = 2 * 1024**3
KEPT_S = 48 * 3600
MAX_FILES = 500_000  # that are remembered: some hundred bytes each
MAX_OPEN = 1000  # uploads that were begun and not ended; the oldest is forgotten
PAGE, MAX_PAGE = 10, 100


@dataclass(slots=True)
class GeminiFile:
    """One file. ``of`` is the batch whose results it holds: only such can be downloaded."""

    name: str  # "files/…"
    path: Path
    display_name: str
    mime_type: str
    created_at: float
    of: Batch | None = None

    def shown(self, origin: str) -> dict[str, Any]:
        created = timestamp(self.created_at)
        where = (
            {}
            if self.of is None
            else {"downloadUri": f"{origin}/v1beta/{self.name}:download?alt=media"}
        )
        return {
            "name": self.name,
            "displayName": self.display_name,
            "mimeType": self.mime_type,
            "sizeBytes": str(self.path.stat().st_size),
            "createTime": created,
            "updateTime": created,
            "expirationTime": timestamp(self.created_at + KEPT_S),
            "uri": f"{origin}/v1beta/{self.name}",
            "state": "ACTIVE",
            "source": "UPLOADED" if self.of is None else "GENERATED",
        } | where


class GeminiFiles:
    """Handlers of aiohttp, and the files."""

    def __init__(self, service: BatchService) -> None:
        self._service = service
        self._files: dict[str, GeminiFile] = {}
        self._open: dict[str, GeminiFile] = {}  # uploads that have not ended, by their id

    def routes(self) -> list[web.RouteDef]:
        ident = "/v1beta/files/{id:[^/:]+}"
        return [
            web.post(START, self.start),
            web.post(START + "/{upload}", self.piece),
            web.get("/v1beta/files", self.page),
            web.get(ident, self.look),
            web.get(ident + ":download", self.download),
            web.get("/download" + ident + ":download", self.download),
            web.delete(ident, self.delete),
        ]

    def add(self, file: GeminiFile) -> None:
        """Add a file. Raises Refused where there are too many."""
        if len(self._files) >= MAX_FILES:
            raise Refused(
                refusals.invalid(
                    f"This simulator holds {MAX_FILES} files and has as many: delete some."
                )
            )
        self._files[file.name] = file

    def get(self, name: str) -> GeminiFile:
        """Return a file.

        Raises Refused for one that is not there any more, or never was: as Google does, with a 403.
        """
        file = self._files.get(name)
        if file is not None and self._service.now() < file.created_at + KEPT_S:
            return file
        if file is not None:
            self._remove(file)
        told = (
            f"You do not have permission to access the File {name.removeprefix('files/')} or it "
            "may not exist."
        )
        raise Refused(refusals.invalid(told, status=403))

    async def start(self, request: web.Request) -> web.StreamResponse:
        """Begin an upload; the address for the bytes is in a header of the answer."""
        self._enter("files.upload", request)
        if self._service.strikes("no upload", self._service.config.batch_no_upload_share):
            raise Refused(refusals.failed())
        if request.headers.get("X-Goog-Upload-Protocol") != "resumable":
            raise Refused(
                refusals.invalid(
                    "This simulator takes uploads with X-Goog-Upload-Protocol: resumable."
                )
            )
        file = self._announced(await request.read(), request)
        upload = uuid4().hex
        self._open[upload] = file
        if len(self._open) > MAX_OPEN:
            self._service.folder.remove(self._open.pop(next(iter(self._open))).path)
        address = f"{request.url.origin()}{START}/{upload}"
        return web.Response(
            headers={"x-goog-upload-url": address, "x-goog-upload-status": "active"}
        )

    async def piece(self, request: web.Request) -> web.StreamResponse:
        """Take a piece; the last one ends the upload."""
        file = self._open.get(request.match_info["upload"])
        if file is None:
            raise Refused(
                refusals.invalid("This upload has ended, or was never begun.", status=404)
            )
        command = request.headers.get("X-Goog-Upload-Command", "")
        have, offset = file.path.stat().st_size, request.headers.get("X-Goog-Upload-Offset", "0")
        if "query" in command:
            return web.Response(
                headers={"x-goog-upload-status": "active", "x-goog-upload-size-received": str(have)}
            )
        if offset != str(have):
            raise Refused(
                refusals.invalid(
                    f"X-Goog-Upload-Offset: {offset!r} is not {have}, the bytes that are here."
                )
            )
        try:
            await self._service.folder.extend(
                file.path, request.content.iter_chunked(CHUNK_BYTES), MAX_FILE_BYTES
            )
        except TooLarge:
            self._service.folder.remove(self._open.pop(request.match_info["upload"]).path)
            raise Refused(
                refusals.invalid(f"File is too large: the maximum is {MAX_FILE_BYTES}.")
            ) from None
        if "finalize" not in command:
            return web.Response(headers={"x-goog-upload-status": "active"})
        self._open.pop(request.match_info["upload"], None)
        self.add(file)
        if self._service.strikes("upload", self._service.config.batch_upload_500_share):
            raise Refused(refusals.failed())
        answer = json({"file": file.shown(str(request.url.origin()))})
        answer.headers["x-goog-upload-status"] = "final"
        return answer

    async def page(self, request: web.Request) -> web.StreamResponse:
        self._enter("files.list", request)
        names, token = page(list(reversed(self._files)), request, PAGE, MAX_PAGE)
        files = [self._files[name].shown(str(request.url.origin())) for name in names]
        return json({"files": files} | ({"nextPageToken": token} if token else {}))

    async def look(self, request: web.Request) -> web.StreamResponse:
        return json(self._file("files.get", request).shown(str(request.url.origin())))

    async def download(self, request: web.Request) -> web.StreamResponse:
        file = self._file("files.download", request)
        if file.of is None:
            raise Refused(refusals.invalid("Only generated files can be downloaded.", status=403))
        return await download(self._service, request, file.of, file.path)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        self._remove(self._file("files.delete", request))
        return json({})

    def _enter(self, call: str, request: web.Request) -> None:
        self._service.enter(call, key_of(request))

    def _file(self, call: str, request: web.Request) -> GeminiFile:
        self._enter(call, request)
        return self.get("files/" + request.match_info["id"])

    def _remove(self, file: GeminiFile) -> None:
        del self._files[file.name]
        self._service.folder.remove(file.path)

    def _announced(self, raw: bytes, request: web.Request) -> GeminiFile:
        """Return a file without its bytes. Raises Refused for a name that is taken."""
        try:
            given = orjson.loads(raw) if raw else {}
        except orjson.JSONDecodeError as error:
            raise Refused(refusals.invalid(f"Invalid JSON payload received: {error}")) from None
        about = given.get("file") if isinstance(given, dict) else None
        about = about if isinstance(about, dict) else {}
        name = str(about.get("name") or "files/" + uuid4().hex[:12])
        if name in self._files:
            raise Refused(refusals.invalid(f"Resource already exists: {name}", status=409))
        kind = (
            about.get("mimeType")
            or request.headers.get("X-Goog-Upload-Header-Content-Type")
            or "text/plain"
        )
        display = str(about.get("displayName") or about.get("display_name") or "")
        return GeminiFile(
            name, self._service.folder.empty(), display, str(kind), self._service.now()
        )
