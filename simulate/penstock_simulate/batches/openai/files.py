"""OpenAI's `/v1/files`: uploads to disk as they arrive, lists, contents and deletion."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import BodyPartReader, web

from penstock_simulate.answers import refusals
from penstock_simulate.batches.folder import TooLarge
from penstock_simulate.batches.openai.file_store import (
    CLIENT_EXPIRES_S,
    FileStore,
    StoredFile,
    key_in,
)
from penstock_simulate.batches.openai.relatives import Relative
from penstock_simulate.batches.refused import Refused
from penstock_simulate.batches.sent import CHUNK_BYTES, LINES, download, json
from penstock_simulate.batches.shop import BatchShop

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

    def __init__(self, shop: BatchShop, store: FileStore, relative: Relative) -> None:
        self._shop, self._store, self._relative = shop, store, relative

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
        if self._shop.strikes("no upload", self._shop.config.batch_no_upload_share):
            raise Refused(refusals.failed())
        form = await self._form(request)
        try:
            file = self._stored(form)
        except Refused:
            if form.path is not None:
                self._shop.folder.remove(form.path)
            raise
        if self._shop.strikes("upload", self._shop.config.batch_upload_500_share):
            raise Refused(refusals.failed())
        return json(self._shown(file))

    async def page(self, request: web.Request) -> web.StreamResponse:
        self._enter("files.list", request)
        files = {
            file.id: file
            for file in self._store.newest(self._shop.now(), request.query.get("purpose"))
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
            return await download(self._shop, request, file.of, file.path)
        return web.FileResponse(file.path, headers=LINES)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        file = self._file("files.delete", request)
        self._store.delete(file)
        return json({"id": file.id, "object": "file", "deleted": True})

    def _enter(self, call: str, request: web.Request) -> None:
        self._shop.enter(call, key_in(request, self._relative))

    def _shown(self, file: StoredFile) -> dict[str, Any]:
        checked = file.is_checked(self._relative, self._shop.now(), self._shop.config.batch_step_s)
        return file.shown() if checked else {**file.shown(), "status": "pending"}

    def _file(self, call: str, request: web.Request) -> StoredFile:
        self._enter(call, request)
        return self._store.get(request.match_info["id"], self._shop.now())

    def _stored(self, form: _Form) -> StoredFile:
        """Raises Refused for an upload that is not one."""
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
            form.path, self._shop.now(), form.filename, purpose, _expires_s(form.fields)
        )

    async def _form(self, request: web.Request) -> _Form:
        """The file goes to disk as it arrives.

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
            form.path = await self._shop.folder.write(_chunks(part), MAX_FILE_BYTES)
        except TooLarge:
            raise _too_large(MAX_FILE_BYTES) from None


async def _chunks(part: BodyPartReader) -> AsyncIterator[bytes]:
    while chunk := await part.read_chunk(CHUNK_BYTES):
        yield chunk


def _too_large(most: int) -> Refused:
    message = f"File is too large: the maximum is {most // 1024**2} MB."
    return Refused(refusals.invalid(message, "file", status=413))


def _expires_s(fields: Mapping[str, str]) -> int | None:
    """Of `expires_after`, as a form writes it. Raises Refused for one that cannot be used."""
    given = fields.get("expires_after[seconds]")
    if given is None:
        return None
    least, most = CLIENT_EXPIRES_S
    seconds = int(given) if given.isascii() and given.isdecimal() else 0
    if fields.get("expires_after[anchor]") != "created_at" or not least <= seconds <= most:
        message = f"expires_after: give the anchor 'created_at' and {least} to {most} seconds."
        raise Refused(refusals.invalid(message, "expires_after"))
    return seconds
