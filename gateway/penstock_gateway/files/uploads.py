"""Turn a form that comes over HTTP into a file.

It is read piece by piece and written in threads, a MiB in memory at a time. What ends by itself is
removed here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import ClientDisconnect, Request

from penstock_gateway.backend import Backend
from penstock_gateway.callers.admission import Incoming, Shares
from penstock_gateway.files.form import FILE, UploadForm
from penstock_gateway.files.multipart import (
    Data,
    Event,
    FormPart,
    MalformedForm,
    MultipartParser,
    boundary_of,
)
from penstock_gateway.files.store import FileStore, FileWriting
from penstock_gateway.refused import Refused
from penstock_ledger import DoorFile
from penstock_producer import SinkError

__all__ = ["FileCleaning", "uploaded"]

WRITTEN_TOGETHER: Final = 1024 * 1024  # bytes in memory of one upload, before a thread takes them
FORM_BYTES_MAX: Final = 256 * 1024  # of a form besides its file: boundaries, headers, fields
# for one upload, however large; what it leaves behind is removed later than this
UPLOAD_MAX_S: Final = 6 * 3600


async def uploaded(
    request: Request, backend: Backend, store: FileStore, tenant: str | None, form: UploadForm
) -> DoorFile:
    """Return the file that the request brings; ``form`` gets what stands beside it.

    Raises Refused, and leaves nothing of a file that did not come whole."""
    most = backend.settings.gateway.max_upload_bytes
    parser = MultipartParser(_boundary(request))
    _check_length(request, most)
    stated = _stated_length(request) or 0
    await backend.run(store.check_room, stated)
    with backend.part(Shares).upload(tenant, await backend.run(store.room_of, tenant)) as incoming:
        incoming.grow_to(stated - FORM_BYTES_MAX)
        upload = _Upload(backend, store, tenant, most, incoming, form)
        file = await _taken_in(request, parser, upload)
    backend.metrics.uploads.inc()
    backend.metrics.uploaded.inc(file.bytes)
    return file


async def _taken_in(request: Request, parser: MultipartParser, upload: _Upload) -> DoorFile:
    try:
        async with asyncio.timeout(UPLOAD_MAX_S):
            async for chunk in _chunks(request):
                for event in parser.feed(chunk):
                    await upload.take(event)
            parser.end()
        return await upload.finish()
    except MalformedForm as error:
        raise Refused(
            400, f"The upload cannot be read: {error}.", code="invalid_multipart"
        ) from None
    except TimeoutError:
        raise Refused(
            408, f"The upload took longer than {UPLOAD_MAX_S // 3600} hours.", code="timeout"
        ) from None
    except ClientDisconnect:
        raise Refused(
            400, "The connection ended before the upload was complete.", code="incomplete_upload"
        ) from None
    finally:
        await upload.close()


class _Upload:
    """The file that is being written, the fields beside it, and where the next bytes belong."""

    def __init__(
        self,
        backend: Backend,
        store: FileStore,
        tenant: str | None,
        most: int,
        incoming: Incoming,
        form: UploadForm,
    ) -> None:
        self._incoming = incoming
        self._backend, self._store, self._tenant, self._most = backend, store, tenant, most
        self._form = form
        self._field = ""
        self._held = bytearray()
        self._size = 0
        self._writing: FileWriting | None = None

    async def take(self, event: Event) -> None:
        if isinstance(event, FormPart):
            self._field = event.name
            if self._form.begin(event):
                self._writing = await self._backend.run(
                    self._store.begin, self._tenant, self._form.filename or ""
                )
        elif isinstance(event, Data):
            if self._field == FILE:
                await self._write(event.data)
            else:
                self._form.add(self._field, event.data)

    async def _write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._most:
            raise too_large(self._most)
        self._incoming.grow_to(self._size)
        self._held += data
        if len(self._held) >= WRITTEN_TOGETHER:
            await self._flush()

    async def _flush(self) -> None:
        assert self._writing is not None
        data = bytes(self._held)
        self._held.clear()
        await self._backend.run(self._writing.write, data)

    async def finish(self) -> DoorFile:
        self._form.check()
        assert self._writing is not None
        assert self._form.filename is not None
        if not self._size:
            raise Refused(400, "The file is empty.", code="empty_file", param=FILE)
        await self._flush()
        stored = await self._backend.run(
            self._writing.finish, self._form.filename, self._form.purpose, self._form.lives_s
        )
        self._writing = None
        return stored

    async def close(self) -> None:
        """End the upload: nothing of it stays, unless it was finished."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await asyncio.shield(self._backend.run(writing.discard))


def too_large(most: int) -> Refused:
    return Refused(
        413, f"File is too large: the limit is {most} bytes.", code="file_too_large", param=FILE
    )


def _boundary(request: Request) -> str:
    given = request.headers.get("content-type", "")
    try:
        boundary = boundary_of(given)
    except MalformedForm as error:
        raise Refused(
            400, f"The upload cannot be read: {error}.", code="invalid_multipart"
        ) from None
    if boundary is None:
        raise Refused(
            415,
            "Send the file as a form: Content-Type multipart/form-data.",
            code="unsupported_media_type",
        )
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Refused(
            415, "Send the form without a Content-Encoding.", code="unsupported_media_type"
        )
    return boundary


def _stated_length(request: Request) -> int | None:
    given = request.headers.get("content-length", "")
    return int(given) if given.isdecimal() and len(given) < 20 else None


def _check_length(request: Request, most: int) -> None:
    """Check the stated length before a byte of the body is read."""
    length = _stated_length(request)
    if length is not None and length > most + FORM_BYTES_MAX:
        raise too_large(most)


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        if chunk:
            yield chunk


log = logging.getLogger("penstock.gateway")

LOOK_EVERY_S: Final = 60.0
AT_ONCE: Final = 100  # files of one step
# An upload has ended long before; a list that goes on behind a deleted file has been read to its
# end.
LEFT_AFTER_S: Final = UPLOAD_MAX_S + 3600


class FileCleaning:
    """Removes files whose time is over; any number of replicas may do it at once.

    A row is hidden once, and bytes that are gone stay gone."""

    async def run(self, backend: Backend) -> None:
        store = FileStore(backend.settings, backend.database)
        while True:
            while await backend.run(expire, store) or await backend.run(forget, store):
                pass
            backend.round_done(self)
            await asyncio.sleep(LOOK_EVERY_S)


def expire(store: FileStore) -> bool:
    """Remove files whose time is over; whether there may be more."""
    over = store.rows.expire(AT_ONCE)
    for file in over:
        _remove(store, file.place)  # what does not go now goes with its row
    if over:
        log.info("%d files have reached their expires_at and are removed", len(over))
    return len(over) == AT_ONCE


def forget(store: FileStore, *, left_after_s: float = LEFT_AFTER_S) -> bool:
    """Remove what deleted files and unfinished uploads have left; whether there may be more."""
    left = store.rows.deleted_before(time.time() - left_after_s, AT_ONCE)
    gone = [file.file_id for file in left if _remove(store, file.place)]
    if gone:
        store.rows.forget(gone)
    return len(gone) == AT_ONCE


def _remove(store: FileStore, place: str) -> bool:
    try:
        store.remove_bytes(place)
    except (SinkError, OSError) as error:
        log.warning(
            "the bytes of a deleted file cannot be removed now, and will be tried again: %s", error
        )
        return False
    return True
