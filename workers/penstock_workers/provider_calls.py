"""How each kind of provider is asked, in real time and in batches: its addresses, and the headers
that carry its key."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock_producer.job.endpoints import Kind, generate_path
from penstock_workers.http import UnusableRequest
from penstock_workers.item.lane import Request

ANTHROPIC_VERSION = "2023-06-01"  # of its API: what an answer looks like


def address(base_url: str, path: str) -> str:
    """Base URLs are customary with and without their version (`/v1`); `path` always begins with
    it."""
    head = "/" + path.split("/", 2)[1]
    return base_url + (path.removeprefix(head) if base_url.endswith(head) else path)


def headers_of(kind: Kind, key: str | None) -> Mapping[str, str]:
    """What each call carries."""
    always = {"User-Agent": f"penstock/{version('penstock')}"}
    if kind == "anthropic":
        always["anthropic-version"] = ANTHROPIC_VERSION
    if not key:
        return always
    match kind:
        case "anthropic":
            return always | {"x-api-key": key}
        case "gemini":
            return always | {"x-goog-api-key": key}
    return always | {"Authorization": f"Bearer {key}"}


_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])  # so that what is in them is not read


def generating(request: Request) -> Request:
    """Return a request of Gemini as it is sent: its model stands in the path, not in the body.

    Raises UnusableRequest.
    """
    try:
        fields = _fields.decode(request.body)
        model = msgspec.json.decode(fields.pop("model", b"null"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableRequest(f"the request is not a JSON object: {error}") from error
    path = generate_path(model)
    if path is None:
        raise UnusableRequest(
            'the request names no model of Gemini: write "model": "gemini-2.5-flash", say'
        )
    return replace(request, endpoint=path, body=msgspec.json.encode(fields))
