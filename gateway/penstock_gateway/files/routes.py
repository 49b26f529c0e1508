"""`/v1/files`, as OpenAI's clients know it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import quote

from fastapi import Depends, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller, caller_with, whose
from penstock_gateway.files.form import UploadForm
from penstock_gateway.files.store import FileReader, FileStore
from penstock_gateway.files.uploads import uploaded
from penstock_gateway.refused import Refused, not_found
from penstock_gateway.routing import Router
from penstock_ledger import DoorFile

__all__ = ["NoSuchRange", "Span", "asked_span"]

_RANGE: Final = re.compile(
    r"\s*bytes\s*=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*", re.ASCII | re.IGNORECASE
)


class NoSuchRange(ValueError):
    """The file has no byte of it."""


class Span(NamedTuple):
    first: int
    after: int


def asked_span(range_header: str | None, if_range: str | None, etag: str, size: int) -> Span | None:
    """Return which bytes are asked for; None for the whole file.

    That also holds for several ranges or an unknown unit, which a server may leave aside, and where
    the content is another than the caller has. Raises NoSuchRange."""
    if range_header is None or (if_range is not None and if_range.strip() != etag):
        return None
    found = _RANGE.fullmatch(range_header)
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        return (
            _checked(Span(max(0, size - int(last)), size), size)
            if int(last)
            else _checked(Span(size, size), size)
        )
    if last and int(last) < int(first):
        return None
    return _checked(Span(int(first), min(size, int(last) + 1) if last else size), size)


def _checked(span: Span, size: int) -> Span:
    if span.first >= size:
        raise NoSuchRange
    return span


router = Router(tags=["files"])

PAGE_MAX: Final = 10_000  # as at OpenAI, where it is the default, too
READ_TOGETHER: Final = 1024 * 1024  # bytes of a file in memory, of one download

_FORM: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"type": "string"},
                    "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                    "expires_after[seconds]": {
                        "type": "integer",
                        "minimum": 3600,
                        "maximum": 2_592_000,
                    },
                },
            },
        }
    },
}

Reads = Annotated[Caller, Depends(caller_with("read"))]
Writes = Annotated[Caller, Depends(caller_with("write"))]


@router.post("/v1/files", operation_id="create_file", openapi_extra={"requestBody": _FORM})
async def create_file(request: Request, caller: Writes) -> dict[str, Any]:
    """Upload a file: a form with `file` and `purpose`.

    `expires_after[anchor]` and `expires_after[seconds]` say when it should go by itself."""
    backend = backend_of(request)
    return shown(await uploaded(request, backend, _store(backend), caller.tenant, UploadForm()))


@router.get("/v1/files", operation_id="list_files")
async def list_files(
    request: Request,
    caller: Reads,
    purpose: Annotated[str | None, Query(max_length=64)] = None,
    after: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = PAGE_MAX,
    order: Literal["asc", "desc"] = "desc",
) -> dict[str, Any]:
    """Return the caller's files, by the time they were made.

    Those that batches wrote are among them.
    """
    backend = backend_of(request)
    purposes = None if purpose is None else [purpose]
    page = await backend.run(
        _store(backend).rows.page,
        whose(caller),
        limit=limit,
        after=after,
        newest_first=order == "desc",
        purposes=purposes,
    )
    if page is None:
        raise Refused(
            400,
            "'after' is not the id of a file that was listed",
            code="invalid_value",
            param="after",
        )
    files = [shown(file) for file in page.files]
    ends = (
        {"first_id": files[0]["id"], "last_id": files[-1]["id"]}
        if files
        else {"first_id": None, "last_id": None}
    )
    return {"object": "list", "data": files, **ends, "has_more": page.has_more}


@router.get("/v1/files/{file_id}", operation_id="retrieve_file")
async def retrieve_file(request: Request, caller: Reads, file_id: str) -> dict[str, Any]:
    """Return what is known of one file."""
    return shown(await _found(backend_of(request), caller, file_id))


@router.delete("/v1/files/{file_id}", operation_id="delete_file")
async def delete_file(request: Request, caller: Writes, file_id: str) -> dict[str, Any]:
    """Remove a file and its bytes. 409 for the input of a batch or job that has not ended."""
    backend = backend_of(request)
    store = _store(backend)
    file = await _found(backend, caller, file_id)
    if not await backend.run(store.delete, file, whose(caller)):
        reader = await backend.run(store.rows.in_use, file_id)
        if reader is None:
            raise not_found("File object", file_id)
        what = "Job" if reader.startswith("job_") else "Batch"
        raise Refused(
            409,
            f"{what} {reader} is at work on this file; cancel it, or delete the file when it has "
            "ended.",
            code="file_in_use",
            param="file_id",
        )
    return {"id": file_id, "object": "file", "deleted": True}


@router.head(
    "/v1/files/{file_id}/content", response_class=Response, operation_id="measure_file_content"
)
@router.get(
    "/v1/files/{file_id}/content", response_class=Response, operation_id="read_file_content"
)
async def file_content(request: Request, caller: Reads, file_id: str) -> Response:
    """Return the bytes of a file, or a range of them."""
    backend = backend_of(request)
    file = await _found(backend, caller, file_id)
    etag = f'"{file.sha256}"'
    headers = {
        "etag": etag,
        "accept-ranges": "bytes",
        "x-content-type-options": "nosniff",
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
    }
    if request.headers.get("if-none-match", "").strip() == etag:
        return Response(status_code=304, headers=headers)
    span = _span(request, file, etag)
    status, first, after = (200, 0, file.bytes) if span is None else (206, *span)
    if span is not None:
        headers["content-range"] = f"bytes {first}-{after - 1}/{file.bytes}"
    headers["content-length"] = str(after - first)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type="application/octet-stream")
    reader = await backend.run(_store(backend).reader, file)
    return StreamingResponse(
        _pieces(backend, reader, first, after), status, headers, "application/octet-stream"
    )


def shown(file: DoorFile) -> dict[str, Any]:
    """Return a file as OpenAI's clients know it."""
    told: dict[str, Any] = {
        "id": file.file_id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }
    if file.expires_at is not None:
        told["expires_at"] = int(file.expires_at)
    return told


def _span(request: Request, file: DoorFile, etag: str) -> Span | None:
    asked = request.headers.get("range")
    try:
        return asked_span(asked, request.headers.get("if-range"), etag, file.bytes)
    except NoSuchRange:
        raise Refused(
            416,
            f"The file has {file.bytes} bytes, and none of the range that was asked for.",
            code="invalid_range",
            param="Range",
            headers={"content-range": f"bytes */{file.bytes}"},
        ) from None


async def _pieces(
    backend: Backend, reader: FileReader, first: int, after: int
) -> AsyncIterator[bytes]:
    """Yield pieces; each is read when the caller has taken the last."""
    while first < after:
        piece = await backend.run(reader.read, first, min(READ_TOGETHER, after - first))
        yield piece
        first += len(piece)


async def _found(backend: Backend, caller: Caller, file_id: str) -> DoorFile:
    file = await backend.run(_store(backend).get, file_id, whose(caller))
    if file is None:
        raise not_found("File object", file_id)
    return file


def _store(backend: Backend) -> FileStore:
    return FileStore(backend.settings, backend.database)
