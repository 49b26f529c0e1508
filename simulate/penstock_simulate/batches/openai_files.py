"""OpenAI's `/v1/files`: uploads to disk as they arrive, lists, contents and deletion."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import BodyPartReader, web

from penstock_simulate.answers import refusals
from penstock_simulate.batches.batch import Batch, Refused
from penstock_simulate.batches.batch_service import BatchService
from penstock_simulate.batches.folder import Folder, TooLarge
from penstock_simulate.batches.relatives import Relative
from penstock_simulate.batches.sent import CHUNK_BYTES, LINES, download, json

BATCH, OUTPUT = "batch", "batch_output"
EXPIRES_S = 30 * 86_400  # batch files, unless the client says otherwise
CLIENT_EXPIRES_S = (3600, 2_592_000)  # the least and the most that a client may ask for
MAX_FILES = 500_000  # that are remembered: some hundred bytes each


@dataclass(slots=True)
class StoredFile:
    """One file. ``of`` is the batch whose results it holds."""

    id: str
    path: Path
    bytes: int
    created_at: float
    expires_at: float | None
    filename: str
    purpose: str
    of: Batch | None = None

    def is_checked(self, relative: Relative, now: float, step_s: float) -> bool:
        """Return whether a batch may be made of it."""
        return not relative.checks_files or self.of is not None or now >= self.created_at + step_s

    def shown(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": int(self.created_at),
            "expires_at": None if self.expires_at is None else int(self.expires_at),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


def key_in(request: web.Request, relative: Relative) -> str | None:
    """Return the key of a call, as OpenAI's header has it."""
    if relative.key_header is None:
        return request.headers.get("Authorization")
    key = request.headers.get(relative.key_header)
    return None if key is None else f"Bearer {key}"


