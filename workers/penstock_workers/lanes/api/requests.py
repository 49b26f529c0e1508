"""A request is sent to its provider's own path, with the fields of a stream.

In a request of Gemini or Bedrock the model stands in the path, and not in the body.
"""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from penstock_producer.job.endpoints import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    PATHS_OF_MODELS,
    RESPONSES,
    UPLOADS,
)
from penstock_workers.http import UnusableRequest
from penstock_workers.item.lane import Request
from penstock_workers.settings import Streams

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])  # so that what is in them is not read
_TRUE: Final = msgspec.Raw(b"true")
_WITH_USAGE: Final = msgspec.Raw(b'{"include_usage":true}')
_OF_STREAMS: Final[Mapping[str, Mapping[str, msgspec.Raw]]] = {
    CHAT: {"stream": _TRUE, "stream_options": _WITH_USAGE},
    COMPLETIONS: {"stream": _TRUE, "stream_options": _WITH_USAGE},
    MESSAGES: {"stream": _TRUE},
    RESPONSES: {"stream": _TRUE},
}


BOUNDARY: Final = f"penstock-{secrets.token_hex(16)}"
"""Between the parts of forms: by chance, so that no file has it in it."""
_DATA: Final = "data:"
_FILE_FIELDS: Final = frozenset({*UPLOADS.values(), "mask"})


def content_type_of(endpoint: str) -> Mapping[str, str]:
    """Return the header that says what is sent: a form, or JSON."""
    form = f"multipart/form-data; boundary={BOUNDARY}"
    return {"Content-Type": form if endpoint in UPLOADS else "application/json"}


def put_behind(request: Request, priority: int | None) -> Request:
    """Return the request as one that vLLM takes up after those of others.

    One that is urgent, is sent as a form, or names a priority itself, stays as it is; so does what
    is no object, which is the provider's to refuse."""
    if priority is None or request.priority == "urgent" or request.endpoint in UPLOADS:
        return request
    try:
        fields = _fields.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return request
    asked = {"priority": msgspec.Raw(str(priority).encode())} | fields
    return replace(request, body=msgspec.json.encode(asked))


async def written(request: Request, streams: Streams) -> Request:
    """Return the request as it is sent; raise UnusableRequest."""
    if request.endpoint in UPLOADS:  # their files may be large
        return await asyncio.to_thread(as_form, request)
    return as_sent(request, streams)


def as_form(request: Request) -> Request:
    """Return a request for a path of UPLOADS as the form that it is sent as.

    Files are `data:` addresses, as the job's source made them, and have names by their type alone.
    Raises UnusableRequest."""
    try:
        fields = msgspec.json.decode(request.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableRequest(f"the request is not a JSON object: {error}") from error
    needed = UPLOADS[request.endpoint]
    parts = list[bytes]()
    for name, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            field = f"{name}[]" if isinstance(value, list) else name
            parts.append(_file(field, one) if name in _FILE_FIELDS else _field(field, one))
    if not fields.get(needed):
        raise UnusableRequest(f"the request has no {needed}: give a column of files")
    return replace(request, body=b"".join((*parts, b"--%b--\r\n" % BOUNDARY.encode())))


def _file(name: str, value: Any) -> bytes:
    head, comma, text = value.partition(",") if isinstance(value, str) else ("", "", "")
    kind = head.removeprefix(_DATA).removesuffix(";base64")
    try:
        if not comma or not head.startswith(_DATA) or _KIND.fullmatch(kind) is None:
            raise ValueError("write data:audio/mpeg;base64,…")
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise UnusableRequest(f"the field {name} holds no file: {error}") from None
    ending = kind.rpartition("/")[2]
    told = f'name="{name}"; filename="file.{_ENDINGS.get(ending, ending)}"'
    return _part(f"{told}\r\nContent-Type: {kind}", data)


def _field(name: str, value: Any) -> bytes:
    if value is None:
        return b""
    text = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    if _NAME.fullmatch(name) is None:
        raise UnusableRequest(f"{name[:40]!r} cannot be the name of a field of a form")
    return _part(f'name="{name}"', text)


def _part(head: str, content: bytes) -> bytes:
    told = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode()
    return b"".join((told, content, b"\r\n"))


_ENDINGS: Final = {"mpeg": "mp3", "mp4": "m4a"}
_KIND: Final = re.compile(r"[a-z]{1,20}/[a-z0-9.+-]{1,40}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}(?:\[\])?")


def as_sent(request: Request, streams: Streams) -> Request:
    """Return the request as its provider wants it; raise UnusableRequest.

    ``streams`` says whether, and how, it asks for the answer as events."""
    path_of = PATHS_OF_MODELS.get(request.endpoint)
    if streams == "no" and path_of is None:
        return request
    try:
        fields = _fields.decode(request.body)
        if path_of is None:
            fields |= _OF_STREAMS.get(request.endpoint, {})
            if streams == "plain":
                fields.pop("stream_options", None)
            return replace(request, body=msgspec.json.encode(fields))
        model = msgspec.json.decode(fields.pop("model", b"null"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableRequest(f"the request is not a JSON object: {error}") from error
    path = path_of(model)
    if path is None:
        raise UnusableRequest('the request names no model there: write "model": "…" into it')
    if streams != "no":  # none of Bedrock's, which come in a form of their own: see assembling.py
        path = path.replace(":generateContent", ":streamGenerateContent?alt=sse")
    return replace(request, endpoint=path, body=msgspec.json.encode(fields))