class FileStore:
    """The files by id, in the order of their making.

    One that has expired is gone."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._files: dict[str, StoredFile] = {}

    def add(
        self, path: Path, now: float, filename: str, purpose: str, expires_s: float | None = None
    ) -> StoredFile:
        """Add a file. Raises Refused where there are too many."""
        if len(self._files) >= MAX_FILES:
            raise Refused(
                refusals.invalid(
                    f"This simulator holds {MAX_FILES} files and has as many: delete some."
                )
            )
        if expires_s is None and purpose in (BATCH, OUTPUT):
            expires_s = EXPIRES_S
        expires_at = None if expires_s is None else now + expires_s
        file = StoredFile(
            "file-" + uuid4().hex[:22],
            path,
            path.stat().st_size,
            now,
            expires_at,
            filename,
            purpose,
        )
        self._files[file.id] = file
        return file

    def get(self, ident: str, now: float) -> StoredFile:
        """Return a file. Raises Refused for one that is not there any more, or never was."""
        file = self._files.get(ident)
        if file is not None and not self._has_expired(file, now):
            return file
        raise Refused(refusals.invalid(f"No such File object: {ident}", "id", status=404))

    def get_input(self, ident: object, now: float, relative: Relative, step_s: float) -> StoredFile:
        """Return what a batch is made from.

        Raises Refused where there is no such file, or it is for something else."""
        file = self._files.get(ident) if isinstance(ident, str) else None
        if file is None or self._has_expired(file, now):
            raise Refused(
                refusals.invalid(
                    f"Invalid 'input_file_id': no such File object: {ident}", "input_file_id"
                )
            )
        if file.purpose != relative.purpose:
            message = (
                f"Invalid file purpose '{file.purpose}': the input of a batch needs "
                f"'{relative.purpose}'."
            )
            raise Refused(refusals.invalid(message, "input_file_id"))
        if not file.is_checked(relative, now, step_s):
            raise Refused(
                refusals.invalid("The input file has not been processed yet.", "input_file_id")
            )
        return file

    def delete(self, file: StoredFile) -> None:
        """Delete a file; batches that were made from it have it under another name."""
        del self._files[file.id]
        self._folder.remove(file.path)

    def newest(self, now: float, purpose: str | None) -> list[StoredFile]:
        files = [file for file in list(self._files.values()) if not self._has_expired(file, now)]
        return [file for file in reversed(files) if purpose in (None, file.purpose)]

    def _has_expired(self, file: StoredFile, now: float) -> bool:
        if file.expires_at is None or now < file.expires_at:
            return False
        self.delete(file)
        return True


MAX_BATCH_FILE_BYTES = 200 * 1024 * 1024
MAX_FILE_BYTES = 512 * 1024 * 1024
MAX_FIELD_BYTES = 1024  # of a form field that is not the file
MAX_FIELDS = 16
PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
MAX_PAGE = 10_000


@dataclass(slots=True)
class _Form:
    """An upload as it comes in."""

    path: Path | None = None
    filename: str = "file"
    fields: dict[str, str] = field(default_factory=dict)


class OpenAIFiles:
    """Handlers of aiohttp."""

    def __init__(self, service: BatchService, store: FileStore, relative: Relative) -> None:
        self._service, self._store, self._relative = service, store, relative

    def routes(self) -> list[web.RouteDef]:
        return [
            route
            for root in self._relative.roots
            for route in (
                web.post(root + self._relative.upload, self.upload),
                web.get(root + "/files", self.page),
                web.get(root + "/files/{id}", self.look),
                web.get(root + "/files/{id}/content", self.content),
                web.delete(root + "/files/{id}", self.delete),
            )
        ]

    async def upload(self, request: web.Request) -> web.StreamResponse:
        self._enter("files.create", request)
        if self._service.strikes("no upload", self._service.config.batch_no_upload_share):
            raise Refused(refusals.failed())
        form = await self._form(request)
        try:
            file = self._stored(form)
        except Refused:
            if form.path is not None:
                self._service.folder.remove(form.path)
            raise
        if self._service.strikes("upload", self._service.config.batch_upload_500_share):
            raise Refused(refusals.failed())
        return json(self._shown(file))

    async def page(self, request: web.Request) -> web.StreamResponse:
        self._enter("files.list", request)
        files = {
            file.id: file
            for file in self._store.newest(self._service.now(), request.query.get("purpose"))
        }
        found = (
            list(files) if request.query.get("order", "desc") == "desc" else list(reversed(files))
        )
        names, more = self._relative.page(found, request.query, MAX_PAGE, MAX_PAGE)
        return json(self._relative.files_frame([self._shown(files[name]) for name in names], more))

    async def look(self, request: web.Request) -> web.StreamResponse:
        return json(self._shown(self._file("files.retrieve", request)))

    async def content(self, request: web.Request) -> web.StreamResponse:
        file = self._file("files.content", request)
        if file.of is not None:
            return await download(self._service, request, file.of, file.path)
        return web.FileResponse(file.path, headers=LINES)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        file = self._file("files.delete", request)
        self._store.delete(file)
        return json({"id": file.id, "object": "file", "deleted": True})

    def _enter(self, call: str, request: web.Request) -> None:
        self._service.enter(call, key_in(request, self._relative))

    def _shown(self, file: StoredFile) -> dict[str, Any]:
        checked = file.is_checked(
            self._relative, self._service.now(), self._service.config.batch_step_s
        )
        return file.shown() if checked else {**file.shown(), "status": "pending"}

    def _file(self, call: str, request: web.Request) -> StoredFile:
        self._enter(call, request)
        return self._store.get(request.match_info["id"], self._service.now())

    def _stored(self, form: _Form) -> StoredFile:
        """Store an upload. Raises Refused for a form that is none."""
        purpose = form.fields.get("purpose")
        if form.path is None:
            raise Refused(refusals.invalid("'file' is a required property", "file"))
        if purpose not in (*PURPOSES, self._relative.purpose):
            raise Refused(
                refusals.invalid(
                    f"{purpose!r} is not one of {list(PURPOSES)} - 'purpose'", "purpose"
                )
            )
        missing = [name for name in self._relative.needed if name not in form.fields]
        if missing:
            raise Refused(refusals.invalid(f"{missing[0]!r} is a required property", missing[0]))
        if purpose == self._relative.purpose and form.path.stat().st_size > MAX_BATCH_FILE_BYTES:
            raise _too_large(MAX_BATCH_FILE_BYTES)
        return self._store.add(
            form.path, self._service.now(), form.filename, purpose, _expires_s(form.fields)
        )

    async def _form(self, request: web.Request) -> _Form:
        """Take an upload, which goes to disk as it arrives.

        Raises Refused for a body that is no form, or too large."""
        if not request.content_type.startswith("multipart/"):
            raise Refused(refusals.invalid("The body of an upload must be multipart/form-data."))
        form, parts = _Form(), await request.multipart()
        for _ in range(MAX_FIELDS):
            part = await parts.next()
            if part is None:
                break
            if not isinstance(part, BodyPartReader):
                raise Refused(refusals.invalid("Forms within forms cannot be used."))
            await self._part(form, part)
        return form

    async def _part(self, form: _Form, part: BodyPartReader) -> None:
        if part.name != "file":
            form.fields[part.name or ""] = (await part.read_chunk(MAX_FIELD_BYTES)).decode(
                "utf-8", "replace"
            )
            return
        if form.path is not None:
            raise Refused(refusals.invalid("Give one 'file'.", "file"))
        form.filename = part.filename or form.filename
        try:
            form.path = await self._service.folder.write(_chunks(part), MAX_FILE_BYTES)
        except TooLarge:
            raise _too_large(MAX_FILE_BYTES) from None


async def _chunks(part: BodyPartReader) -> AsyncIterator[bytes]:
    while chunk := await part.read_chunk(CHUNK_BYTES):
        yield chunk


def _too_large(most: int) -> Refused:
    message = f"File is too large: the maximum is {most // 1024**2} MB."
    return Refused(refusals.invalid(message, "file", status=413))


def _expires_s(fields: Mapping[str, str]) -> int | None:
    """Read `expires_after`, as a form writes it.

    Raises Refused for one that cannot be used."""
    given = fields.get("expires_after[seconds]")
    if given is None:
        return None
    least, most = CLIENT_EXPIRES_S
    seconds = int(given) if given.isascii() and given.isdecimal() else 0
    if fields.get("expires_after[anchor]") != "created_at" or not least <= seconds <= most:
        message = f"expires_after: give the anchor 'created_at' and {least} to {most} seconds."
        raise Refused(refusals.invalid(message, "expires_after"))
    return seconds
